"""Handlers that are called for messages, from the bottom up: ``outcomes`` and ``retry_policy`` (what becomes of a
message), ``handler`` (one function, with its limits), ``handlers`` (those of a program), ``tally`` (what came of it),
``consumer`` (a subscription whose messages go to a handler) and ``worker`` (all of a process, until it is told to
stop); ``signals`` tells the blocking client."""
