"""What the archive does in a second: a million acked messages to Parquet, checked, dropped; and brought back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from tickwheel import Client
from tickwheel_bench.daemon import Daemon, disk_bytes
from tickwheel_bench.load.messages import BATCH, work_off

BODY_BYTES = 100
_EVERYTHING = "2000-01-01T00:00Z"


async def _fill(url: str, count: int) -> None:
    async with Client(url) as client:
        for start in range(0, count, BATCH):
            some = os.urandom(BODY_BYTES * min(BATCH, count - start))
            bodies = [some[at : at + BODY_BYTES] for at in range(0, len(some), BODY_BYTES)]
            (await client.send_many("orders", bodies)).raise_for_errors()
        with anyio.fail_after(900):
            await work_off(client, "orders", count)


def _pipeline(url: str, *arguments: str) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole command, the start of Java and Spark included, and its report."""
    program = str(Path(sys.executable).with_name("tickwheel"))
    started = time.perf_counter()
    done = subprocess.run(
        [program, "pipeline", *arguments, "--url", url, "--json"], capture_output=True, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return time.perf_counter() - started, report


def archive(directory: Path, scale: float) -> dict[str, Any]:
    """Seconds of whole commands; ``nothing``: of an archive that finds nothing to do, which is what starting costs."""
    count = int(1_000_000 * scale)
    root = str(directory.parent / "archive")
    what = ("archive", "--older-than", "0s", "--to", root)
    back = ("restore", "--from", root, "--since", _EVERYTHING)
    with Daemon(directory) as daemon:
        anyio.run(_fill, daemon.url, count, backend="asyncio")
        before_bytes = disk_bytes(directory)
        seconds, report = _pipeline(daemon.url, *what)
        assert (report["messages"], report["dropped"]) == (count, count), report
        nothing_s, again = _pipeline(daemon.url, *what, "--purge")
        assert again["messages"] == 0, again
        after_bytes = disk_bytes(directory)
        check_s, _ = _pipeline(daemon.url, *back, "--dry-run")
        restore_s, restored = _pipeline(daemon.url, *back)
        assert restored["stored"] == count, restored
    return {
        "messages": count,
        "archive_s": round(seconds, 1),
        "nothing_s": round(nothing_s, 1),
        "messages_per_s": round(count / (seconds - nothing_s)),
        "archive_mib": round(report["bytes"] / 2**20, 1),
        "check_s": round(check_s, 1),
        "restore_s": round(restore_s, 1),
        "disk_before_mib": round(before_bytes / 2**20, 1),
        "disk_after_mib": round(after_bytes / 2**20, 1),
    }
