"""The picture that `tickwheel top` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from tickwheel.protocol.readable import format_bytes, format_duration, noun
from tickwheel_cli.looking.top_glance import Glance, TopicRow
from tickwheel_cli.shared.output import printable
from tickwheel_cli.shared.times import format_moment

NONE: Final = "–"
MAX_REMARKS: Final = 5
_MIN_ROWS: Final = 3
_STYLES: Final = {"bad": "bold red", "warn": "yellow"}


class Sort(NamedTuple):
    """A column by which topics are sorted, with the key that does it."""

    key: str
    name: str
    title: str
    value: Callable[[TopicRow], Any]
    width: int = 0
    """A terminal that is narrower leaves it out."""


SORTS: Final = (
    Sort("n", "name", "topic", lambda row: row.name),
    Sort("s", "scheduled", "scheduled", lambda row: row.scheduled),
    Sort("b", "backlog", "backlog", lambda row: row.backlog),
    Sort("i", "in-flight", "in flight", lambda row: row.in_flight, 60),
    Sort("d", "dead", "dead", lambda row: row.dead, 52),
    Sort("c", "consumers", "consumers", lambda row: row.consumers, 100),
    Sort("t", "sent", "sent/s", lambda row: row.per_second.sent or 0, 68),
    Sort("e", "delivered", "delivered/s", lambda row: row.per_second.delivered or 0, 80),
    Sort("a", "acked", "acked/s", lambda row: row.per_second.acked or 0, 90),
)
BY_NAME: Final = {one.name: one for one in SORTS}
BY_KEY: Final = {one.key: one for one in SORTS}


def in_order(topics: Sequence[TopicRow], sort: Sort, *, is_reversed: bool = False) -> list[TopicRow]:
    """The largest first, names from a to z; turned round on demand."""
    by_name = sorted(topics, key=lambda row: row.name)
    return sorted(by_name, key=sort.value, reverse=(sort.name != "name") != is_reversed)


def picture(
    glance: Glance,
    sort: Sort,
    width: int,
    height: int | None,
    *,
    is_reversed: bool = False,
    trouble: str = "",
) -> RenderableType:
    """On at most so many lines; None: on as many as it takes. ``trouble``: why it is not up to date."""
    head: list[RenderableType] = [_title(glance, trouble), *_figures(glance, width), *_attention(glance)]
    used = sum(_lines(one) for one in head) + 2  # the heading of the table, and the keys below it
    rows = in_order(glance.topics, sort, is_reversed=is_reversed)
    room = len(rows) if height is None else max(_MIN_ROWS, height - used - (len(rows) > height - used))
    parts = [*head, _table(rows[:room], sort, width)]
    if len(rows) > room:
        parts.append(Text(f"and {noun(len(rows) - room, 'more topic')}", "dim"))
    if height is not None:
        parts.append(_keys(sort))
    return Group(*parts)


def _lines(part: RenderableType) -> int:
    return part.row_count if isinstance(part, Table) else 1


def _line(*parts: str | tuple[str, str]) -> Text:
    found = Text.assemble(*parts)
    found.no_wrap, found.overflow = True, "ellipsis"
    return found


def _title(glance: Glance, trouble: str) -> Text:
    if trouble:
        return _line(("Not up to date: ", "bold red"), (trouble, "red"))
    up = format_duration(glance.uptime_ms)
    users = f"{noun(glance.connections, 'client')}, {noun(glance.subscribers, 'subscription')}"
    return _line(
        ("Tickwheel ", "bold"), f"{glance.version}  up {up}  {users}  {format_moment(glance.now_ms)}"
    )


def _figures(glance: Glance, width: int) -> list[RenderableType]:
    """Rows of names and numbers, in as many columns as there is room for."""
    health, rates, late = glance.health, glance.per_second, glance.lateness_ms
    disk = NONE if health.disk_used_share is None else f"{health.disk_used_share:.0%} full"
    over = f"within {glance.lateness_over_s:.0f} s" if glance.lateness_over_s else "from now on"
    rows = [
        ("Due", [("now", f"{glance.due_now:,}"), *((k, f"{n:,}") for k, n in glance.coming.items())]),
        (
            "Messages",
            [
                ("scheduled", f"{glance.scheduled:,}"),
                ("in flight", f"{glance.in_flight:,}"),
                ("backlog", f"{glance.backlog:,}"),
                ("dead", f"{glance.dead:,}"),
            ],
        ),
        (
            "Rates",
            [
                ("sent", _rate(rates.sent)),
                ("delivered", _rate(rates.delivered)),
                ("acked", _rate(rates.acked)),
            ],
        ),
        (
            "Late",
            [
                *((name, _bound(bound_ms)) for name, bound_ms in late.items()),
                ("to topics p99", _bound(glance.to_topic_ms["p99"])),
                ("", over),
            ],
        ),
        (
            "Journal",
            [
                ("log", format_bytes(health.log_bytes)),
                ("not on disk yet", format_bytes(health.unsynced_bytes)),
                ("sync runs", format_duration(health.sync_running_s * 1_000)),
                ("no checkpoint for", format_duration(health.checkpoint_age_s * 1_000)),
                ("disk", disk),
            ],
        ),
    ]
    return [_row(label, pairs, width) for label, pairs in rows]


def _row(label: str, pairs: Sequence[tuple[str, str]], width: int) -> Text:
    """As many of the pairs as there is room for: a number that is cut is a wrong one. Dots say that there are more."""
    found, has_room = _line((f"{label:<10}", "bold cyan")), True
    for name, value in pairs:
        part = Text.assemble((f"{name} " if name else "", "dim"), value, "   ")
        if found.cell_len + part.cell_len - 3 <= width:
            found.append_text(part)
        else:
            has_room = False
    found.rstrip()
    if not has_room:
        found.append(" …", "dim")
        found.truncate(width)
    return found


def _attention(glance: Glance) -> list[Text]:
    if not glance.attention:
        return [_line(("Nothing needs attention.", "green"))]
    found = [
        _line(
            ("! ", _STYLES[one.severity]),
            (f"{one.topic}{' / ' if one.group else ''}{one.group} " if one.topic else "", "bold"),
            (printable(one.text.encode()), _STYLES[one.severity]),
        )
        for one in glance.attention[:MAX_REMARKS]
    ]
    if (more := len(glance.attention) - MAX_REMARKS) > 0:
        found.append(_line((f"and {more:,} more", "dim")))
    return found


def _table(rows: Sequence[TopicRow], sort: Sort, width: int) -> Table:
    shown = [one for one in SORTS if one.width <= width]
    columns = [
        Column(
            f"{one.title}{' *' if one is sort else ''}",
            justify="left" if one.name == "name" else "right",
            ratio=1 if one.name == "name" else None,
            no_wrap=True,
            overflow="ellipsis",
            header_style="bold reverse" if one is sort else "bold",
        )
        for one in shown
    ]
    table = Table(*columns, box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(_cell(row, one) for one in shown))
    return table


def _cell(row: TopicRow, column: Sort) -> Text:
    if column.name == "name":
        return Text(f"{row.name}{' (paused)' if row.paused else ''}", "yellow" if row.paused else "")
    if column.title.endswith("/s"):
        return Text(_rate(getattr(row.per_second, column.name)))
    number = int(column.value(row))
    return Text(f"{number:,}", "red" if column.name == "dead" and number else "")


def _keys(sort: Sort) -> Text:
    words = "  ".join(f"{one.key} {one.name}" for one in SORTS)
    return _line(("q quit  r turn round  sort: ", "bold"), (words, "dim"))


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return NONE
    return f"{per_s:,.1f}/s" if 0 < per_s < 9.95 else f"{per_s:,.0f}/s"


def _bound(bound_ms: float | None) -> str:
    """A percentile out of a histogram is known as the bound that it does not exceed."""
    if bound_ms is None:
        return NONE
    if bound_ms == float("inf"):
        return "> 1 d"
    return f"≤ {format_duration(bound_ms)}" if bound_ms else "< 1 ms"
