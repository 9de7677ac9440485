"""Plans what a reader asks for, and reads the parts: all of `tickwheel flight` but Arrow Flight itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tickwheel.arrow.columns import COLUMNS, arrow_schema
from tickwheel.arrow.errors import PositionLost, SourceError
from tickwheel.arrow.event_table import (
    EventsPart,
    Offset,
    all_events,
    current_offset,
    offset_after_bytes,
    scan_events,
    split_events,
    starting_offset,
    wanted_types,
)
from tickwheel.arrow.message_table import BATCH_BYTES, CHUNK_ROWS, count_rows, scan_messages, split_messages
from tickwheel.arrow.options import ReadOptions, chosen_columns
from tickwheel.arrow.outline import Outline, outline_of
from tickwheel.arrow.predicates import Predicate, parse_conditions
from tickwheel.errors import Forbidden, ShuttingDown, TickwheelError
from tickwheel.protocol.grants import Granted
from tickwheel_flight.archives import (
    archive_parts,
    archive_schema,
    check_archivist,
    rows_of,
    scan_archive,
)
from tickwheel_flight.commands import ArchiveCommand, Command
from tickwheel_flight.directory import Directory
from tickwheel_flight.rights import Sight
from tickwheel_flight.snapshots import Snapshots
from tickwheel_flight.tickets import BadTicket, Ticket, make_ticket, open_ticket
from tickwheel_flight.turns import Left, Turns
from timerlog.errors import DamagedLog, PositionGone, StoreError
from timerlog.readers.describe import Offline
from timerlog.readers.snapshot import Snapshot

MAX_STREAMS: Final = 256
"""Streams at a time. A reader that stands still holds a batch in memory."""
MAX_PARTS: Final = 10_000
"""Of one reading."""
_FEW_STREAMS: Final = 2
"""Up to so many streams have batches of the full size."""
_LEAST_ROWS: Final = 1_024
_LEAST_BATCH_BYTES: Final = 1 << 20
_EVENT_BYTES: Final = 128
"""Of an event in the log, about."""
_LEAST_STEP_BYTES: Final = 256 << 10
_END: Final = object()
"""No batch is left."""
ASK_AGAIN_S: Final = 10.0
"""So often a stream asks whether its reader may still read."""

Judge = Callable[[bool], Granted]
"""What the reader may do; whether the stream has begun already. Raises TickwheelError."""


class TooManyStreams(TickwheelError):
    """As many streams as are allowed are being read at this moment."""

    code = "too_many_streams"
    advice = "Read fewer parts at a time, or try again when other readers are done."
    retryable = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reading consists of. ``tickets``: of its parts, in order."""

    schema: Any
    tickets: list[bytes]


