"""What the demonstration shows: a live board on a terminal, plain lines elsewhere, and the summary at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from tickwheel.protocol.readable import format_bytes
from tickwheel_cli.demo.flights import Flight
from tickwheel_cli.demo.ledger import GroupBook, Ledger, Summary
from tickwheel_cli.demo.story import clock, local_time
from tickwheel_cli.shared.bars import bar

_MINUTE_MS = 60_000
_CANCELLED_SHOWN_MS = 90 * _MINUTE_MS
_NEXT_ROWS = 9
_DEPARTED_ROWS = 6
_ROWS = (
    ("delivered", "delivered"),
    ("duplicates", "duplicates"),
    ("missing", "missing"),
    ("cancelled, yet delivered", "cancelled_but_delivered"),
    ("early", "early"),
)
_LATENESS_ROWS = (
    ("earliest after due time", "earliest_ms"),
    ("lateness p50", "lateness_p50_ms"),
    ("lateness p99", "lateness_p99_ms"),
    ("lateness max", "lateness_max_ms"),
)
_MUST_BE_ZERO = {"duplicates", "missing", "cancelled_but_delivered", "early"}


# -- the board of a day -----------------------------------------------------------------------------------


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


# -- figures under the live displays ----------------------------------------------------------------------


def given_line(ledger: Ledger) -> Text:
    """`737 scheduled · 412 rescheduled · 3 cancelled`."""
    scheduled = len(ledger.promised_ms)
    return Text.assemble(
        (f"{scheduled:,}", "bold"),
        " scheduled · ",
        (f"{ledger.rescheduled:,}", "bold"),
        " rescheduled · ",
        (f"{scheduled - ledger.expected():,}", "bold"),
        " cancelled",
    )


def lateness_text(book: GroupBook) -> str:
    """`p50 0.6 ms  p99 1.9 ms  max 3.0 ms` of the latest arrivals, or nothing yet."""
    lateness_ms = book.recent_lateness_ms()
    if not len(lateness_ms):
        return ""
    p50, p99, top = np.percentile(lateness_ms, [50, 99, 100])
    return f"p50 {p50:.1f} ms  p99 {p99:.1f} ms  max {top:.1f} ms"


def group_table(ledger: Ledger) -> Table:
    """A row for each group: delivered of expected, and lateness."""
    table = Table.grid(
        Column(style="bold cyan"), Column(justify="right"), Column(style="dim"), padding=(0, 2, 0, 0)
    )
    for name, book in ledger.books.items():
        table.add_row(
            name, f"{book.count:,} of {ledger.expected():,} delivered", f"late {lateness_text(book)}"
        )
    return table


# -- while it goes on -------------------------------------------------------------------------------------


def scheduled_line(done: int, total: int, seconds: float) -> str:
    """`scheduled 737 of 737 departures, 61,000/s, each safe on disk`."""
    return f"scheduled {done:,} of {total:,} departures, {done / seconds:,.0f}/s, each safe on disk"


class View:
    """What the replay tells its display. `now_ms` is the time in the story. This one shows nothing: for `--json`."""

    def begin(self) -> None:
        """The replay starts."""

    def scheduled(self, done: int, total: int, seconds: float) -> None:
        """So many messages are on the broker's disk, after so long."""

    def departed(self, indexes: NDArray[np.int64]) -> None:
        """These messages arrived at the board's group."""

    def refresh(self, now_ms: int, ledger: Ledger) -> None:
        """Some time went by."""

    def end(self) -> None:
        """The replay is over."""


