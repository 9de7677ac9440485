"""Tasks a second, lateness, and what tasks that wait cost a worker.

Broker, worker and what sends are processes of their own. Each figure is of a worker that begins anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from tickwheel_bench.celery.record import RECORD
from tickwheel_bench.celery.servers import SERVERS

_PATIENCE_S: Final = 600.0
_SENDER: Final = """
import sys, time
from tickwheel_bench.celery.app import app, note
count, over_s, after_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
began = time.perf_counter()
start = time.time() + after_s
with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
    from datetime import UTC, datetime
    for number in range(count):
        due_s = start + over_s * number / count if after_s else 0.0
        eta = datetime.fromtimestamp(due_s, UTC) if after_s else None
        note.apply_async((due_s,), eta=eta, producer=producer)
print(time.perf_counter() - began)
"""


class Stage:
    """A broker and a file for what tasks note."""

    def __init__(self, url: str, directory: Path, pool: str) -> None:
        self._directory, self._pool = directory, pool
        self._out = directory / "out.bin"
        self._environment = {**os.environ, "BENCH_BROKER": url, "BENCH_OUT": str(self._out)}

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """With two processes, unless another pool was chosen."""
        self._out.unlink(missing_ok=True)
        words = [
            "-A",
            "tickwheel_bench.celery.app",
            "worker",
            "--pool",
            self._pool,
            "-c",
            "2",
            "-l",
            "WARNING",
        ]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with open(self._directory / "worker.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", *words], env=self._environment, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)

    def send(
        self, count: int, over_s: float = 0.0, after_s: float = 0.0, publish: str = "confirmed"
    ) -> float:
        """Sends tasks; the seconds that it took."""
        words = [sys.executable, "-c", _SENDER, str(count), str(over_s), str(after_s)]
        environment = {**self._environment, "BENCH_PUBLISH": publish}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return float(done.stdout)

    def wait_for(self, count: int, patience_s: float = _PATIENCE_S) -> list[tuple[float, float]]:
        """What the tasks noted, when so many have run, or the patience is at its end."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if self._out.exists() and self._out.stat().st_size >= count * RECORD.size:
                break
            time.sleep(0.02)
        return list(RECORD.iter_unpack(self._out.read_bytes())) if self._out.exists() else []


def throughput(stage: Stage, count: int) -> dict[str, Any]:
    """Tasks that are there when the worker begins."""
    sent_s = stage.send(count)
    with stage.worker():
        ran = sorted(now for _, now in stage.wait_for(count))
    return {
        "sent_a_second": round(count / sent_s),
        "run_a_second": round((len(ran) - 1) / (ran[-1] - ran[0])),
        "run": len(ran),
    }


def lateness(stage: Stage, count: int, over_s: float) -> dict[str, Any]:
    """Tasks whose times lie evenly, all sent before the first is due."""
    with stage.worker():
        time.sleep(5)
        stage.send(count, over_s, after_s=max(10.0, count / 300), publish="pipelined")
        ran = stage.wait_for(count, over_s + count / 100 + 60)
    late_ms = sorted(1_000 * (now - due) for due, now in ran)
    return {
        "run": len(late_ms),
        "early": sum(late < 0 for late in late_ms),
        **{f"p{part}_ms": round(late_ms[int(len(late_ms) * part / 100)], 1) for part in (50, 99)},
    }


def memory(stage: Stage, count: int) -> dict[str, Any]:
    """What a worker has in its memory, with tasks that wait for a day, and without."""
    with stage.worker() as process:
        time.sleep(8)
        before = _rss_bytes(process.pid)
        stage.send(count, 3_600, after_s=86_400, publish="pipelined")
        last, steady_since = 0, time.monotonic()
        while time.monotonic() - steady_since < 10:
            time.sleep(1)
            now = _rss_bytes(process.pid)
            if abs(now - last) > 1 << 20:
                last, steady_since = now, time.monotonic()
        return {"mib_before": before >> 20, "mib_with_tasks": last >> 20}


def _rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@click.command(help=__doc__)
@click.option("--server", type=click.Choice(sorted(SERVERS)), multiple=True, help="All by default.")
@click.option("--pool", default="prefork", show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of all counts.")
@click.option("--only", type=click.Choice(["throughput", "lateness", "memory"]), multiple=True)
def main(server: tuple[str, ...], pool: str, scale: float, only: tuple[str, ...]) -> None:
    """Prints a line of JSON for each figure."""
    for name in server or ("tickwheel", "redis"):
        for what in only or ("throughput", "lateness", "memory"):
            with (
                tempfile.TemporaryDirectory(prefix="tickwheel-bench-") as folder,
                SERVERS[name](Path(folder)) as url,
            ):
                stage = Stage(url, Path(folder), pool)
                if what == "throughput":
                    found = throughput(stage, round(10_000 * scale))
                elif what == "lateness":
                    found = lateness(stage, round(10_000 * scale), 50 * scale)
                else:
                    found = memory(stage, round(100_000 * scale))
            click.echo(json.dumps({"server": name, "pool": pool, "what": what, **found}))
