"""The caller's transaction as a Session of SQLAlchemy's, or as a connection of the driver's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from tests.support.outbox.messages import execute, fast
from tickwheel.outbox import Database, KeySpace, LeaseLost, MessageTable, NotInTransaction, Queue
from tickwheel.protocol.errors import BadArgument

NUMBERS = count()


class Base(DeclarativeBase):
    """The user's classes."""


class Order(Base):
    """An order."""

    __tablename__ = "session_orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture
def table(database: Database) -> Iterator[MessageTable]:
    """A message table whose messages refer to orders."""
    Base.metadata.create_all(database.engine)
    made = MessageTable(database, f"sessions{next(NUMBERS)}")
    made.create([sa.Column("order_id", sa.Integer)], fast())
    if database.kind != "sqlite":
        execute(
            made, f"alter table {made.name} add foreign key (order_id) references {Order.__tablename__} (id)"
        )
    yield made
    made.drop()
    Base.metadata.drop_all(database.engine)


def orders(table: MessageTable) -> int:
    with table.database.reading() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(Order)).scalar_one()


def test_a_session_sends_changes_and_acks_in_its_transaction(table: MessageTable) -> None:
    engine = table.database.engine
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
        first = table.send(
            session, order_id=1
        )  # the order is flushed first, or the foreign key would not hold
        assert not session.new
        assert table.send_many(session, [{"order_id": 1}] * 3) == 3
    assert (orders(table), table.stats().due) == (1, 4)
    with Session(engine) as session:
        session.add(Order(id=2))
        table.send(session, order_id=2)
        assert table.cancel(session, [first]) == 1
        assert table.reschedule(session, range(100), delay_ms=3_600_000) == 4
        assert table.ack(session, range(100)) == 4
        session.rollback()
    assert (orders(table), table.stats().due) == (1, 4)
    with Session(engine) as session, session.begin():
        with pytest.raises(ZeroDivisionError), session.begin_nested():  # noqa: PT012
            session.add(Order(id=3))
            table.send(session, order_id=3)
            raise ZeroDivisionError
        table.send(session, order_id=1)
    assert (orders(table), table.stats().due) == (1, 5)
    batch = table.claim()
    with Session(engine) as session, session.begin():
        batch[0].ack_in(session)
    scoped = scoped_session(sessionmaker(engine))
    with pytest.raises(LeaseLost):
        batch.ack_in(scoped)
    scoped.rollback()
    table.send(scoped, order_id=1)
    scoped.commit()
    scoped.remove()
    assert (table.stats().acked, table.stats().due) == (1, 1)


def test_sessions_that_flush_by_themselves_or_not(table: MessageTable) -> None:
    engine = table.database.engine
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
        session.flush()
        with session.no_autoflush:
            session.add(Order(id=2))
            table.send(session, order_id=1)
            assert len(session.new) == 1

    def after(session: Session, _context: object) -> None:
        for one in session.new:
            table.send(session, order_id=one.id)

    sa.event.listen(Session, "after_flush", after)
    try:
        with Session(engine) as session, session.begin():
            session.add_all([Order(id=3), Order(id=4)])
    finally:
        sa.event.remove(Session, "after_flush", after)
    assert (orders(table), table.stats().due) == (4, 3)


def test_what_is_no_transaction_is_refused(table: MessageTable) -> None:
    engine = table.database.engine
    for wrong in (None, "sqlite://", engine, sessionmaker(engine), object()):
        with pytest.raises(BadArgument, match="The connection is a") as caught:
            table.send(wrong, order_id=1)  # type: ignore[arg-type]
        assert "Session" in caught.value.advice
    with Session() as unbound, pytest.raises(BadArgument, match="engines") as caught:
        table.send(unbound, order_id=1)
    assert "bind_arguments" in caught.value.advice
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        with pytest.raises(NotInTransaction, match="session") as refused:  # it has been rolled back
            table.send(session, order_id=7)
        assert "roll back" in refused.value.advice
    with Session(engine, autobegin=False) as session, pytest.raises(NotInTransaction):
        table.send(session, order_id=7)
    each = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(each) as session, pytest.raises(NotInTransaction):
        table.send(session, order_id=7)
    if table.database.kind != "sqlite":
        other = sa.create_engine("sqlite://")
        with other.begin() as connection, pytest.raises(BadArgument, match="to sqlite"):
            table.send(connection, order_id=7)
        other.dispose()
    assert table.stats().due == 0


