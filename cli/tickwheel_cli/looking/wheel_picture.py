"""The picture that `tickwheel wheel` draws: forecast bars, and a heat strip of occupied slots a level."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from tickwheel.protocol.readable import format_duration, noun
from tickwheel.stats import Forecast, Wheel, WheelLevel
from tickwheel_cli.shared.bars import bar
from tickwheel_cli.shared.times import format_moment

_HEAT = "▁▂▃▄▅▆▇█"
_EMPTY = "·"
_HEAT_STYLES = ("blue", "blue", "cyan", "cyan", "green", "yellow", "dark_orange", "red")
_SLOTS_A_LEVEL = 4096


def squeeze(heat: Sequence[int], width: int) -> list[int]:
    """Sums of as many neighbours, so that at most `width` numbers remain; nothing is lost."""
    together = -(-len(heat) // max(1, width))
    return [sum(heat[start : start + together]) for start in range(0, len(heat), together)]


def heat_strip(heat: Sequence[int], width: int) -> Text:
    """One character a group of slots, higher and warmer (logarithmic) the more timers are in it."""
    cells = squeeze(heat, width)
    ceiling = math.log1p(max(cells, default=0))
    strip = Text()
    for count in cells:
        if count <= 0:
            strip.append(_EMPTY, "dim")
            continue
        step = min(len(_HEAT) - 1, int(math.log1p(count) / ceiling * (len(_HEAT) - 1) + 0.5))
        strip.append(_HEAT[step], _HEAT_STYLES[step])
    return strip


def stretches(forecast: Sequence[Forecast]) -> list[tuple[str, int]]:
    """The broker counts what is due *before* each moment; this is what is due since the row above."""
    labels = [row.label if row.label == "later" else f"next {row.label}" for row in forecast]
    counts = [row.timers for row in forecast]
    since = [max(0, now - before) for now, before in zip(counts, [0, *counts], strict=False)]
    return list(zip(labels, since, strict=True))


def forecast_table(forecast: Sequence[Forecast], width: int) -> Table:
    """Label, number and bar of what becomes due in each stretch of time."""
    rows = stretches(forecast)
    largest = max((timers for _, timers in rows), default=0)
    text, number = Column(no_wrap=True), Column(justify="right", no_wrap=True)
    table = Table.grid(text, number, Column(no_wrap=True), padding=(0, 2, 0, 0))
    for label, timers in rows:
        table.add_row(label, f"{timers:,}", Text(bar(timers, largest, max(10, width - 34)), "cyan"))
    return table


def due_table(forecast: Sequence[Forecast]) -> Table:
    """All that is due within each time, messages and leases apart."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("due within", no_wrap=True)
    for name in ("until", "messages", "leases"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in forecast:
        counts = (f"{row.timers:,}" if one is None else f"{one:,}" for one in (row.messages, row.leases))
        table.add_row(row.label, format_moment(row.until_ms), *counts)
    return table


def level_table(levels: Sequence[WheelLevel], width: int) -> Table:
    """Each level of the wheel: its slots, how many are occupied, its timers, and where they are."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("slot", no_wrap=True)
    table.add_column("turn", no_wrap=True)
    table.add_column("occupied", justify="right", no_wrap=True)
    table.add_column("timers", justify="right", no_wrap=True)
    table.add_column("from now on →", no_wrap=True)
    for level in levels:
        table.add_row(
            format_duration(level.slot_ms),
            format_duration(level.slot_ms * _SLOTS_A_LEVEL),
            f"{level.slots_occupied:,}",
            f"{level.timers:,}",
            heat_strip(level.heat, max(16, width - 54)),
        )
    return table


def wheel_picture(picture: Wheel, width: int = 100) -> RenderableType:
    """The whole picture for a terminal of `width` columns."""
    total = sum(level.timers for level in picture.levels)
    gone = f"; left over: {picture.gone:,}" if picture.gone else ""
    title = Text.assemble(
        ("the wheel", "bold"),
        f"  {noun(max(0, total - picture.gone), 'timer')}{gone}  ",
        (format_moment(picture.now_ms), "dim"),
    )
    return Group(
        title,
        Text("\ndue in the (messages and leases; each row without those above)", "bold"),
        forecast_table(picture.forecast, width),
        Text(f"\noccupied slots by level{', with what is left over' if picture.gone else ''}", "bold"),
        level_table(picture.levels, width),
    )
