"""Pays an order in a database of your own; the relay takes its message to the broker, and its effect is done once.

Run: python examples/outbox_relay.py [sqlite:///shop.db | postgresql://... | mariadb://...]
"""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import anyio
import sqlalchemy as sa

import tickwheel
from tickwheel import outbox
from tickwheel.outbox import inbox

DATA = sa.MetaData()
orders = sa.Table(
    "relay_orders", DATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("paid", sa.Boolean)
)
parcels = sa.Table(
    "relay_parcels", DATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.String(200))
)


def pay(table: outbox.MessageTable, order: int, *, fails: bool = False) -> None:
    """The shop knows its database only: no broker is asked here, and none need run."""
    with table.database.begin() as connection:
        connection.execute(orders.insert().values(id=order, paid=True))
        table.send(connection, message=f"ship order {order}")
        table.send(connection, message=f"how was order {order}?", delay=timedelta(days=14))
        if fails:
            raise RuntimeError("the card was declined")


async def ship(message: tickwheel.Message, engine: sa.Engine) -> bool:
    """The parcel and the mark that this message is done are one transaction; the ack comes after it."""
    with engine.connect() as connection:
        async with inbox.process(message, connection) as first:
            if first:
                connection.execute(parcels.insert().values(text=message.body.decode()))
    return first


async def main(url: str, directory: str) -> None:
    """Two payments, one of which fails; then the relay and the warehouse do their work."""
    with outbox.MessageTable(url, "relay_messages") as table:
        engine = table.database.engine
        DATA.create_all(engine)
        table.create()
        outbox.Inbox(table.database).create()
        pay(table, 17)
        try:
            pay(table, 18, fails=True)
        except RuntimeError as error:
            print(f"order 18: {error}, so there is no message either")

        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            relay = outbox.Relay(table.database, "relay_messages", broker.url, "shop")
            print("moved to the broker:", await relay.run_once())
            print("moved again:", await relay.run_once())
            for message in await client.browse("shop"):
                print(f"{message.key}: {message.body.decode()} ({message.state})")

            async with client.subscribe("shop", group="warehouse") as subscription:
                message = await anext(subscription)
                print("first delivery, a parcel is made:", await ship(message, engine))
                print("delivered again, a parcel is made:", await ship(message, engine))

            async with anyio.create_task_group() as tasks:  # from now on each commit wakes the relay
                tasks.start_soon(relay.run)
                await anyio.to_thread.run_sync(pay, table, 19)
                async with client.subscribe("shop", group="warehouse") as subscription:
                    await ship(await anext(subscription), engine)
                tasks.cancel_scope.cancel()
        with engine.connect() as connection:
            texts = connection.execute(sa.select(parcels.c.text).order_by(parcels.c.id)).scalars()
            print("parcels:", ", ".join(texts))
        DATA.drop_all(engine)
        table.drop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        where = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path(folder) / 'shop.db'}"
        anyio.run(main, where, str(Path(folder) / "broker"))
