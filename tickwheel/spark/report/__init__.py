"""Delivery analytics: how late messages were, how they were acked, what failed and what is to come, as Parquet
tables, a page and a summary.

Spark's executors read the events of the logs (``reading``), turn them into one row for each message and group
(``journeys``) and aggregate these (``latency``, ``attempts``, ``slowest``, ``forecast``, ``letters``, ``herds``:
functions from DataFrame to DataFrame). ``build`` runs them and holds only their answers, which are small;
``page``, ``charts`` and ``summary`` show them, and ``output`` writes a report whole or not at all.
"""
