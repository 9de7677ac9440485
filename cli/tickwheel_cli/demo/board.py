"""The departure board of one day: which flight leaves next, what changed, what has left. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rich.table import Table
from rich.text import Text

from tickwheel_cli.demo.flights import Flight
from tickwheel_cli.demo.timeline import clock

_MINUTE_MS = 60_000
_CANCELLED_SHOWN_MS = 90 * _MINUTE_MS


class Status(Enum):
    """What a board says about a flight."""

    PLANNED = "planned"
    CANCELLED = "cancelled"
    DEPARTED = "departed"


@dataclass
class DayBoard:
    """Flights of one day with their expected time, which changes while the day goes on."""

    flights: Sequence[Flight]
    airports: Mapping[str, str]
    expected_ms: list[int] = field(init=False)
    status: list[Status] = field(init=False)
    departed: list[int] = field(default_factory=list)  # indexes, latest last

    def __post_init__(self) -> None:
        self.expected_ms = [flight.scheduled_ms for flight in self.flights]
        self.status = [Status.PLANNED] * len(self.flights)

    def reschedule(self, index: int, expected_ms: int) -> None:
        """A flight leaves at another time than planned."""
        self.expected_ms[index] = expected_ms

    def cancel(self, index: int) -> None:
        """A flight will not leave."""
        self.status[index] = Status.CANCELLED

    def depart(self, index: int) -> None:
        """The message of a flight arrived: it has left."""
        if self.status[index] is not Status.DEPARTED:
            self.status[index] = Status.DEPARTED
            self.departed.append(index)

    def next_departures(self, now_ms: int, limit: int) -> list[int]:
        """Indexes in the order of departure. A cancelled flight stays for a while after its planned time."""
        shown = [
            index
            for index, status in enumerate(self.status)
            if status is Status.PLANNED
            or (status is Status.CANCELLED and self.expected_ms[index] + _CANCELLED_SHOWN_MS > now_ms)
        ]
        return sorted(shown, key=lambda index: (self.expected_ms[index], index))[:limit]

    def destination(self, flight: Flight) -> str:
        """The airport's name, or its code where the data has no name."""
        name = self.airports.get(flight.destination)
        return f"{name} ({flight.destination})" if name else flight.destination

    def remark(self, index: int) -> Text:
        """`on time`, `32 min late`, `4 min early`, `cancelled`."""
        if self.status[index] is Status.CANCELLED:
            return Text("cancelled", "bold red")
        late_min = round((self.expected_ms[index] - self.flights[index].scheduled_ms) / _MINUTE_MS)
        if late_min > 0:
            return Text(f"{late_min} min late", "yellow" if late_min < 60 else "dark_orange")
        return Text(f"{-late_min} min early" if late_min < 0 else "on time", "green")


def flight_cells(board: DayBoard, index: int) -> tuple[str, str, str, str, str, Text]:
    """Planned time, expected time (when another), flight, destination, from, remark."""
    flight = board.flights[index]
    planned, expected = clock(flight.scheduled_ms), clock(board.expected_ms[index])
    return (
        planned,
        "" if planned == expected else expected,
        flight.name,
        board.destination(flight),
        flight.origin,
        board.remark(index),
    )


def flight_table(board: DayBoard, indexes: Sequence[int], title: str, rows: int) -> Table:
    """A table of exactly `rows` flights, so that a live display does not jump."""
    table = Table(
        box=None, title=title, title_justify="left", title_style="bold yellow", pad_edge=False, expand=True
    )
    for heading, width in (("Time", 5), ("New", 5), ("Flight", 8)):
        table.add_column(heading, width=width, no_wrap=True)
    table.add_column("To", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("From", width=4, no_wrap=True)
    table.add_column("Remark", width=14, no_wrap=True)
    for index in indexes[:rows]:
        table.add_row(*flight_cells(board, index))
    for _ in range(rows - len(indexes[:rows])):
        table.add_row("", "", "", "", "", "")
    return table
