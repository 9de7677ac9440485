"""How the replay shows itself: a live board on a terminal, plain lines elsewhere, for a day or for a year."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tickwheel_cli.demo.board import DayBoard, flight_table
from tickwheel_cli.demo.counters import given_line, group_table, lateness_text
from tickwheel_cli.demo.ledger import Ledger
from tickwheel_cli.demo.timeline import local_time
from tickwheel_cli.looking.wheel_picture import bar

_NEXT_ROWS = 9
_DEPARTED_ROWS = 6


def scheduled_line(done: int, total: int, seconds: float) -> str:
    """`scheduled 737 of 737 departures, 61,000/s, each safe on disk`."""
    return f"scheduled {done:,} of {total:,} departures, {done / seconds:,.0f}/s, each safe on disk"


class View(Protocol):
    """What the replay tells its display. `now_ms` is the time in the story."""

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


class SilentView:
    """Shows nothing: for `--json`."""

    def begin(self) -> None:
        """Nothing to do."""

    def scheduled(self, done: int, total: int, seconds: float) -> None:
        """Nothing to do."""

    def departed(self, indexes: NDArray[np.int64]) -> None:
        """Nothing to do."""

    def refresh(self, now_ms: int, ledger: Ledger) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """Nothing to do."""


class LiveView:
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
        title = Table.grid(expand=True)
        title.add_column()
        title.add_column(justify="right")
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
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold")
        table.add_column(width=self._width)
        table.add_column(justify="right")
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


class PlainView:
    """One line for each stretch of the story that is over: hours of a day, months of a year."""

    def __init__(self, console: Console, start_ms: int, *, by_month: bool) -> None:
        """`start_ms` is where the story begins."""
        self._console = console
        self._format = "%B" if by_month else "%a %H:00"
        self._label = self._label_at(start_ms)
        self._counted = 0
        self._ledger: Ledger | None = None

    def begin(self) -> None:
        """Nothing to prepare."""

    def _label_at(self, story_ms: int) -> str:
        return local_time(story_ms).strftime(self._format)

    def scheduled(self, done: int, total: int, seconds: float) -> None:
        """One line when all is scheduled."""
        if done == total:
            self._console.print(scheduled_line(done, total, seconds))

    def departed(self, indexes: NDArray[np.int64]) -> None:
        """Nothing to do: the lines count what is in the ledger."""

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
