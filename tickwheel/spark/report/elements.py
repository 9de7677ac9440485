"""The parts of the page: sections, tables, cards. Every text is escaped here; only ``Markup`` is taken as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NewType

from tickwheel.spark.report.text import count, duration, escaped, moment, shown

Markup = NewType("Markup", str)
#: More rows than these are folded away.
_OPEN_ROWS: Final = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and how a row's value is shown. ``bar``: as a bar, as long as its part of the
    largest. ``wide``: for long texts."""

    heading: str
    name: str
    show: Callable[[Any], str]
    number: bool = True
    bar: bool = False
    wide: bool = False


def number(heading: str, name: str) -> Column:
    return Column(heading, name, count)


def time_taken(heading: str, name: str) -> Column:
    return Column(heading, name, duration)


def text(heading: str, name: str) -> Column:
    return Column(heading, name, shown, number=False)


def instant(heading: str, name: str, *, to_ms: bool = False) -> Column:
    return Column(heading, name, lambda value: moment(value, to_ms=to_ms), number=False)


def bar(name: str) -> Column:
    return Column("", name, str, number=False, bar=True)


#: What latency tables have behind the names.
FIGURES: Final = (
    number("count", "count"), time_taken("median", "p50_ms"), time_taken("p90", "p90_ms"), time_taken("p99", "p99_ms"),
    time_taken("p99.9", "p99_9_ms"), time_taken("slowest", "max_ms"),
)  # fmt: skip


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Markup:
    """All rows; those behind the first dozen only when they are asked for."""
    first, rest = _rows(columns, rows, rows[:_OPEN_ROWS]), rows[_OPEN_ROWS:]
    shown_rows = Markup(f'<div class="wide"><table>{_head(columns)}<tbody>{first}</tbody></table></div>')
    if not rest:
        return shown_rows
    folded = f"<table>{_head(columns)}<tbody>{_rows(columns, rows, rest)}</tbody></table>"
    words = f"{len(rest):,} more"
    return Markup(
        f'{shown_rows}<details><summary>{words}</summary><div class="wide">{folded}</div></details>'
    )


def _head(columns: Sequence[Column]) -> str:
    cells = "".join(f'<th scope="col" class="{_kind(one)}">{escaped(one.heading)}</th>' for one in columns)
    return f"<thead><tr>{cells}</tr></thead>"


def _rows(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], some: Iterable[Mapping[str, Any]]
) -> str:
    largest = {one.name: max((row[one.name] or 0 for row in rows), default=0) for one in columns if one.bar}
    return "".join(f"<tr>{''.join(_cell(one, row, largest) for one in columns)}</tr>" for row in some)


def _cell(column: Column, row: Mapping[str, Any], largest: Mapping[str, float]) -> str:
    value = row[column.name]
    if column.bar:
        percent = 100 * (value or 0) / (largest[column.name] or 1)
        return f'<td class="bar"><i style="width:{percent:.1f}%"></i></td>'
    return f'<td class="{_kind(column)}">{escaped(column.show(value))}</td>'


def _kind(column: Column) -> str:
    if column.bar:
        return "bar"
    if column.wide:
        return "t k"
    return "n" if column.number else "t"


def card(value: str, label: str, verdict: str = "") -> Markup:
    return Markup(
        f'<div class="card"><b class="{verdict}">{escaped(value)}</b><span>{escaped(label)}</span></div>'
    )


def section(anchor: str, title: str, note: str, *parts: Markup) -> Markup:
    head = f'<h2>{escaped(title)}</h2><p class="note">{escaped(note)}</p>'
    return Markup(f'<section id="{anchor}">{head}{"".join(parts)}</section>')


def heading(words: str) -> Markup:
    return Markup(f"<h3>{escaped(words)}</h3>")


def nothing(words: str) -> Markup:
    return Markup(f'<p class="muted">{escaped(words)}</p>')


def plot(svg: str, words: str) -> Markup:
    """A chart, and what it shows for those who cannot see it."""
    return Markup(f'<div class="plot" role="img" aria-label="{escaped(words)}">{svg}</div>')
