"""The client in threads that block, without an event loop.

``monitor`` (the lock, and waiting under it), ``interruptions`` (Ctrl-C), ``wire`` (a socket), ``dial`` (which opens it)
and ``session`` (the conversation, carried by who waits; one thread more while leases are renewed). On it ``short_way``
(a send while nothing else is under way), ``settling`` (acks), ``message`` and ``subscription``.
"""
