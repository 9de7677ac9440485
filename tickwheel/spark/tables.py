"""Where the data source reads: in the files of data directories, or over the network from a broker. Both have the same
methods, and each part, which a task gets, says all that is needed to read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tickwheel.arrow.columns import COLUMNS
from tickwheel.arrow.errors import DataError
from tickwheel.arrow.event_table import (
    EventsPart,
    Offset,
    all_events,
    current_offset,
    read_event_batches,
    split_events,
    starting_offset,
    wanted_types,
)
from tickwheel.arrow.message_table import MessagesPart, read_messages, split_messages
from tickwheel.arrow.network import FIRST_OFFSET, LAST_OFFSET, Flights
from tickwheel.arrow.options import ReadOptions, as_command
from tickwheel.arrow.places import describe as describe_place
from tickwheel.arrow.predicates import Predicate, condition
from tickwheel.protocol.errors import TickwheelError
from timerlog.readers.describe import Offline


@dataclass(frozen=True, slots=True)
class FilesPart:
    """A part of the tables of a directory. ``offline``: the directory as it was then; None: the tables know it."""

    part: MessagesPart | EventsPart
    offline: Offline | None = None


@dataclass(frozen=True, slots=True)
class TicketPart:
    """A part that a `tickwheel flight` reads; None: there is nothing to read."""

    ticket: bytes | None


Part: TypeAlias = FilesPart | TicketPart


class Tables(Protocol):
    """The tables of what the options name. Each method raises `DataError`."""

    def columns(self) -> dict[str, str]:
        """Names and Spark types."""

    def look(self) -> None:
        """Looks at what there is now, for `parts`. Spark copies a reader before it asks for its parts."""

    def parts(self, predicates: list[Predicate]) -> list[Part]:
        """Of a table, at least one: without any Spark would ask for one of its own making."""

    def first_offset(self) -> Offset:
        """Where a new query of events begins."""

    def last_offset(self, start: Offset, target: Offset | None, limit_rows: int | None) -> Offset:
        """How far the next batch of events goes from ``start``, at most to ``target``."""

    def parts_between(self, start: Offset, end: Offset) -> list[Part]:
        """Of the events between two offsets."""

    def batches(self, part: Any, predicates: list[Predicate]) -> Iterator[Any]:
        """The record batches of one of the parts, in a task: these tables are there as they were when the parts were
        made."""


def tables_of(options: ReadOptions) -> Tables:
    """Where the options say that tables are. Raises `DataError`."""
    return Files(options) if options.url is None else Network(options)


def describe(options: ReadOptions) -> list[Offline]:
    """The directories as they are now. Raises ``SourceError``."""
    now_ms = time.time_ns() // 1_000_000
    return [
        describe_place(directory, now_ms, committed=options.committed) for directory in options.directories
    ]


class Files:
    """Tables in directories that driver and workers see under the same names."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._found: list[Offline] = []

    def columns(self) -> dict[str, str]:
        """See `Tables`."""
        return self._options.columns

    def look(self) -> None:
        """See `Tables`. The directories are described once, so that all tasks see the same."""
        self._found = describe(self._options)

    def parts(self, predicates: list[Predicate]) -> list[Part]:
        """See `Tables`."""
        found = self._found
        if self._options.table == "events":
            first = found[0].first_position
            return [FilesPart(one) for one in all_events(found) or [EventsPart(0, first, first)]]
        # Of the machine that plans, which on local[*] is the one that reads.
        cores = len(os.sched_getaffinity(0))
        messages = split_messages(found, self._options.rows_per_partition, predicates, cores)
        return [FilesPart(one) for one in messages or [MessagesPart(0, 1, 1)]]

    def first_offset(self) -> Offset:
        """See `Tables`."""
        return starting_offset(self._options, describe(self._options))

    def last_offset(self, start: Offset, target: Offset | None, limit_rows: int | None) -> Offset:
        """See `Tables`."""
        return current_offset(self._options, describe(self._options), start, target, limit_rows)

    def parts_between(self, start: Offset, end: Offset) -> list[Part]:
        """See `Tables`."""
        found = describe(self._options)
        return [
            FilesPart(one, found[one.directory]) for one in split_events(found, start, end, self._options)
        ]

    def batches(self, part: FilesPart, predicates: list[Predicate]) -> Iterator[Any]:
        """See `Tables`. Raises ``StoreError``."""
        offline = part.offline or self._found[part.part.directory]
        columns = list(self._options.columns)
        if isinstance(part.part, MessagesPart):
            return read_messages(offline, part.part, columns, predicates)
        return read_event_batches(offline, part.part, columns, predicates, wanted_types(self._options))


class Network:
    """Tables of a broker, wherever driver and workers run."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._command = as_command(options)
        with _with_codes():
            self._flights = Flights.of_broker(
                options.url, token_file=options.token_file, ca_file=options.ca_file
            )

    def columns(self) -> dict[str, str]:
        """See `Tables`. Those that may be read."""
        kinds = COLUMNS[self._options.table]
        with _with_codes():
            return {name: kinds[name] for name in self._flights.schema(self._command).names}

    def look(self) -> None:
        """See `Tables`. The tickets say when they were made."""

    def parts(self, predicates: list[Predicate]) -> list[Part]:
        """See `Tables`."""
        return self._planned(filters=[condition(one) for one in predicates])

    def first_offset(self) -> Offset:
        """See `Tables`."""
        return self._offset(FIRST_OFFSET)

    def last_offset(self, start: Offset, target: Offset | None, limit_rows: int | None) -> Offset:
        """See `Tables`."""
        return self._offset(LAST_OFFSET, start=start, end=target, limit_rows=limit_rows)

    def parts_between(self, start: Offset, end: Offset) -> list[Part]:
        """See `Tables`."""
        return self._planned(start=start, end=end)

    def _offset(self, action: str, **more: Any) -> Offset:
        with _with_codes():
            return self._flights.offset(action, self._command | more)

    def _planned(self, **more: Any) -> list[Part]:
        with _with_codes():
            planned = self._flights.plan(self._command | more)
        tickets: list[bytes | None] = [*planned.tickets]
        return [TicketPart(ticket) for ticket in tickets or [None]]

    def batches(self, part: TicketPart, predicates: list[Predicate]) -> Iterator[Any]:
        """See `Tables`. The ticket says what each row must meet. Raises `DataError`."""
        if part.ticket is not None:
            with _with_codes():
                yield from self._flights.read(part.ticket)


@contextmanager
def _with_codes() -> Iterator[None]:
    """Raises errors whose codes stand in their texts, for Spark hands on nothing else."""
    try:
        yield
    except DataError:
        raise
    except TickwheelError as error:
        found = DataError(error.message, advice=error.advice)
        found.code = error.code
        raise found from None
