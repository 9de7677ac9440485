"""Message tables: messages in a table of the user's own, delivered at their time. After Vitess's messaging.

From the bottom up: ``settings`` (the comment), ``backoff`` and ``candidates`` (pure), ``schema`` (the table itself),
``statements`` (the SQL of looking, claiming, acking, purging), ``table`` (what users hold), ``hub`` (who delivers).
"""
