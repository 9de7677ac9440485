"""Consumers for tests to kill: `python -m tests.outbox.queue_worker URL QUEUE LEASE_MS`.

For each line that it reads it forks one, which says its process id when it is ready. It ends all with its input.

The effect of each message is a row of ``effects``, in the transaction that deletes the message. The table takes the
same number twice: it is the test that counts.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial

import anyio
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tickwheel import outbox
from tickwheel.outbox import LeaseLost

EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer, nullable=False))


def handle(batch: outbox.QueueBatch, connection: Connection) -> None:
    """The effects of a batch."""
    connection.execute(sa.insert(EFFECTS), [{"number": int(body)} for body in batch.bodies()])
    batch.ack_in(connection)


async def consume(url: str, name: str, lease_ms: int) -> None:
    """Consumes until it is killed, or until a message says that it was the last."""
    queue = outbox.Queue(url, name)
    async with queue.consume(batch=5, lease=timedelta(milliseconds=lease_ms)) as consumer:
        os.write(1, b"%d\n" % os.getpid())  # in one piece: print writes the end of the line by itself
        async for batch in consumer:
            try:
                await queue.database.transaction(partial(handle, batch))
            except LeaseLost:
                await batch.nack()  # the others of the batch
            except (outbox.DatabaseUnavailable, outbox.DatabaseBusy):
                continue  # whether it was done or not, the queue knows


def main(url: str, name: str, lease_ms: int) -> None:
    """Forks after the imports, which take longer than most consumers live."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children = []
    for _line in sys.stdin:
        child = os.fork()
        if not child:
            anyio.run(consume, url, name, lease_ms, backend="trio")
        children.append(child)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
