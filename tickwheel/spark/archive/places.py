"""Where an archive reads: in the broker's data directory, or by Arrow Flight. Which of the two, is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa

from tickwheel import sync
from tickwheel.arrow.archive_table import (
    SCHEMA,
    Counts,
    Passed,
    Piece,
    Wanted,
    add_counts,
    count_messages,
    parts_of,
    read_pieces,
    topic_names,
)
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.network import OUTLINE, Flights
from tickwheel.arrow.outline import Outline
from tickwheel.arrow.places import describe_log
from timerlog.readers.describe import Offline

Read: TypeAlias = Literal["in place", "flight"]
"""How an archive reads."""
IN_PLACE: Final = "in place"
BY_FLIGHT: Final = "flight"


class Place(Protocol):
    """One of the two. Tasks get a copy."""

    @property
    def read(self) -> Read:
        """Which of the two."""

    @property
    def topics(self) -> list[str]:
        """The names of all topics, as users gave them, in order."""

    def parts(self, wanted: Wanted, rows: int, *, are_counts: bool) -> Sequence[Any]:
        """What one task looks at, each of at most so many rows of the MessageTable. ``are_counts``: for ``count``, else
        for ``pieces``. Raises ``SourceError``, Forbidden."""

    def count(self, part: Any, wanted: Wanted) -> Counts:
        """How many messages would be taken. Raises ``StoreError``, ``SourceError``."""

    def pieces(self, part: Any, wanted: Wanted, passed: Passed) -> Iterator[Piece]:
        """The rows to be archived. Raises ``StoreError``, ``SourceError``."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The broker's, which driver and tasks see under the same name."""

    offline: Offline

    read: Read = IN_PLACE

    @property
    def topics(self) -> list[str]:
        """See `Place`."""
        return sorted(set(topic_names(self.offline.description.topics).values()))

    def parts(self, wanted: Wanted, rows: int, *, are_counts: bool) -> Sequence[Any]:
        """See `Place`."""
        return parts_of(self.offline, rows)

    def count(self, part: tuple[int, int], wanted: Wanted) -> Counts:
        """See `Place`."""
        return count_messages(self.offline, range(*part), wanted)

    def pieces(self, part: tuple[int, int], wanted: Wanted, passed: Passed) -> Iterator[Piece]:
        """See `Place`."""
        return read_pieces(self.offline, range(*part), wanted, passed)


@dataclass(frozen=True, slots=True)
class Network:
    """A `tickwheel flight`. Parts are tickets, which say what is wanted but for ``without``."""

    flights: Flights
    topics: list[str]

    read: Read = BY_FLIGHT

    def parts(self, wanted: Wanted, rows: int, *, are_counts: bool) -> Sequence[Any]:
        """See `Place`."""
        planned = self.flights.plan(
            {
                "table": "archive_sizes" if are_counts else "archive",
                "done_before_ms": wanted.done_before_ms,
                "states": wanted.states,
                "topics": wanted.topics,
                "rows_per_partition": rows,
            }
        )
        return planned.tickets

    def count(self, part: bytes, wanted: Wanted) -> Counts:
        """See `Place`."""
        counts: Counts = {}
        for batch in self.flights.read(part):
            add_counts(counts, batch, wanted)
        return counts

    def pieces(self, part: bytes, wanted: Wanted, passed: Passed) -> Iterator[Piece]:
        """See `Place`. A stream that did not come to its end raises ``SourceError``."""
        has_ended = False
        for batch, told in self.flights.chunks(part):
            if told is not None:
                _add(passed, msgspec.json.decode(told, type=Passed))
                has_ended = True
            elif batch.num_rows:
                yield from _piece(batch, wanted, passed)
        if not has_ended:
            raise SourceError(
                f"What {self.flights.url} sent for the archive has no end.", advice="Run it again."
            )


def _add(passed: Passed, more: Passed) -> None:
    passed.meant += more.meant
    passed.vanished += more.vanished
    passed.unreadable += more.unreadable


def _piece(batch: Any, wanted: Wanted, passed: Passed) -> Iterator[Piece]:
    """A batch has rows of one topic and one day."""
    topic, day = batch.column("topic")[0].as_py(), batch.column("day")[0].as_py()
    rows = batch.select(SCHEMA.names)
    if len(wanted.without):
        kept = np.flatnonzero(~np.isin(rows.column("id").to_numpy(), wanted.without))
        passed.meant -= rows.num_rows - len(kept)
        rows = rows.take(pa.array(kept))
    if rows.num_rows:
        yield Piece(topic, day, rows)


def find_place(
    client: sync.Client,
    now_ms: int,
    *,
    source: str | Path | None = None,
    read: Read | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> Place:
    """``source``: the broker's data directory, where it is mounted elsewhere than the broker says. ``read``: how it is
    read, whatever is seen; None: it is tried. Raises ``SourceError``, and what the broker says."""
    if read not in (None, *get_args(Read)):
        raise SourceError(f"read is {read!r}: use 'flight', 'in place', or leave it out.")
    if read == BY_FLIGHT and source is not None:
        raise SourceError(
            "source names a directory, and it is to be read by Arrow Flight.",
            advice="Give one of them, or none.",
        )
    told = client.log_place()
    flight_url = client.flight_url
    if read != BY_FLIGHT:
        try:
            directory = Path(source if source is not None else told.directory)
            return Directory(describe_log(directory, told.log_id, now_ms))
        except SourceError:
            if source is not None or read == IN_PLACE or not flight_url:
                raise
    if not flight_url:
        raise SourceError(
            f"The broker at {client.url} has no Arrow Flight.",
            advice="Start it with `tickwheel serve --flight`, or set flight_advertise where it runs.",
        )
    flights = Flights(flight_url, token_file, ca_file)
    outline = flights.act(OUTLINE, {}, Outline)
    if outline.log_id != told.log_id:
        raise SourceError(
            f"{flight_url} reads the log {outline.log_id}, and the broker at {client.url} has {told.log_id}.",
            advice="Look at flight_advertise of the broker.",
        )
    names = {outline.parents.get(name, name) for name in outline.topics}
    return Network(flights, sorted(names))
