"""Celery with Tickwheel, Redis and RabbitMQ as its broker, in one run.

`brokers` (what Celery is told of each server), `app` (the tasks), `workers` (the program ``celery`` in a process of its
own), `figures` (what is measured with one of them) and `comparison` (all of them, and the table).
"""
