"""A process that consumes a message table until it is killed: each message's effect and its ack share a transaction."""

from __future__ import annotations

import os

import sqlalchemy as sa
import trio

from tickwheel.outbox import DatabaseUnavailable, LeaseLost, MessageTable

TABLE = "jobs"
EFFECTS = sa.Table(
    "effects", sa.MetaData(), sa.Column("job", sa.BigInteger), sa.Column("process", sa.BigInteger, index=True)
)


PROGRAM = """
import sys
from tests.support.outbox.message_consumer import main
main(sys.argv[1], int(sys.argv[2]))
"""


async def consume(table: MessageTable, process: int) -> None:
    """Does the work of each message once."""
    async with table.stream() as stream:
        async for message in stream:
            effect = sa.insert(EFFECTS).values(job=message["job"], process=process)
            try:
                await trio.to_thread.run_sync(do, table, effect, message)
            except (LeaseLost, DatabaseUnavailable):
                continue  # somebody else has it, or it comes again


def do(table: MessageTable, effect: sa.Insert, message: object) -> None:
    """The effect and the ack, or neither."""
    with table.database.begin() as connection:
        connection.execute(effect)
        message.ack_in(connection)  # type: ignore[attr-defined]


def main(url: str, process: int) -> None:
    """All of it."""
    os.write(1, b"ready")
    with MessageTable(url, TABLE).database as database:
        trio.run(consume, MessageTable(database, TABLE), process)