class Reading:
    """Used by many threads at once."""

    def __init__(
        self, directory: Directory, turns: Turns, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._turns = turns
        self._now_s = now_s
        self._snapshots = Snapshots(now_s)
        self._streams = 0
        self._counting = threading.Lock()
        self._is_stopping = False

    def stop(self) -> None:
        """Streams end at their next batch, and no other begins."""
        self._is_stopping = True

    def schema(self, command: Command, granted: Granted) -> Any:
        """The columns that the reader gets. Raises ``SourceError``, Forbidden."""
        _check_any(granted)
        options = command.options(self._directory.path)
        _, offline = self._directory.now(is_committed=command.committed)
        return _schema(options, _columns(command, options, granted, offline))

    def plan(self, command: Command, granted: Granted) -> Plan:
        """Raises ``SourceError``, ``PositionLost``, Forbidden."""
        _check_any(granted)
        options = command.options(self._directory.path)
        moment, offline = self._directory.now(is_committed=command.committed)
        columns = _columns(command, options, granted, offline)
        tickets = [
            make_ticket(
                moment,
                command.table,
                part,
                columns=columns,
                filters=command.filters,
                events=tuple(command.events),
            )
            for part in _parts(command, options, offline)
        ]
        return Plan(_schema(options, columns), tickets)

    def plan_archive(self, command: ArchiveCommand, granted: Granted) -> Plan:
        """Raises ``SourceError``, Forbidden."""
        check_archivist(granted, command.topics)
        moment, offline = self._directory.now()
        rows, parts = rows_of(command), archive_parts(command, offline)
        _check_number(len(parts), command.rows_per_partition)
        tickets = [make_ticket(moment, "messages", part, archive=rows) for part in parts]
        return Plan(archive_schema(rows), tickets)

    def first_offset(self, command: Command, granted: Granted) -> Offset:
        """Where a new query of events begins. Raises ``SourceError``, ``PositionLost``, Forbidden."""
        options, offline = self._seen(command, granted)
        return starting_offset(options, [offline])

    def last_offset(self, command: Command, granted: Granted) -> Offset:
        """How far the next batch of events goes from ``start`` of the command, at most to its ``end``. Raises
        ``SourceError``, ``PositionLost``, Forbidden."""
        options, offline = self._seen(command, granted)
        start, end, rows = command.start or {}, command.end, command.limit_rows
        with _positions():
            if rows is not None and not granted.may_everywhere("query"):
                # Where a number of events ends would tell how many there are in topics that he may not query.
                limit_bytes = max(rows * _EVENT_BYTES, _LEAST_STEP_BYTES)
                return offset_after_bytes(options, offline, start, end, limit_bytes)
            return current_offset(options, [offline], start, end, rows)

    def outline(self, command: Command, granted: Granted) -> Outline:
        """The topics that the reader may see, and their groups. Raises ``SourceError``, Forbidden."""
        _, offline = self._seen(command, granted)
        return outline_of(offline, Sight(granted, offline, ()).visible())

    def _seen(self, command: Command, granted: Granted) -> tuple[ReadOptions, Offline]:
        _check_any(granted)
        options = command.options(self._directory.path)
        _, offline = self._directory.now(is_committed=command.committed)
        return options, offline

    def stream(
        self, packed: bytes, judge: Judge, has_left: Callable[[], bool], name: str = ""
    ) -> tuple[Any, Iterator[Any]]:
        """The schema and the record batches of a ticket. ``name``: the same for all streams of a reader. Raises
        ``BadTicket``, ``SourceError``, ``PositionLost``, Forbidden; the batches, when they are asked for, the same,
        `TooManyStreams` and ShuttingDown."""
        ticket, granted = open_ticket(packed), judge(False)
        _check_any(granted)
        if ticket.archive is not None:
            if ticket.table != "messages":
                raise BadTicket
            check_archivist(granted, ticket.archive.topics)
        offline = self._directory.then(ticket.moment)
        table = chosen_columns(ticket.columns, ticket.table)
        filters = parse_conditions(_as_json(ticket.filters), COLUMNS[ticket.table])
        sight = Sight(granted, offline, filters)
        columns = list(sight.columns(ticket.columns, are_chosen=True))
        if self._is_stopping:
            raise ShuttingDown
        predicates = [*filters, *sight.predicates]
        if ticket.table == "events":
            offline.check_position(ticket.first)
            offline.check_position(ticket.end)
        schema = arrow_schema({name: table[name] for name in columns})
        if ticket.archive is not None:
            schema = archive_schema(ticket.archive)
        return schema, self._batches(
            ticket, offline, (columns, predicates), granted, _Reader(judge, has_left, name)
        )

    def _batches(
        self,
        ticket: Ticket,
        offline: Offline,
        wanted: tuple[list[str], list[Predicate]],
        granted: Granted,
        reader: _Reader,
    ) -> Iterator[Any]:
        """One batch a turn, or one part of the table in which no row passes: who reads slowly, stands still, or looks
        for what is not there, keeps nobody from a turn."""
        # Not before: of a stream that was never asked for a batch nothing is given back.
        rows = self._enter()
        asked_s = self._now_s()
        try:
            with self._snapshots.borrow(ticket.moment, offline, reader.has_left, reader.name) as opened:
                batches = _scan(ticket, offline, opened.snapshot, wanted, rows)
                while True:
                    if self._is_stopping:
                        raise ShuttingDown
                    if reader.has_left():
                        return
                    if self._now_s() - asked_s >= ASK_AGAIN_S:
                        asked_s = self._now_s()
                        _check_same(granted, reader.judge(True))
                    with self._turns.turn(reader.has_left), self._snapshots.working(opened), _positions():
                        batch = next(batches, _END)
                    if batch is _END:
                        return
                    if batch is not None:
                        yield batch
        except Left:
            return
        finally:
            with self._counting:
                self._streams -= 1

    def _enter(self) -> int:
        """Counts a stream that begins. So many rows its batches have: fewer among many, for each may stand still and
        keep a batch in memory. Raises `TooManyStreams`."""
        with self._counting:
            if self._streams >= MAX_STREAMS:
                raise TooManyStreams
            self._streams += 1
            return max(min(CHUNK_ROWS, _FEW_STREAMS * CHUNK_ROWS // self._streams), _LEAST_ROWS)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Who is at the other end of a stream."""

    judge: Judge
    has_left: Callable[[], bool]
    name: str


def _columns(command: Command, options: ReadOptions, granted: Granted, offline: Offline) -> tuple[str, ...]:
    sight = Sight(granted, offline, options.filters)
    return sight.columns(tuple(options.columns), are_chosen=bool(command.columns))


def _schema(options: ReadOptions, columns: tuple[str, ...]) -> Any:
    return arrow_schema({name: options.columns[name] for name in columns})


def _parts(command: Command, options: ReadOptions, offline: Offline) -> list[tuple[int, int]]:
    """First and end of each: ids of messages, or positions."""
    if command.table == "messages":
        cores = len(os.sched_getaffinity(0))
        rows = options.rows_per_partition
        if rows is not None:
            _check_number(count_rows([offline], list(options.filters)) // rows, rows)
        messages = split_messages([offline], rows, list(options.filters), cores)
        return [(one.first_id, one.end_id) for one in messages]
    if command.start is None:
        events = all_events([offline])
    else:
        events = split_events([offline], command.start, command.end or command.start, options)
    return [(one.start, one.end) for one in events]


def _check_number(parts: int, rows: int) -> None:
    if parts > MAX_PARTS:
        raise SourceError(
            f"With {rows} rows a part there would be more than {MAX_PARTS} parts.",
            advice="Ask for larger parts (rowsPerPartition).",
        )


def _scan(
    ticket: Ticket,
    offline: Offline,
    snapshot: Snapshot,
    wanted: tuple[list[str], list[Predicate]],
    chunk_rows: int,
) -> Iterator[Any]:
    columns, predicates = wanted
    if ticket.table == "messages":
        # Nothing that is not committed, whoever has made the ticket.
        ids = range(max(ticket.first, 1), min(ticket.end, offline.description.next_id))
        if ticket.archive is not None:
            return scan_archive(snapshot, ids, ticket.archive)
        batch_bytes = max(BATCH_BYTES * chunk_rows // CHUNK_ROWS, _LEAST_BATCH_BYTES)
        return scan_messages(
            snapshot, ids, columns, predicates, chunk_rows=chunk_rows, batch_bytes=batch_bytes
        )
    part = EventsPart(0, ticket.first, ticket.end)
    options = ReadOptions((), "events", {}, events=ticket.events or None)
    return scan_events(snapshot, part, columns, predicates, wanted_types(options))


@contextmanager
def _positions() -> Iterator[None]:
    """Positions come from readers: where none begins a record, the log looks as if it were damaged."""
    try:
        yield
    except DamagedLog as error:
        raise PositionLost(
            f"{str(error).capitalize()}, or no record begins at that position.",
            advice="Ask for the table anew (GetFlightInfo). If it says so again, look into the broker's log.",
        ) from None


def _as_json(filters: list[list[Any]]) -> str:
    """Raises ``BadTicket`` for what no command can have held."""
    try:
        return msgspec.json.encode(filters).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        raise BadTicket from None


def _check_any(granted: Granted) -> None:
    """Raises Forbidden for a token that may query no topic at all."""
    if granted.grants is not None and not any(grant.permission == "query" for grant in granted.grants):
        raise Forbidden("The token may not query any topic.", advice="Have it granted: query:TOPIC.")


def _check_same(before: Granted, now: Granted) -> None:
    if before.grants != now.grants:
        raise Forbidden(
            "What the token may do has changed since this stream began.", advice="Ask for the table anew."
        )


def readable(error: StoreError) -> TickwheelError:
    """What a file of the directory said, for a reader."""
    if isinstance(error, PositionGone):
        return PositionLost(f"{str(error).capitalize()}.")
    found = SourceError(f"{str(error).capitalize()}.", advice="The log of the broker's machine says more.")
    found.code = error.code
    return found
