"""The five services, each a part that works on one batch; the broker runs them as tasks (its ``services``).

1. ``EnqueueGet`` takes messages from the system topic once they are durable: it is the MessageTable in order of ids.
2. ``EnqueuePut`` links those that are due later on the wheel, and hands on what is due already.
3. ``DequeueGet`` turns the wheel, and hands on what became due.
4. ``DequeueGetMessage`` looks that up: it drops cancelled and superseded messages, and verifies checksums.
5. ``DequeuePutMessage`` logs and makes the move into the topic, exactly once.

What they hand to each other lies in ``batches``: 1 → 2, 2 → 4 and 3 → 4 a ``DueBatch``, 4 → 5 a ``ReadyBatch``. A batch
may wait between two services for as long as it likes, and a crash may lose it: what it held is in the log, and the next
start links it again. What is cancelled or rescheduled meanwhile is passed over by 4, and once more by 5: the row in the
MessageTable decides, in the same step that changes it. A step that finds the disk full (2 and 5) has done nothing, and
is given the same batch again.

``FillWheel`` links everything that waits, at a start and after the clock was set back: the wheel follows from the
tables.
"""
