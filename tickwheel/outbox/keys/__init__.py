"""A transactional space of ordered keys that have inboxes and outboxes, in the user's own SQL database.

This is CockroachDB's early design of message queues on keys, which was never built there. ``space`` is the front;
``data`` and ``queues`` are what the user does inside a transaction, ``leases`` says which worker has which range of
keys, ``steps`` is one batch of a worker, and ``service`` runs batches until it is cancelled.
"""
