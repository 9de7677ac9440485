"""A consumer for tests to kill.

The effect of each message is a row of ``effects``, in the transaction that deletes the message. The table takes the
same number twice: it is the test that counts.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial

import anyio
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tickwheel import outbox
from tickwheel.outbox import LeaseLost

EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer, nullable=False))

PROGRAM = """
import sys
from tests.outbox.queue_worker import main
main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def handle(batch: outbox.QueueBatch, connection: Connection) -> None:
    """The effects of a batch."""
    connection.execute(sa.insert(EFFECTS), [{"number": int(body)} for body in batch.bodies()])
    batch.ack_in(connection)


async def consume(url: str, name: str, lease_ms: int) -> None:
    """Consumes until it is killed, or until a message says that it was the last."""
    queue = outbox.Queue(url, name)
    async with queue.consume(batch=5, lease=timedelta(milliseconds=lease_ms)) as consumer:
        os.write(1, b"ready")
        async for batch in consumer:
            try:
                await queue.database.transaction(partial(handle, batch))
            except LeaseLost:
                await batch.nack()  # the others of the batch
            except (outbox.DatabaseUnavailable, outbox.DatabaseBusy):
                continue  # whether it was done or not, the queue knows


def main(url: str, name: str, lease_ms: int) -> None:
    """All of it."""
    anyio.run(consume, url, name, lease_ms, backend="trio")