def test_queues_and_key_spaces_take_sessions_too(database: Database) -> None:
    with Queue(database, f"jobs{next(NUMBERS)}") as queue:
        queue.create()
        space = KeySpace(database, f"keys{next(NUMBERS)}")
        space.create()
        with Session(database.engine) as session, session.begin():
            queue.put(session, b"one")
            space.put(session, "a", b"1")
        with Session(database.engine) as session:
            queue.put(session, b"two")
            space.put(session, "a", b"2")
            session.rollback()
        batch = queue.claim()
        with Session(database.engine) as session, session.begin():
            assert space.get(session, "a") == b"1"
            assert batch.bodies() == [b"one"]
            batch.ack_in(session)
        assert queue.stats().ready == queue.stats().leased == 0


def test_connections_of_the_driver(table: MessageTable) -> None:
    engine = table.database.engine
    pooled = engine.raw_connection()
    raw: Any = pooled.driver_connection
    cursor = raw.cursor()
    cursor.execute("insert into session_orders (id) values (5)")
    first = table.send(raw, order_id=5)
    assert isinstance(first, int)
    assert table.send_many(raw, [{"order_id": 5}] * 3) == 3
    assert table.stats().due == 0
    raw.rollback()
    assert (orders(table), table.stats().due) == (0, 0)
    cursor.execute("insert into session_orders (id) values (6)")
    second = table.send(raw, order_id=6)
    table.send(raw, order_id=6)
    assert table.cancel(raw, range(second + 1, second + 2_000)) == 1
    with pytest.raises(BadArgument, match="no_such"):
        table.send(raw, no_such=6)
    raw.commit()
    assert (orders(table), table.stats().due) == (1, 1)
    (message,) = table.claim()
    message.ack_in(raw)
    assert table.stats().acked == 0
    raw.commit()
    assert table.stats().acked == 1
    if table.database.kind == "sqlite":
        raw.isolation_level = None
    elif table.database.kind == "postgresql":
        raw.autocommit = True
    else:
        raw.autocommit(True)
    with pytest.raises(NotInTransaction):
        table.send(raw, order_id=6)
    cursor.close()
    pooled.invalidate()
    pooled.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_connection_of_another_driver_is_refused(table: MessageTable) -> None:
    import sqlite3

    other = sqlite3.connect(":memory:")
    with pytest.raises(BadArgument, match="sqlite3, and the table was opened with psycopg"):
        table.send(other, order_id=1)
    other.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_asynchronous_sessions_pass_theirs_on(table: MessageTable) -> None:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asynchronous layer needs it")
    pytest.importorskip("aiosqlite", reason="one of the drivers that need an AsyncEngine")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def main() -> None:
        engine = create_async_engine(table.database.engine.url.set(drivername="sqlite+aiosqlite"))
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(BadArgument, match="AsyncSession") as caught:
                table.send(session, order_id=1)  # type: ignore[arg-type]
            assert "run_sync" in caught.value.advice
            session.add(Order(id=1))
            await session.run_sync(lambda one: table.send(one, order_id=1))
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda one: table.send(one, order_id=1))
            await session.rollback()
        async with engine.begin() as connection:
            with pytest.raises(BadArgument, match="AsyncConnection"):
                table.send(connection, order_id=1)  # type: ignore[arg-type]
            await connection.run_sync(lambda one: table.send(one, order_id=1))
        await engine.dispose()

    anyio.run(main, backend="asyncio")
    assert (orders(table), table.stats().due) == (1, 2)
