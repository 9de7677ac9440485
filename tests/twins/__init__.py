"""Plain-Python twins of the functions of ``native/store.h``: slow, and short enough to check by reading.

One module for each C file, over the same bytes: a twin gets a ``store.TwinStore`` where C gets a ``tw_store``. After
the same calls both have written the same bytes and returned the same values; tests hold them to it. Only the key
index is another thing here (a plain set of entries), because where an entry lies in its table is nobody's business.
"""
