"""The figures as a table of Markdown: goal, ours, theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

HEADS: Final = {
    "tickwheel": "gateway and broker, durable",
    "rocketmq-async": "RocketMQ 5.3.3, flush not awaited (its default)",
    "rocketmq-sync": "RocketMQ 5.3.3, SYNC_FLUSH",
}
_NOT_MEASURED: Final = "–"
_SHORTENED: Final = 100
_WHOLE: Final = 100


class Row(NamedTuple):
    """One figure."""

    name: str
    what: str
    goal: str
    by_server: Mapping[str, Mapping[str, Any]]
    """What was found, by the server's name."""


def table(rows: Sequence[Row], servers: Sequence[str]) -> list[str]:
    """Its lines."""
    heads = ["figure", "goal", *(HEADS[server] for server in servers), "command"]
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for row in rows:
        cells = [
            cell(row.by_server[server]) if server in row.by_server else _NOT_MEASURED for server in servers
        ]
        lines.append(_line([row.what, row.goal, *cells, f"`… rocketmq --only {row.name}`"]))
    return lines


def cell(found: Mapping[str, Any]) -> str:
    """What was found, as people read it."""
    for word in ("missing", "failed_with"):
        if word in found:
            return f"{word.replace('_', ' ')}: {str(found[word])[:_SHORTENED]}".replace("|", "/").replace(
                "\n", " "
            )
    parts = []
    if "servers_us" in found:
        parts.append(_costs(found["servers_us"], found["cpu_us"]))
    if "per_s" in found:
        parts.append(f"{found['per_s']:,}/s")
    for name, word in (("answered_ms", "answered"), ("late_ms", "late by")):
        if name in found:
            parts.append(f"{word} {_times(found[name])}")
    if "without" in found:
        parts += [f"{name} {_punctual(found[name])}" for name in ("without", "beside")]
    parts += _once_more(found)
    return "; ".join(parts)


def _costs(whole_us: float, cpu_us: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {us:.0f}" for name, us in cpu_us.items() if us >= 1)
    return f"{whole_us:.0f} µs ({each})"


def _times(ms: Mapping[str, float]) -> str:
    shown = {name: ms[name] for name in ("p50", "p99", "max") if name in ms}
    return ", ".join(f"{name} {_rounded(value)} ms" for name, value in shown.items())


def _rounded(value: float) -> str:
    """To what says something of it."""
    return f"{value:.0f}" if value >= _WHOLE else f"{value:.3g}"


def _punctual(found: Mapping[str, Any]) -> str:
    """At a client, and in the broker's histogram, which has bounds."""
    return f"{_times(found['late_ms'])} (the broker's own p99 ≤ {found['broker_ms']['p99']:.0f} ms)"


def _once_more(found: Mapping[str, Any]) -> list[str]:
    """What is worth a word only if it is there."""
    words = {
        "fdatasync_ms": "fdatasync {} ms",
        "p99_later_ms": "p99 {} ms later",
        "lost": "{} lost",
        "early": "{} early",
        "twice": "{} came twice",
        "not_again": "{} did not come again",
        "failed": "{} failed",
        "cpu_percent": "{} % of a core",
        "memory_mib": "{} MiB",
    }
    return [text.format(found[name]) for name, text in words.items() if found.get(name)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
