"""``MessageTable``: a table of the user's database whose rows are messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from tickwheel.client.checks import listed, shown, whole
from tickwheel.client.times import Delay, Moment, moment_ms, wait_ms
from tickwheel.client.waiting.backoff import chance
from tickwheel.outbox.database import now_ns, savepoint
from tickwheel.outbox.errors import BadTable
from tickwheel.outbox.json_bodies import NOTHING, json_row
from tickwheel.outbox.messages import schema as schemas
from tickwheel.outbox.messages.backoff import NS_A_MS, due_ns
from tickwheel.outbox.messages.candidates import RESERVED_SHARE, Candidates
from tickwheel.outbox.messages.claiming import claim_readable, look
from tickwheel.outbox.messages.delivered import ClaimedBatch
from tickwheel.outbox.messages.form import TableForm
from tickwheel.outbox.messages.purging import purge_some
from tickwheel.outbox.messages.settings import MAX_BATCH_SIZE, MessageSettings
from tickwheel.outbox.messages.values import values_refused
from tickwheel.outbox.sequence import SEQUENCE
from tickwheel.outbox.transactions import AnyTransaction, joined
from tickwheel.protocol.errors import BadArgument, BadTime

if TYPE_CHECKING:
    from tickwheel.outbox.messages.hub import Hub
    from tickwheel.outbox.messages.stream import Stream

MAX_CLAIM: Final = MAX_BATCH_SIZE


@dataclass(frozen=True, slots=True)
class TableStats:
    """What a message table holds. ``due``: may be delivered now. ``waiting``: for their time, or for an ack.
    ``oldest_due_ns``: since when the longest waiting one is due."""

    due: int
    waiting: int
    acked: int
    oldest_due_ns: int | None
    next_due_ns: int | None


class MessageTable(TableForm):
    """Messages in a table of the user's own, sent and acked in the user's own transactions.

    ``where``: a SQLAlchemy URL, an engine, or a ``Database``. The table is made by ``create`` (or by plain SQL with a
    comment as Vitess has it), or an existing one taken by ``adopt``; any number of processes may use it at once.
    Whatever is written to it with plain SQL counts as if it were done here.
    """

    # -- the table --

    def create(
        self,
        columns: Sequence[sa.Column[Any]] | None = None,
        settings: MessageSettings | None = None,
    ) -> MessageTable:
        """Makes the table unless it is there, with ``columns`` of the user's (default: ``message``, a text).

        A column named ``id`` replaces the default one, which counts up. Raises BadTable.
        """
        columns = (
            None
            if columns is None
            else listed(columns, "columns", "[sqlalchemy.Column('message', sqlalchemy.Text)]")
        )
        wrong = [one for one in columns or () if not isinstance(one, sa.Column)]
        if wrong:
            raise BadArgument(
                f"{shown(wrong[0])} is no column.",
                advice="columns=[sqlalchemy.Column('message', sqlalchemy.Text)]",
            )
        _check_settings(settings)
        made = schemas.definition(self.database.kind, self.name, settings or MessageSettings(), columns)
        self.database.run(lambda connection: schemas.create(self.database, connection, made))
        self.reload()
        missing = [one.name for one in columns or () if one.name not in self.table.c]
        if missing:
            raise BadTable(
                f"There is a table {self.name} already, without the columns {', '.join(missing)}.",
                advice="Add them with ALTER TABLE; who streams the table notices.",
            )
        return self

    def adopt(self, settings: MessageSettings | None = None) -> MessageTable:
        """Takes a table that is there: with ``settings`` they become its comment, without them it must have one that
        begins with ``vitess_message,`` or ``tickwheel_message,``. Raises TableMissing, BadTable."""
        _check_settings(settings)
        self.database.run(lambda connection: schemas.adopt(self.database, connection, self.name, settings))
        self.reload()
        return self

    def change_settings(self, **changes: Any) -> MessageSettings:
        """Changes some settings (fields of MessageSettings) for all users of the table, without an interruption."""
        try:
            settings = replace(self.settings, **changes)
        except TypeError as error:
            raise BadArgument(f"{error}.", advice="The fields of MessageSettings can be changed.") from None
        self.database.run(
            lambda connection: schemas.set_comment(self.database, connection, self.name, settings)
        )
        self.reload()
        return settings

    def drop(self) -> None:
        """Drops the table with all its messages."""
        self.database.run(lambda connection: schemas.drop(self.database, connection, self.name))
        self._loaded = None

    # -- sending --

    def send(
        self,
        connection: AnyTransaction,
        *,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        json: object = NOTHING,
        **values: Any,
    ) -> Any:
        """Inserts one message in the caller's transaction, and returns its id. It counts when that commits.

        ``connection``: a SQLAlchemy Connection or Session, Django's connection, or one of the database's driver.
        ``values``: the user's columns (and ``id`` if it does not count up). ``deliver_at``: an aware datetime or epoch
        ms; ``delay``: a timedelta; ``delay_ms``: milliseconds; none: now. ``priority``: lower goes first, usually 50.
        ``json``: what JSON can express, for the column ``message`` (or ``body``). A column ``content-type``, if there
        is one, says so.
        """
        row = self._row(values if json is NOTHING else json_row(self.table, values, json), priority)
        row.setdefault("time_next", self._due(deliver_at, delay, delay_ms))
        with joined(connection, self.database) as one, values_refused(self.name):
            made = one.execute(sa.insert(self.table).values(row)).inserted_primary_key
        if values.get("id") is not None:
            return values["id"]
        return None if made is None else made._mapping.get("id")

    def send_many(
        self,
        connection: AnyTransaction,
        rows: Iterable[Mapping[str, Any]],
        *,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
    ) -> int:
        """Inserts many messages in the caller's transaction: a mapping of columns each, which may hold ``time_next``
        (epoch ns) and ``priority`` of their own. All or, with an error, none of them. Returns how many."""
        due = self._due(deliver_at, delay, delay_ms)
        made: list[dict[str, Any]] = []
        for given in listed(rows, "rows", '[{"message": "..."}]'):
            if not isinstance(given, Mapping):
                raise BadArgument(
                    f"{shown(given)} is no row.",
                    advice='Each row is a mapping of columns: {"message": "..."}',
                )
            made.append(self._row(dict(given), priority))
        insert, count = sa.insert(self.table), len(made)
        with (
            joined(connection, self.database) as one,
            values_refused(self.name),
            savepoint(one) if count > 1 else nullcontext(),
        ):
            for names, alike in groupby(made, key=frozenset):  # in their order
                one.execute(insert if "time_next" in names else insert.values(time_next=due), [*alike])
        return count

    def _row(self, values: dict[str, Any], priority: int | None) -> dict[str, Any]:
        unknown = [
            name
            for name in values
            if not isinstance(name, str)
            or name not in self.table.c
            or name in ("epoch", "time_acked", SEQUENCE)
        ]
        if unknown:
            raise BadArgument(
                f"{self.name} has no column {', '.join(map(str, unknown))} for you to fill.",
                advice=f"Its columns are {', '.join(self.columns)}.",
            )
        row = self.values.stored(values)
        if priority is not None:
            row.setdefault("priority", self.values.number("priority", priority))
        return row

    def _due(self, deliver_at: Moment | None, delay: Delay | None, delay_ms: int | None) -> Any:
        given_ms = wait_ms(delay, delay_ms)
        if deliver_at is not None and given_ms is not None:
            raise BadTime("Both deliver_at and a delay were given.", advice="Give one of them.")
        if deliver_at is not None:
            return due_ns(0, moment_ms(deliver_at))
        clock = now_ns(self.database.kind)
        if given_ms is None:
            return clock
        due_ns(self.database.now_ns(), given_ms)  # refused before the database is asked
        return clock + given_ms * NS_A_MS

    # -- changing --

    def ack(self, connection: AnyTransaction, ids: Iterable[Hashable]) -> int:
        """Acks messages by id in the caller's transaction, held or not. Returns how many were not acked yet."""
        statements, some = self.statements, self.values.ids(ids)
        with joined(connection, self.database) as one, values_refused(self.name):
            return statements.ack(one, some, self.database.now_sql())

    def reschedule(
        self,
        connection: AnyTransaction,
        ids: Iterable[Hashable],
        *,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        epoch: int | None = None,
    ) -> int:
        """Gives messages that are not acked another time (default: now), and with them a priority or an epoch. Returns
        how many. A delivery that is on its way is not called back, but its ack does not count if ``epoch`` changed."""
        numbers = {"priority": priority, "epoch": epoch}
        values = {
            name: self.values.number(name, value) for name, value in numbers.items() if value is not None
        }
        values["time_next"] = self._due(deliver_at, delay, delay_ms)
        statements, some = self.statements, self.values.ids(ids)
        with joined(connection, self.database) as one, values_refused(self.name):
            return statements.reschedule(one, some, values)

    def cancel(self, connection: AnyTransaction, ids: Iterable[Hashable]) -> int:
        """Deletes messages that are not acked, in the caller's transaction. Returns how many."""
        statements, some = self.statements, self.values.ids(ids)
        with joined(connection, self.database) as one, values_refused(self.name):
            return statements.cancel(one, some)

    def purge(self) -> int:
        """Deletes acked messages that are older than ``purge_after``, in transactions of its own. A hub does this by
        itself. Returns how many."""
        total = 0
        while True:
            count = purge_some(self)
            total += count
            if count == 0:
                return total

    # -- receiving --

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        """Delivers to any number of subscribers in this process, in turn: ``async with table.hub() as hub: async with
        hub.subscribe() as stream: ...``"""
        from tickwheel.outbox.messages.hub import run_hub

        async with run_hub(self) as hub:
            yield hub

    @asynccontextmanager
    async def stream(self, batch_size: int | None = None) -> AsyncIterator[Stream]:
        """The messages as they become due: ``async with table.stream() as stream: async for message in stream: ...``"""
        async with self.hub() as hub, hub.subscribe(batch_size) as stream:
            yield stream

    def claim(self, limit: int | None = None) -> ClaimedBatch:
        """Up to ``limit`` (default: the table's ``batch_size``) messages that are due now, for code without an event
        loop; an empty batch when there are none: it does not wait. Raises BadArgument."""
        wanted = self.settings.batch_size if limit is None else limit
        wanted = whole(wanted, "limit", 1, MAX_CLAIM)
        # Each call begins elsewhere in the turns, or claims of one message each would never come to the reserved one.
        chosen = Candidates(chance.randrange(RESERVED_SHARE))
        found = look(self, wanted, asks_clock=True)
        chosen.replace(found.due, found.cut)
        return ClaimedBatch(self, claim_readable(self, chosen.take(wanted)))

    # -- looking --

    def stats(self) -> TableStats:
        """Counts of messages; reads the index of those that are open, and counts the rest."""
        t, now = self.table, self.database.now_sql()
        due = sa.and_(t.c.time_acked.is_(None), t.c.time_next <= now)
        later = sa.and_(t.c.time_acked.is_(None), t.c.time_next > now)
        counts = [sa.func.count(sa.case((one, 1))) for one in (due, later)]
        firsts = [sa.func.min(sa.case((one, t.c.time_next))) for one in (due, later)]
        with self.database.reading() as connection:
            row = connection.execute(sa.select(*counts, sa.func.count(t.c.time_acked), *firsts)).one()
        return TableStats(row[0], row[1], row[2], row[3], row[4])


def _check_settings(settings: object) -> None:
    if not isinstance(settings, MessageSettings | None):
        raise BadArgument(
            f"settings is {shown(settings)}.", advice="settings=outbox.MessageSettings(ack_wait_ms=30_000)"
        )
