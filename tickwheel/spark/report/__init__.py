"""Delivery analytics: how late messages were, how they were acked, what failed and what is to come, as Parquet
tables, a page and a summary.

Spark's executors read the logs and answer the questions of ``queries``. ``build`` asks them and holds only the answers,
which are small; ``page`` (with its template ``page.html.jinja``), ``charts`` and ``summary`` show them, and ``output``
writes a report whole or not at all.
"""
