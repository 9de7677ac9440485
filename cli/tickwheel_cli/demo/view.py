"""What the demonstration shows: a live board on a terminal, plain lines elsewhere, and the summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from tickwheel.protocol.readable import format_bytes
from tickwheel_cli.demo.flights import MINUTE_MS, Flight
from tickwheel_cli.demo.ledger import GroupBook, Ledger, Summary
from tickwheel_cli.demo.story import clock, local_time
from tickwheel_cli.shared.bars import bar

_CANCELLED_SHOWN_MS = 90 * MINUTE_MS
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


@dataclass(frozen=True)
class DayBoard:
    """Flights of one day at one moment: when each leaves, and whether it has left, is what the ledger knows."""

    flights: Sequence[Flight]
    airports: Mapping[str, str]
    ledger: Ledger

    def departed(self) -> list[int]:
        """Indexes of the flights whose messages arrived, latest last."""
        return list(dict.fromkeys(self.ledger.first_book.indexes.tolist()))

    def expected_ms(self, index: int) -> int:
        """The planned time of departure, or the time that the flight was rescheduled to."""
        flight = self.flights[index]
        if self.ledger.moved[index] and flight.departed_ms is not None:
            return flight.departed_ms
        return flight.scheduled_ms

    def next_departures(self, now_ms: int, limit: int) -> list[int]:
        """Indexes in the order of departure. A cancelled flight stays for a while after its planned time."""
        left, cancelled = set(self.departed()), self.ledger.cancelled
        ahead = [(self.expected_ms(index), index) for index in range(len(self.flights)) if index not in left]
        return [
            index
            for expected_ms, index in sorted(ahead)
            if not cancelled[index] or expected_ms + _CANCELLED_SHOWN_MS > now_ms
        ][:limit]

    def cells(self, index: int) -> tuple[str, str, str, str, str, Text]:
        """Planned time, expected time (when another), flight, destination, from, remark."""
        flight = self.flights[index]
        planned, expected = clock(flight.scheduled_ms), clock(self.expected_ms(index))
        airport = self.airports.get(flight.destination)
        return (
            planned,
            "" if planned == expected else expected,
            flight.name,
            f"{airport} ({flight.destination})" if airport else flight.destination,
            flight.origin,
            self.remark(index),
        )

    def remark(self, index: int) -> Text:
        """`on time`, `32 min late`, `4 min early`, `cancelled`."""
        if self.ledger.cancelled[index]:
            return Text("cancelled", "bold red")
        late_min = round((self.expected_ms(index) - self.flights[index].scheduled_ms) / MINUTE_MS)
        if late_min > 0:
            return Text(f"{late_min} min late", "yellow" if late_min < 60 else "dark_orange")
        return Text(f"{-late_min} min early" if late_min < 0 else "on time", "green")

    def table(self, indexes: Sequence[int], title: str, rows: int) -> Table:
        """A table of exactly `rows` flights, so that a live display does not jump."""
        table = Table(
            box=None,
            title=title,
            title_justify="left",
            title_style="bold yellow",
            pad_edge=False,
            expand=True,
        )
        for heading, width in (("Time", 5), ("New", 5), ("Flight", 8)):
            table.add_column(heading, width=width, no_wrap=True)
        table.add_column("To", ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column("From", width=4, no_wrap=True)
        table.add_column("Remark", width=14, no_wrap=True)
        for index in indexes[:rows]:
            table.add_row(*self.cells(index))
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

    def refresh(self, now_ms: int, ledger: Ledger) -> None:
        """Some time went by."""

    def end(self) -> None:
        """The replay is over."""


Part: TypeAlias = Callable[[int, Ledger], Sequence[RenderableType]]
"""What a live view shows above the figures, at a time of the story."""


class LiveView(View):
    """A region of the terminal that is drawn again and again: a part for the day or the year, and the figures."""

    def __init__(self, console: Console, part: Part) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._part = part

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
        return Group(*self._part(now_ms, ledger), Text(""), given_line(ledger), group_table(ledger))


def day_part(flights: Sequence[Flight], airports: Mapping[str, str], speed: float) -> Part:
    """Clock, next departures, latest departures."""

    def part(now_ms: int, ledger: Ledger) -> Sequence[RenderableType]:
        now, board = local_time(now_ms), DayBoard(flights, airports, ledger)
        title = Table.grid("", Column(justify="right"), expand=True)
        title.add_row(
            Text(f"Departures from New York, {now:%A %-d %B %Y}", "bold"),
            Text(f"{now:%H:%M} {now.tzname()}  {speed:,.0f}x", "bold yellow"),
        )
        following = board.table(board.next_departures(now_ms, _NEXT_ROWS), "Next", _NEXT_ROWS)
        latest = board.table(board.departed()[: -_DEPARTED_ROWS - 1 : -1], "Departed", _DEPARTED_ROWS)
        return title, Text(""), following, Text(""), latest

    return part


def year_part(months: NDArray[np.int64], console_width: int) -> Part:
    """Clock, and a bar for each month. `months[i]` is the month, 0 to 11, in which message i is due."""
    width, planned = max(20, min(60, console_width - 34)), np.bincount(months, minlength=12)

    def part(now_ms: int, ledger: Ledger) -> Sequence[RenderableType]:
        now = local_time(now_ms)
        columns = (Column(style="bold"), Column(width=width), Column(justify="right"))
        table = Table.grid(*columns, padding=(0, 2, 0, 0))
        departed = np.bincount(months[ledger.first_book.indexes], minlength=12).tolist()
        totals = (planned - np.bincount(months[ledger.cancelled], minlength=12)).tolist()
        for month, (done, total) in enumerate(zip(departed, totals, strict=True), 1):
            name, filled = f"{now.replace(day=1, month=month):%B}", Text(bar(done, total, width), "cyan")
            table.add_row(name, filled, f"{done:,} of {total:,}")
        title = Text.assemble(
            ("Departures from New York in 2013  ", "bold"), (f"{now:%-d %B %H:%M}", "bold yellow")
        )
        return title, Text(""), table

    return part


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
        book = ledger.first_book
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
