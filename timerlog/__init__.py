"""The storage engine: CommitLog, MessageTable, TimerLog, TimerWheel, topic lanes, key index, checkpoint.

Synchronous and clock-free: the time is an argument, the disk is passed in. No trio, no sockets, no threads.
Start at ``timerlog.store.Store``.
"""
