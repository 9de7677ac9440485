"""Messages in a database: Tickwheel's message tables against the loops that people write, on the same databases.

Each kind of database is measured in a process of its own: on SQLite, and on servers that are started for it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from tickwheel_bench.databases.databases import KINDS, missing, open_place
from tickwheel_bench.databases.phases import measure, sizes

THROUGHPUT: Final = 2.0
"""At least so many times as fast as each other way."""
LATENESS: Final = 0.1
"""At most this share of each other way's p99."""
STATEMENTS_A_SECOND: Final = 1.0
_OURS: Final = "MessageTable"


def outbox(directory: Path, scale: float) -> dict[str, Any]:
    """Throughput, lateness and idling on each kind of database that is here, and which targets were met."""
    absent = {kind: reason for kind in KINDS if (reason := missing(kind)) is not None}
    for kind, reason in absent.items():
        click.secho(f"  NOT MEASURED: {kind}. {reason}", fg="red", bold=True)
    figures: dict[str, Any] = {kind: {"skipped": reason} for kind, reason in absent.items()}
    present = [kind for kind in KINDS if kind not in absent]
    # One after the other, unless all that matters is whether it works.
    workers = max(1, len(present)) if scale < 1 else 1
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {kind: pool.submit(_measure, kind, directory / kind, scale) for kind in present}
        figures |= {kind: one.result() for kind, one in running.items()}
    targets = [one for kind in present for one in _targets(kind, figures[kind])]
    if scale < 1:
        figures["note"] = "Too small, and all at once: whether it works, and nothing about how fast it is."
    return figures | {"targets": _table(targets)}


def _measure(kind: str, directory: Path, scale: float) -> dict[str, Any]:
    with open_place(kind, directory) as place:
        return measure(place, sizes(scale))


def _targets(kind: str, figures: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Every comparison, won or lost."""
    rates = figures["throughput"]["per_s"]
    for ours, ratios in figures["throughput"]["times_as_fast"].items():
        for other, ratio in ratios.items():
            what = f"messages/s: {rates[ours]:,} by {ours} against {rates[other]:,} by {other}"
            yield _target(kind, what, f">= {THROUGHPUT:g} x", f"{ratio:.2f} x", ratio >= THROUGHPUT)
    late = figures["lateness"]["late_ms"]
    ours_ms = late[_OURS]["p99"]
    for other in (name for name in late if name != _OURS):
        share = ours_ms / late[other]["p99"]
        what = f"p99 late: {ours_ms:.1f} ms against {late[other]['p99']:.1f} by {other}"
        yield _target(kind, what, f"<= {LATENESS:g} x", f"{share:.3f} x", share <= LATENESS)
    wrong = sum(late[_OURS][one] for one in ("lost", "twice"))
    yield _target(kind, "lost, or handled twice", "none", str(wrong), wrong == 0)
    idle = figures["idle"]
    asked = max(idle["statements_per_s"], idle.get("by_the_servers_count_per_s", 0))
    what = f"statements/s while {idle['pending']:,} wait"
    yield _target(kind, what, f"< {STATEMENTS_A_SECOND:g}", f"{asked:.2f}", asked < STATEMENTS_A_SECOND)


def _target(kind: str, what: str, target: str, measured: str, met: bool) -> tuple[str, ...]:
    return kind, target, measured, "yes" if met else "NO", what


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [("database", "target", "measured", "met", "what"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
