"""Whether memory and open files stay the same: a real broker under a steady, mixed load, for hours.

``python -m tickwheel_bench.load.soak --hours 6`` (or ``make endurance HOURS=6``) writes a report with every sample and
a straight line fitted through them, and fails when memory or open files grow.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import click
import msgspec
import numpy as np

from tickwheel_bench.daemon import Daemon, disk_bytes
from tickwheel_bench.figures import percentiles
from tickwheel_bench.load.soak_load import Load
from tickwheel_bench.report import scratch, write

MIB: Final = 1 << 20
WARM_UP: Final = 0.25
"""The first part of the samples does not count: tables, buffers and caches reach their sizes."""

MOST_GROWTH_MIB: Final = 24
"""Over the whole run, by the fitted line. It allows for what is measured late in one of the broker's own cycles."""

MOST_FILES: Final = 12
FLAGS: Final = ("--segment-bytes", "16MiB", "--max-frame-bytes", "5MiB", "--purge-after", "2s")


class Sample(msgspec.Struct, frozen=True):
    """What the broker held at one moment."""

    at_s: float
    anon_bytes: int
    file_bytes: int
    files: int
    disk_bytes: int
    sent: int
    delivered: int
    late_p50_ms: float
    late_p99_ms: float


def take_sample(daemon: Daemon, load: Load, started_s: float) -> Sample:
    """Looks at the broker from outside."""
    late_ms = percentiles(load.take_late_ms() or [0.0], "p50", "p99", digits=2)
    return Sample(
        at_s=round(time.monotonic() - started_s, 1),
        anon_bytes=daemon.memory_bytes("RssAnon"),
        file_bytes=daemon.memory_bytes("RssFile"),
        files=len(os.listdir(f"/proc/{daemon.pid}/fd")),
        disk_bytes=disk_bytes_now(daemon.directory),
        sent=load.sent,
        delivered=load.delivered,
        late_p50_ms=late_ms["p50"],
        late_p99_ms=late_ms["p99"],
    )


def disk_bytes_now(directory: Path) -> int:
    """Files may go while they are counted."""
    while True:
        try:
            return disk_bytes(directory)
        except FileNotFoundError:
            continue


def fit(samples: list[Sample]) -> dict[str, Any]:
    """A straight line through memory and open files after the warm-up: by the hour, over the run, by messages."""
    counted = samples[int(len(samples) * WARM_UP) :]
    hours = np.array([sample.at_s for sample in counted]) / 3600
    anon_mib = np.array([sample.anon_bytes for sample in counted]) / MIB
    files = np.array([sample.files for sample in counted], float)
    slope_mib = float(np.polyfit(hours, anon_mib, 1)[0])
    slope_files = float(np.polyfit(hours, files, 1)[0])
    span_hours = float(hours[-1] - hours[0])
    messages = counted[-1].sent - counted[0].sent
    return {
        "counted_samples": len(counted),
        "counted_hours": round(span_hours, 3),
        "messages": messages,
        "anon_mib_first": round(float(anon_mib[0]), 1),
        "anon_mib_last": round(float(anon_mib[-1]), 1),
        "anon_mib_max": round(float(anon_mib.max()), 1),
        "anon_mib_an_hour": round(slope_mib, 2),
        "anon_mib_over_the_run": round(slope_mib * span_hours, 2),
        "anon_mib_by_100k_messages": round(slope_mib * span_hours / max(1, messages) * 100_000, 3),
        "files_first": counted[0].files,
        "files_last": counted[-1].files,
        "files_over_the_run": round(slope_files * span_hours, 2),
        "disk_mib_first": counted[0].disk_bytes // MIB,
        "disk_mib_last": counted[-1].disk_bytes // MIB,
        "late_p50_ms": round(float(np.median([sample.late_p50_ms for sample in counted])), 2),
        "late_p99_ms": round(float(np.median([sample.late_p99_ms for sample in counted])), 2),
        "late_p99_ms_worst": max(sample.late_p99_ms for sample in counted),
    }


def verdict(figures: dict[str, Any], load: Load) -> list[str]:
    """What is wrong; empty when all is well."""
    wrong = [f"the load met an error: {error}" for error in load.errors[:5]]
    if figures["anon_mib_over_the_run"] > MOST_GROWTH_MIB:
        wrong.append(f"memory grew by {figures['anon_mib_over_the_run']} MiB")
    if figures["files_over_the_run"] > MOST_FILES:
        wrong.append(f"open files grew by {figures['files_over_the_run']}")
    if not figures["messages"]:
        wrong.append("nothing was sent")
    return wrong


async def _endure(daemon: Daemon, load: Load, seconds: float, every_s: float) -> list[Sample]:
    samples: list[Sample] = []
    started_s = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(load.run)
        while time.monotonic() < started_s + seconds:
            await anyio.sleep(every_s)
            samples.append(take_sample(daemon, load, started_s))
        group.cancel_scope.cancel()
    return samples


def soak(directory: Path, hours: float, rate: int, seed: int) -> dict[str, Any]:
    """Runs the load, and reports the figures, the samples and what is wrong."""
    seconds = hours * 3600
    with Daemon(directory, *FLAGS) as daemon:
        load = Load(daemon.url, rate, seed)
        samples = anyio.run(
            _endure, daemon, load, seconds, min(10.0, max(0.5, seconds / 100)), backend="trio"
        )
    figures = fit(samples)
    return {
        "hours": round(hours, 4),
        "rate_per_s": rate,
        "seed": seed,
        "figures": figures,
        "wrong": verdict(figures, load),
        "samples": [msgspec.to_builtins(sample) for sample in samples],
    }


@click.command()
@click.option("--hours", type=float, default=6.0, show_default=True)
@click.option("--rate", type=int, default=1_000, show_default=True, help="Messages a second.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where data goes [default: temporary].")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/results"), show_default=True)
def main(hours: float, rate: int, seed: int, directory: Path | None, out: Path) -> None:
    """Runs a broker under a steady load for hours and fails when memory or open files grow."""
    with scratch("tickwheel-soak-", directory) as place:
        report = soak(place / "data", hours, rate, seed)
    click.echo(json.dumps(report["figures"], indent=2))
    write(report, out, f"soak-{datetime.now(UTC):%Y%m%dT%H%M%SZ}", indent=1)
    for line in report["wrong"]:
        click.echo(line, err=True)
    sys.exit(1 if report["wrong"] else 0)


if __name__ == "__main__":
    main()
