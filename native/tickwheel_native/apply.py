"""What a record does to the tables: 0, or -1 when it names what does not exist; then nothing changed."""

from __future__ import annotations

from tickwheel_native._native import lib
from tickwheel_native.arrays import Runs, Store, UInt64s, runs, uint64s


def put(store: Store, topic_id: int, first_seq: int, of: Runs) -> int:
    """Ids come into their topic."""
    return lib.tw_apply_put(store, topic_id, first_seq, runs(of), len(of))


def lease(store: Store, group_id: int, holder: int, of: Runs) -> int:
    return lib.tw_apply_lease(store, group_id, holder, runs(of), len(of))


def ack(store: Store, group_id: int, of: Runs) -> int:
    return lib.tw_apply_ack(store, group_id, runs(of), len(of))


def dead(store: Store, group_id: int, of: Runs) -> int:
    return lib.tw_apply_dead(store, group_id, runs(of), len(of))


def nack(store: Store, group_id: int, of: Runs) -> int:
    """Leases and waits end; the messages are delivered again from the runs' time on."""
    return lib.tw_apply_nack(store, group_id, runs(of), len(of))


def release(store: Store, group_id: int, of: Runs) -> int:
    """Leases end at the runs' time."""
    return lib.tw_apply_release(store, group_id, runs(of), len(of))


def returned(store: Store, group_id: int, of: Runs, time_ms: int) -> int:
    """Leases end at ``time_ms``; the runs' times are the rows' ``base_epoch`` from now on."""
    return lib.tw_apply_return(store, group_id, runs(of), len(of), time_ms)


def redeliver(store: Store, group_id: int, of: Runs, how: int) -> int:
    """``how``: TW_RESET_ATTEMPTS, TW_WERE_DONE."""
    return lib.tw_apply_redeliver(store, group_id, runs(of), len(of), how)


def end(store: Store, ids: UInt64s, state: int) -> int:
    return lib.tw_apply_end(store, uint64s(ids), len(ids), state)


def reschedule(store: Store, of: Runs, priority: int) -> int:
    """Runs of one; ``priority`` 256: as it is."""
    return lib.tw_apply_reschedule(store, runs(of), len(of), priority)


def purged(store: Store, start: int, end: int) -> int:
    """Forgets each message whose record still lies between two positions."""
    return lib.tw_apply_purged(store, start, end)


def seek(store: Store, group_id: int, start_seq: int) -> None:
    """The group begins anew at a number of its topic."""
    lib.tw_apply_seek(store, group_id, start_seq)
