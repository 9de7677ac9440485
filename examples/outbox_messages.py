"""Pays an order and schedules its e-mail in one transaction of your own database; sends the e-mail exactly once.

Run: python examples/outbox_messages.py [sqlite:///app.db | postgresql://... | mariadb://...]
"""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import anyio
import sqlalchemy as sa

from tickwheel import outbox

DATA = sa.MetaData()
orders = sa.Table(
    "shop_orders", DATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("paid", sa.Boolean)
)
letters = sa.Table(
    "shop_letters", DATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.String(200))
)


def pay(table: outbox.MessageTable, order: int, *, fails: bool = False) -> None:
    """Order and message are both there after the commit, or neither is."""
    with table.database.begin() as connection:
        connection.execute(orders.insert().values(id=order, paid=True))
        table.send(connection, message=f"thanks for order {order}")
        table.send(connection, message=f"how was order {order}?", delay=timedelta(days=14), priority=80)
        if fails:
            raise RuntimeError("the card was declined")


def write_letter(table: outbox.MessageTable, message: outbox.Message) -> None:
    """The effect and the ack are one transaction: whatever crashes when, the letter is written once."""
    with table.database.begin() as connection:
        connection.execute(letters.insert().values(text=message["message"]))
        message.ack_in(connection)


async def main(url: str) -> None:
    """Two payments, one of which fails; then everything that is due is worked off."""
    with outbox.MessageTable(url, "shop_mails") as table:
        DATA.create_all(table.database.engine)
        table.create()
        pay(table, 17)
        try:
            pay(table, 18, fails=True)
        except RuntimeError as error:
            print(f"order 18: {error}, so there is no message either")

        async with table.stream() as stream:
            message = await anext(stream)
            await anyio.to_thread.run_sync(write_letter, table, message)
            print(f"letter: {message['message']} (delivery {message.epoch})")
            try:
                write_letter(table, message)
            except outbox.LeaseLost:
                print("a second time: refused, nothing was written")

        with table.database.begin() as connection:
            # Plain SQL does as well as the methods: the table is yours.
            connection.execute(
                sa.update(table.table)
                .where(table.table.c.time_acked.is_(None))
                .values(time_next=0, priority=10)
            )
        async with table.stream() as stream:
            message = await anext(stream)
            print(f"14 days earlier: {message['message']}")
            await message.ack()
        count = table.stats()
        print(f"acked: {count.acked}, waiting: {count.waiting}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path(directory, 'app.db')}")
