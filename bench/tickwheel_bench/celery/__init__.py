"""Celery with a broker of Tickwheel, and with another one beside: ``python -m tickwheel_bench.celery``.

``app`` (what the worker runs), ``servers`` (the brokers) and ``comparison`` (the figures).
"""
