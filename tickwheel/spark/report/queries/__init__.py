"""The questions of a report, as functions from DataFrame to DataFrame; nothing runs here.

``reading`` gives the events of the logs, ``journeys`` one row for each message and group. The others aggregate these:
``latency``, ``attempts``, ``slowest``, ``forecast``.
"""
