"""Keys with values, inboxes and outboxes in an SQL database: what must be at once, and what may be a moment later.

Run: python examples/outbox_keys.py (needs SQLAlchemy: pip install 'tickwheel[sql]')
"""

import tempfile

import anyio
import sqlalchemy as sa

from tickwheel.outbox import Account, Increment, KeySpace

orders = sa.Table("orders", sa.MetaData(), sa.Column("number", sa.Integer), sa.Column("euros", sa.Integer))


def pay(space: KeySpace, number: int, euros: int, *, card_works: bool = True) -> None:
    """One transaction: the order, its state, a message to the mailer, and updates that may come later."""
    key = f"orders/berlin/{number}"
    with space.database.begin() as connection:
        connection.execute(sa.insert(orders).values(number=number, euros=euros))
        space.put(connection, key, b"paid")
        space.send(connection, "mailer", f"thanks for order {number}".encode(), sender=key)
        # All customers would wait for each other if each transaction locked these rows until its end.
        space.execute(connection, Increment("turnover", euros), sender=key)
        for prefix in space.prefixes_of(key):
            space.execute(connection, Account(prefix, count=1, size_bytes=len(b"paid")), sender=key)
        if not card_works:
            raise ValueError(f"order {number}: the card was declined")


def mail(space: KeySpace, *, printer_works: bool = True) -> list[bytes]:
    """Reaps the mailer's inbox: the commit deletes the messages, and an error brings them back."""
    with space.database.begin() as connection:
        letters = [message.value for message in space.reap(connection, "mailer", max_results=10)]
        if not printer_works:
            raise OSError(f"the printer is on fire, {len(letters)} letters stay in the inbox")
        return letters


async def work(space: KeySpace) -> None:
    """Dispatcher and executor, until there is nothing left to do."""
    async with space.dispatcher(), space.executor():
        with anyio.fail_after(30):
            while (now := space.stats()).deliverable_messages or now.executable_messages:
                await anyio.sleep(0.01)


async def main(url: str) -> None:
    """Pays three orders, one of them in vain; then mails, and mends a counter."""
    space = KeySpace(url, "shop").create()
    with space.database.begin() as connection:
        orders.create(connection)
        space.put(connection, "turnover", b"unknown")  # which is no number
    pay(space, 17, 30)
    pay(space, 18, 12)
    try:
        pay(space, 19, 99, card_works=False)
    except ValueError as error:
        print(f"{error}, so nothing of it is there")
    waiting = space.stats()
    print(
        f"in the outboxes: {waiting.deliverable_messages} messages, {waiting.executable_messages} operations"
    )
    await work(space)

    try:
        mail(space, printer_works=False)
    except OSError as error:
        print(error)
    print("mailed:", b", ".join(mail(space)).decode())

    with space.database.begin() as connection:
        stored = space.accounted(connection, "orders/berlin/")
        print(f"orders/berlin/: {stored.count} keys, {stored.size_bytes} bytes")
        for one in space.failed(connection):
            print(f"set aside: {one.operation} ({one.error_code})")
        space.put(connection, "turnover", b"0")
        print("retried:", space.retry_failed(connection))
    await work(space)
    with space.database.begin() as connection:
        turnover = space.get(connection, "turnover")
        print("turnover:", turnover.decode() if turnover else None)
        print("keys:", [key.decode() for key, _ in space.scan(connection, *space.prefix_range("orders/"))])
    space.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(main, f"sqlite:///{directory}/shop.db")
