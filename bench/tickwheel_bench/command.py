"""The command line of the benchmarks."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from tickwheel_bench import machine
from tickwheel_bench.celery import figures as celery_figures
from tickwheel_bench.cluster import appends, lost_broker
from tickwheel_bench.databases import outbox
from tickwheel_bench.dramatiq import comparison as dramatiq_comparison
from tickwheel_bench.load import blocking, lateness, overload, push, shaping, throughput
from tickwheel_bench.program import module_command
from tickwheel_bench.report import scratch, write
from tickwheel_bench.rocketmq import comparison
from tickwheel_bench.rocketmq import idle as rocketmq_idle
from tickwheel_bench.spark import archive, bulk, flight, reading
from tickwheel_bench.storage import purge, query, storage, takeover
from tickwheel_bench.web import dashboard, http

Benchmark = Callable[[Path, float], dict[str, Any]]
SMOKE_SCALE = 0.02


def _wheel(directory: Path, scale: float) -> dict[str, Any]:
    """The wheel alone, in a process of its own, so that it starts with fresh memory."""
    command = module_command("tickwheel_bench.storage.wheel", "--json", *(["--smoke"] if scale < 1 else []))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


BENCHMARKS: dict[str, tuple[str, Benchmark]] = {
    "send-many": ("durable send_many, batches of 500 and 1,000: target 1,000,000/s", throughput.send_many),
    "send-single": ("durable single sends, 64 in flight: target 30,000/s", throughput.send_single),
    "blocking": (
        "the blocking client's single send beside Redis with appendfsync always: target p50 < 1.2 x",
        blocking.blocking,
    ),
    "deliver": ("delivery and ack: targets 300,000/s by batches, 100,000/s singly", throughput.deliver),
    "lateness": ("50,000 due/s: targets p50 < 1 ms, p99 < 5 ms, none early", lateness.even),
    "herd": ("1,000,000 due in one ms: none lost, other topic's p99 < 50 ms", lateness.herd),
    "ready": ("50,000,000 ready messages: target RssAnon < 400 MiB", shaping.ready),
    "shaping": ("rate within 2 % over 10 s; spread makes a flat ramp", shaping.shaping),
    "query": ("SQL over 5,000,000 messages, and a stream of 1,000 due/s beside it", query.query),
    "wheel": ("the wheel alone: targets 5 M schedules/s, 10 M collections/s, flat within 1.3", _wheel),
    "idle": ("1,000,000 pending: targets < 1 % of a core, RssAnon < 200 MiB", storage.idle),
    "restart": ("kill -9 with 10,000,000 pending: target < 5 s", storage.restart),
    "takeover": (
        "a follower of 1,000,000 messages with keys becomes the owner: target < 1 s",
        takeover.takeover,
    ),
    "purge": ("5,000,000 acked: targets < 5 % of the disk left, p99 < 20 ms meanwhile", purge.purge),
    "bulk": (
        "10,000,000 rows by Spark: targets 2 x Parquet, 3 x sending, adopted in < 2 s; by Flight 0.5 x in place",
        bulk.bulk,
    ),
    "reading": ("10,000,000 rows by Spark: targets 1 x Parquet filtered, 0.5 x whole", reading.reading),
    "flight": (
        "the same by Arrow Flight: targets 0.75 x in place, 0.9 x Parquet filtered, four readers < 2 ms later",
        flight.flight,
    ),
    "outbox": (
        "messages in a database: targets 2 x people's loops, 0.1 x their p99, < 1 statement/s",
        outbox.outbox,
    ),
    "archive": ("4,000,000 acked messages to Parquet with Spark, and back", archive.archive),
    "overload": (
        "clients that misbehave: target p99 < 100 ms for the others, memory bounded",
        overload.overload,
    ),
    "push": (
        "500 requests/s to URLs at their time, a hanging endpoint beside them: target p50 < 5 ms",
        push.push,
    ),
    "http": (
        "over HTTP: targets 2,000 single sends/s at p99 < 20 ms, 100,000/s by batches, nothing 1 ms later",
        http.http,
    ),
    "rocketmq-idle": (
        "5,000 clients of RocketMQ that wait: targets < 30 % of a core, < 300 MiB in the gateway",
        rocketmq_idle.idle,
    ),
    "dashboard": (
        "1,000,000 messages, 200 topics, 1,000 schedules: targets < 200 ms a page, ten tabs < 1 ms later",
        dashboard.dashboard,
    ),
    "celery": (
        "Celery with Tickwheel, Redis and RabbitMQ as its broker: tasks/s, lateness of ETAs, memory, kills",
        celery_figures.celery,
    ),
    "cluster": (
        "appends to Kafka beside it (`make kafka`); two nodes: targets 500,000, 20,000, 900,000/s",
        appends.cluster,
    ),
    "cluster-of-three": (
        "the same with three Kafka brokers: targets 350,000, 7,000, 550,000/s; one is lost: < 5 s",
        lost_broker.cluster_of_three,
    ),
    "rocketmq": (
        "RocketMQ's clients with the gateway, and with RocketMQ beside it: targets 60 µs a send, 60 a delivery",
        comparison.rocketmq,
    ),
    "dramatiq": (
        "Dramatiq with Tickwheel and with Redis as its broker: tasks/s, lateness, memory",
        dramatiq_comparison.dramatiq,
    ),
    "disk": ("overhead a pending message: target <= 160 bytes", storage.disk),
}


def _listing() -> str:
    return "\n".join(f"  {name:<16} {text}" for name, (text, _) in BENCHMARKS.items())


@click.command(help=f"Measure speed, lateness, memory, restart and disk on this machine.\n\n\b\n{_listing()}")
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--smoke", is_flag=True, help=f"{SMOKE_SCALE:.0%} of the size: does everything work?")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    help="This part of the size, such as 0.3. Of wheel anything below 1 is --smoke.  [default: 1]",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(comparison.FIGURES)),
    help="Of rocketmq: this figure. May be given several times.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    type=click.Choice(comparison.SERVERS),
    help="Of rocketmq: this server. May be given several times.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where data goes [default: a temporary directory].",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("bench/results"), help="Where the JSON file goes."
)
def bench(
    names: tuple[str, ...],
    smoke: bool,
    scale: float | None,
    only: tuple[str, ...],
    servers: tuple[str, ...],
    directory: Path | None,
    out: Path,
) -> int:
    """Runs the named benchmarks, or all. Ends with 1 if a figure could not be measured."""
    if (only or servers) and names != ("rocketmq",):
        raise click.UsageError("--only and --server are for rocketmq alone")
    if smoke and scale is not None:
        raise click.UsageError(f"--smoke is --scale {SMOKE_SCALE}: use one of them")
    size = SMOKE_SCALE if smoke else scale or 1.0
    chosen = {name: BENCHMARKS[name] for name in names or BENCHMARKS}
    if only or servers:
        chosen = {
            "rocketmq": (BENCHMARKS["rocketmq"][0], partial(comparison.rocketmq, only=only, servers=servers))
        }
    with scratch("tickwheel-bench-", directory) as place:
        report = _run(chosen, size, place)
    write(report, out, f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}{_mark(smoke, size)}")
    failed = [each for figures in report["results"].values() for each in figures.get("failed", ())]
    for line in failed:
        click.echo(f"failed: {line}", err=True)
    return 1 if failed else 0


def _mark(smoke: bool, size: float) -> str:
    """In the file's name, so that figures of another size are not taken for those of the whole one."""
    return "-smoke" if smoke else "" if size == 1.0 else f"-{size:g}"


def _run(chosen: dict[str, tuple[str, Benchmark]], scale: float, place: Path) -> dict[str, Any]:
    report: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "scale": scale,
        "machine": machine.describe(place),
        "results": {},
    }
    for name, (text, benchmark) in chosen.items():
        click.echo(f"{name}: {text}")
        directory = place / name / "data"
        directory.mkdir(parents=True)
        start = time.perf_counter()
        figures = benchmark(directory, scale)
        report["results"][name] = figures
        click.echo(json.dumps(figures, indent=2))
        click.echo(f"  ({time.perf_counter() - start:.1f} s)\n")
        shutil.rmtree(directory.parent)
    return report
