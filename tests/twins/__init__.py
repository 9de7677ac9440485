"""Plain-Python twins of functions of ``native/``: slow, and short enough to check by reading.

Each says in another way what C is to do: what bytes mean (frames, records, the key index), what numbers follow from
rows, when a timer fires. A twin gets a ``store.TwinStore`` where C gets a ``tw_store``; after the same calls both have
written the same bytes and returned the same values. What changes deliveries, orders and tables step by step has no
twin, which could only repeat it line by line: there the invariants of ``fuzz/invariants.c`` must hold.
"""
