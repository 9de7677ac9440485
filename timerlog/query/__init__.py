"""SQL over messages: DuckDB reads a data directory that a broker is using, in a process of its own.

``python -m timerlog.query`` takes one job from its standard input and writes one frame: ``worker``. The tables that a
query sees are in ``tables``, their columns in ``columns``, DuckDB's part in ``engine``.
"""
