"""Message tables: messages in a table of the user's own, delivered at their time. After Vitess's messaging.

From the bottom up: ``settings`` (the comment), ``backoff`` and ``candidates`` (pure), ``schema`` (the table itself),
``statements`` (the SQL of looking, claiming, acking, purging), ``form`` (the table as it is now, and its SQL),
``claiming`` (what can be read), ``acks``, ``delivered`` (messages and batches), ``stream`` and ``hub`` (delivery to
subscribers), ``table`` (what users hold).
"""
