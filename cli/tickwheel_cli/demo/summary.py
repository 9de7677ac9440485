"""What the demonstration ends with: the judgement in figures, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tickwheel_cli.demo.ledger import GroupAudit
from tickwheel_cli.shared.sizes import format_bytes


@dataclass(frozen=True)
class Summary:
    """Everything that was counted. Times in seconds or milliseconds of real time, as the names say."""

    what: str
    speed: float
    scheduled: int
    schedule_seconds: float
    schedule_rate: float
    rescheduled: int
    cancelled: int
    changes_too_late: int
    replay_seconds: float
    groups: Mapping[str, GroupAudit]
    foreign: int
    body_bytes: int
    scheduled_bytes: int
    log_bytes: int
    disk_bytes: int

    @property
    def passed(self) -> bool:
        """Nothing lost, delivered twice, early, cancelled and yet delivered, or unknown."""
        return self.foreign == 0 and all(audit.good for audit in self.groups.values())

    @property
    def bytes_a_message(self) -> float:
        """What the log holds for a scheduled message: its body, its key and the overhead."""
        return self.scheduled_bytes / self.scheduled

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        plain = asdict(self)
        return plain | {"bytes_a_message": round(self.bytes_a_message, 1), "passed": self.passed}


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
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
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
