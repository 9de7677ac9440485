"""Puts work into a queue in an SQL database together with an order, and works it off: each effect exactly once.

Run: python examples/outbox_queue.py (needs SQLAlchemy: pip install 'tickwheel[sql]')
"""

import tempfile
from datetime import timedelta

import anyio
import sqlalchemy as sa

from tickwheel import outbox

orders = sa.Table("orders", sa.MetaData(), sa.Column("number", sa.Integer))
invoices = sa.Table("invoices", sa.MetaData(), sa.Column("text", sa.String(50)))


def place(queue: outbox.Queue, number: int, *, can_pay: bool = True) -> None:
    """The order and the work that follows from it are committed together."""
    with queue.database.begin() as connection:
        connection.execute(sa.insert(orders).values(number=number))
        queue.put(connection, f"invoice for order {number}")
        if not can_pay:
            raise ValueError(f"order {number} cannot be paid")


def write_invoices(batch: outbox.QueueBatch, connection: sa.Connection) -> None:
    """The invoices, and that their messages are done, are committed together too."""
    connection.execute(sa.insert(invoices), [{"text": message.body.decode()} for message in batch])
    batch.ack_in(connection)


async def main(url: str) -> None:
    """A consumer that dies, and another one that takes over and does the rest."""
    queue = outbox.Queue(url, "invoices_to_write").create()
    with queue.database.begin() as connection:
        orders.create(connection)
        invoices.create(connection)
    for number in (1, 2, 3):
        place(queue, number)
    try:
        place(queue, 4, can_pay=False)
    except ValueError as error:
        print(f"{error}: nothing is in the queue for it")
    print("ready:", queue.stats().ready)

    # As a program would that claims a message and is killed.
    dead = queue.claim(1, lease=timedelta(milliseconds=300))
    print("leased to a program that dies:", dead[0].body.decode())

    async with queue.consume(batch=2) as consumer:
        done = 0
        async for batch in consumer:
            await queue.database.transaction(
                lambda connection, batch=batch: write_invoices(batch, connection)
            )
            for message in batch:
                print(f"written at attempt {message.epoch}: {message.body.decode()}")
            done += len(batch)
            if done == 3:
                consumer.stop()

    try:
        dead.ack()
    except outbox.LeaseLost as error:
        print("the dead one comes back too late:", error.message)
    with queue.database.reading() as connection:
        print("invoices:", connection.execute(sa.select(sa.func.count()).select_from(invoices)).scalar_one())
    queue.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(main, f"sqlite:///{directory}/shop.db")
