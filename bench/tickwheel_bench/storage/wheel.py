"""How fast the timer wheel is, and whether a message costs the same however many are pending.

``python -m tickwheel_bench.storage.wheel`` prints a table, ``--json`` one JSON object. One process, one core, memory
only: the disk plays no part in the wheel. Every figure is the median of several runs.

For each size, that many timers are linked in batches with due times spread evenly over one hour to 30 days; then time
jumps to the end and all of them are collected, through two cascades each. Then a churn: with that many pending, time
advances in steps, and as many timers are linked as became due.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from timerlog.layout import Int64Array
from timerlog.wheel.timers import Timers
from timerlog.wheel.wheel import TimerWheel

START_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FIRST_MS, LAST_MS = HOUR_MS, 30 * DAY_MS
BATCH = 10_000
SIZES = (100_000, 1_000_000, 20_000_000)
SMOKE_SIZES = (10_000, 100_000)


@dataclass(frozen=True)
class SizeResult:
    """Costs with ``pending`` timers on the wheel, in nanoseconds a timer."""

    pending: int
    link_ns: float
    collect_ns: float
    """Including the cascades on the way down."""
    churn_ns: float
    """Linking one and collecting one, at constant ``pending``."""
    log_bytes_a_timer: float

    @property
    def total_ns(self) -> float:
        return self.link_ns + self.collect_ns


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def batches_of(due_ms: Int64Array) -> list[Timers]:
    """Messages in the order of sending, in batches, as the broker links them."""
    zeros = np.zeros(BATCH, np.uint32)
    batches = []
    for first in range(0, len(due_ms), BATCH):
        due = due_ms[first : first + BATCH]
        ref = np.arange(first, first + len(due), dtype=np.uint64)
        batches.append(Timers(due, ref, zeros[: len(due)], zeros[: len(due)]))
    return batches


def link(wheel: TimerWheel, batches: list[Timers]) -> None:
    for timers in batches:
        wheel.link(timers.due_ms, timers.ref, timers.epoch, timers.owner)


def collect(wheel: TimerWheel, until_ms: int) -> int:
    """Collects everything that is due; returns how many."""
    count = 0
    while True:
        timers = wheel.turn(until_ms, BATCH)
        count += len(timers) if timers is not None else 0
        if not wheel.more:
            return count


def churn(wheel: TimerWheel, pending: int, churned: int, rng: np.random.Generator) -> float:
    """Seconds to link one timer and collect one, while about ``pending`` stay on the wheel."""
    step_ms = max(1, (FIRST_MS + LAST_MS) // 2 * BATCH // pending)
    now_ms = START_MS + FIRST_MS
    collect(wheel, now_ms)
    done, spent = 0, 0.0
    while done < churned:
        now_ms += step_ms
        start = time.perf_counter()
        count = collect(wheel, now_ms)
        collected = time.perf_counter()
        batches = batches_of(now_ms + rng.integers(FIRST_MS, LAST_MS, count))
        made = time.perf_counter()
        link(wheel, batches)
        spent += (collected - start) + (time.perf_counter() - made)
        done += count
    return spent / done


def measure(pending: int, rng: np.random.Generator) -> SizeResult:
    batches = batches_of(START_MS + rng.integers(FIRST_MS, LAST_MS, pending))
    wheel = TimerWheel(None, START_MS)
    link_s = seconds(lambda: link(wheel, batches))
    log_bytes = wheel.disk_bytes()
    collect_s = seconds(lambda: collect(wheel, START_MS + LAST_MS))
    if wheel.pending:
        raise AssertionError(f"{wheel.pending} timers were left behind")
    wheel.close()
    wheel = TimerWheel(None, START_MS)
    link(wheel, batches)
    churn_s = churn(wheel, pending, min(pending // 2, 1_000_000), rng)
    wheel.close()
    each_ns = 1e9 / pending
    return SizeResult(pending, link_s * each_ns, collect_s * each_ns, churn_s * 1e9, log_bytes / pending)


def median_of(results: list[SizeResult]) -> SizeResult:
    rows = [asdict(result) for result in results]
    return SizeResult(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})


def rates(count: int) -> tuple[float, float]:
    """Timers linked a second, and collected a second without a cascade: all are due within a second."""
    batches = batches_of(np.sort(START_MS + 1 + np.arange(count) % 1000))
    wheel = TimerWheel(None, START_MS)
    link_s = seconds(lambda: link(wheel, batches))
    collect_s = seconds(lambda: collect(wheel, START_MS + 1000))
    wheel.close()
    return count / link_s, count / collect_s


def run(sizes: tuple[int, ...]) -> dict[str, Any]:
    """All figures, ready for JSON."""
    rng = np.random.default_rng(7411)
    pairs = [rates(1_000_000) for _ in range(5)]
    results = []
    for size in sizes:
        repeats = max(3, min(25, 5_000_000 // size))
        results.append(median_of([measure(size, rng) for _ in range(repeats)]))
    totals = [result.total_ns for result in results]
    return {
        "schedules_per_s": round(1e9 / max(result.link_ns for result in results)),
        "collections_per_s": round(statistics.median(pair[1] for pair in pairs)),
        "schedules_due_soon_per_s": round(statistics.median(pair[0] for pair in pairs)),
        "flatness_ratio": round(totals[-1] / totals[0], 3),
        "sizes": [asdict(result) | {"total_ns": result.total_ns} for result in results],
    }


def print_table(figures: dict[str, Any]) -> None:
    print(f"schedules    {figures['schedules_per_s']:>12,} /s  (spread over 30 days, at the slowest size)")
    print(f"collections  {figures['collections_per_s']:>12,} /s  (already on the lowest level)")
    print(f"\n{'pending':>12} {'link':>9} {'collect':>9} {'total':>9} {'churn':>9} {'log':>10}")
    for row in figures["sizes"]:
        costs = " ".join(f"{row[name]:6.1f} ns" for name in ("link_ns", "collect_ns", "total_ns", "churn_ns"))
        print(f"{int(row['pending']):>12,} {costs} {row['log_bytes_a_timer']:5.1f} bytes")
    print(f"\na timer costs {figures['flatness_ratio']} times as much at the largest size as at the smallest")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tickwheel_bench.storage.wheel", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--smoke", action="store_true", help="small sizes: seconds instead of minutes")
    options = parser.parse_args()
    figures = run(SMOKE_SIZES if options.smoke else SIZES)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