class LiveView(View):
    """Common to the live displays: a region of the terminal that is drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def begin(self) -> None:
        """Take over the region of the terminal."""
        self._live.start()

    def scheduled(self, done: int, total: int, seconds: float) -> None:
        """Show how far the scheduling is."""
        self._live.update(Text(scheduled_line(done, total, seconds)), refresh=True)

    def refresh(self, now_ms: int, ledger: Ledger) -> None:
        """Draw everything again."""
        self._live.update(self.picture(now_ms, ledger), refresh=True)

    def end(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def picture(self, now_ms: int, ledger: Ledger) -> RenderableType:
        """What is drawn."""
        raise NotImplementedError


class LiveDay(LiveView):
    """The departure board of a day."""

    def __init__(self, console: Console, board: DayBoard, speed: float) -> None:
        super().__init__(console)
        self._board = board
        self._speed = speed

    def departed(self, indexes: NDArray[np.int64]) -> None:
        """Move flights from the upper to the lower table."""
        for index in indexes:
            self._board.depart(int(index))

    def picture(self, now_ms: int, ledger: Ledger) -> RenderableType:
        """Clock, next departures, latest departures, figures."""
        now = local_time(now_ms)
        title = Table.grid("", Column(justify="right"), expand=True)
        title.add_row(
            Text(f"Departures from New York, {now:%A %-d %B %Y}", "bold"),
            Text(f"{now:%H:%M} {now.tzname()}  {self._speed:,.0f}x", "bold yellow"),
        )
        board = self._board
        latest = board.departed[: -_DEPARTED_ROWS - 1 : -1]
        return Group(
            title,
            Text(""),
            flight_table(board, board.next_departures(now_ms, _NEXT_ROWS), "Next", _NEXT_ROWS),
            Text(""),
            flight_table(board, latest, "Departed", _DEPARTED_ROWS),
            Text(""),
            given_line(ledger),
            group_table(ledger),
        )


class LiveYear(LiveView):
    """A bar for each month of the year."""

    def __init__(self, console: Console, months: NDArray[np.int64]) -> None:
        """`months[i]` is the month, 0 to 11, in which message i is due."""
        super().__init__(console)
        self._months = months
        self._departed = np.zeros(12, np.int64)
        self._width = max(20, min(60, console.width - 34))

    def departed(self, indexes: NDArray[np.int64]) -> None:
        """Count a batch into its months."""
        self._departed += np.bincount(self._months[indexes], minlength=12)

    def picture(self, now_ms: int, ledger: Ledger) -> RenderableType:
        """Clock, bars, figures."""
        now = local_time(now_ms)
        columns = (Column(style="bold"), Column(width=self._width), Column(justify="right"))
        table = Table.grid(*columns, padding=(0, 2, 0, 0))
        totals = np.bincount(self._months[~ledger.cancelled], minlength=12)
        for month in range(12):
            done, total = int(self._departed[month]), int(totals[month])
            table.add_row(
                f"{now.replace(day=1, month=month + 1):%B}",
                Text(bar(done, total, self._width), "cyan"),
                f"{done:,} of {total:,}",
            )
        return Group(
            Text.assemble(
                ("Departures from New York in 2013  ", "bold"), (f"{now:%-d %B %H:%M}", "bold yellow")
            ),
            Text(""),
            table,
            Text(""),
            given_line(ledger),
            group_table(ledger),
        )


class PlainView(View):
    """One line for each stretch of the story that is over, hours of a day or months of a year."""

    def __init__(self, console: Console, start_ms: int, *, by_month: bool) -> None:
        """`start_ms` is where the story begins."""
        self._console = console
        self._format = "%B" if by_month else "%a %H:00"
        self._label = self._label_at(start_ms)
        self._counted = 0
        self._ledger: Ledger | None = None

    def _label_at(self, story_ms: int) -> str:
        return local_time(story_ms).strftime(self._format)

    def scheduled(self, done: int, total: int, seconds: float) -> None:
        """One line when all is scheduled."""
        if done == total:
            self._console.print(scheduled_line(done, total, seconds))

    def refresh(self, now_ms: int, ledger: Ledger) -> None:
        """Print the line of a stretch when it is over."""
        self._ledger = ledger
        label = self._label_at(now_ms)
        if label != self._label:
            self._print_line(ledger)
            self._label = label

    def end(self) -> None:
        """Print the line of the stretch that the story ended in."""
        if self._ledger is not None:
            self._print_line(self._ledger)

    def _print_line(self, ledger: Ledger) -> None:
        """Nothing is printed for a stretch in which nothing happened."""
        book = next(iter(ledger.books.values()))
        departed, self._counted = book.count - self._counted, book.count
        if departed:
            figures = f"{departed:>6,} departed, {self._counted:>7,} of {ledger.expected():,} so far"
            self._console.print(f"{self._label:<10}{figures}, late {lateness_text(book)}")


# -- at the end -------------------------------------------------------------------------------------------


def summary_view(summary: Summary) -> RenderableType:
    """The summary as two small tables and a verdict."""
    return Group(
        Text(f"\n{summary.what}, {summary.speed:,.0f} times as fast", "bold"),
        _given(summary),
        Text(""),
        _got(summary),
        Text(""),
        _verdict(summary),
    )


def _given(summary: Summary) -> Table:
    table = Table.grid("", Column(justify="right"), Column(style="dim"), padding=(0, 2, 0, 0))
    table.add_row(
        "scheduled",
        f"{summary.scheduled:,}",
        f"in {summary.schedule_seconds:.2f} s, {summary.schedule_rate:,.0f}/s",
    )
    late = (
        f"{summary.changes_too_late:,} more came too late, as the broker said"
        if summary.changes_too_late
        else ""
    )
    table.add_row("rescheduled", f"{summary.rescheduled:,}", "")
    table.add_row("cancelled", f"{summary.cancelled:,}", late)
    table.add_row("replayed in", f"{summary.replay_seconds:.1f} s", "")
    table.add_row(
        "on disk a message",
        f"{summary.bytes_a_message:,.0f} bytes",
        f"of which the body is {summary.body_bytes / summary.scheduled:,.0f}",
    )
    table.add_row(
        "log at the end",
        format_bytes(summary.log_bytes),
        f"with deliveries and acks of {len(summary.groups)} groups; "
        f"all files {format_bytes(summary.disk_bytes)}, reserved space included",
    )
    return table


def _got(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("group", header_style="dim")
    for name in summary.groups:
        table.add_column(name, justify="right")
    for label, attribute in _ROWS:
        counts = [getattr(audit, attribute) for audit in summary.groups.values()]
        bad = attribute in _MUST_BE_ZERO
        table.add_row(label, *(Text(f"{n:,}", "bold red" if bad and n else "") for n in counts))
    for label, attribute in _LATENESS_ROWS:
        table.add_row(label, *(f"{getattr(audit, attribute):.2f} ms" for audit in summary.groups.values()))
    return table


def _verdict(summary: Summary) -> Text:
    if summary.passed:
        return Text("Nothing lost, nothing twice, nothing early.", "bold green")
    return Text("FAILED: see the figures above that are not zero.", "bold red")
