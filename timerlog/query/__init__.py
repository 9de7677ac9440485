"""What takes a look at much of a data directory that a broker is using, in a process of its own: SQL over messages with
DuckDB, and the history of a message.

``python -m timerlog.query`` takes one job from its standard input and writes one frame: ``worker``. The tables that a
query sees are in ``tables``, their columns in ``columns``, DuckDB's part in ``engine``; histories are made by
``timerlog.readers.history``.
"""
