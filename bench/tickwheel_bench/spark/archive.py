"""What the archive does in a second: a million acked messages to Parquet, checked, dropped; and brought back. To a
directory, and to an S3 server on loopback (moto's, which is Python, and takes part of the machine)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from tickwheel import Client
from tickwheel_bench.daemon import Daemon, disk_bytes
from tickwheel_bench.load.messages import BATCH, work_off

BODY_BYTES = 100
_EVERYTHING = "2000-01-01T00:00Z"


async def _fill(url: str, topic: str, count: int) -> None:
    async with Client(url) as client:
        for start in range(0, count, BATCH):
            some = os.urandom(BODY_BYTES * min(BATCH, count - start))
            bodies = [some[at : at + BODY_BYTES] for at in range(0, len(some), BODY_BYTES)]
            (await client.send_many(topic, bodies)).raise_for_errors()
        with anyio.fail_after(900):
            await work_off(client, topic, count)


def _pipeline(url: str, *arguments: str) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole command, the start of Java and Spark included, and its report."""
    program = str(Path(sys.executable).with_name("tickwheel"))
    started = time.perf_counter()
    done = subprocess.run(
        [program, "pipeline", *arguments, "--url", url, "--json"], capture_output=True, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return time.perf_counter() - started, report


@contextmanager
def _object_store() -> Iterator[tuple[str, ...]]:
    """Where to archive to, as words of the command."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    program = str(Path(sys.executable).with_name("moto_server"))
    server = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(f"{endpoint}/bench")
        options = (f"endpoint={endpoint}", "access_key_id=bench", "secret_access_key=bench")
        yield ("s3://bench/archive", *(word for one in options for word in ("--fs", one)))
    finally:
        server.terminate()
        server.wait()


def _wait_for(bucket: str) -> None:
    """Makes the bucket, once the server is there."""
    for _ in range(600):
        try:
            urllib.request.urlopen(urllib.request.Request(bucket, method="PUT")).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the S3 server did not start")


def archive(directory: Path, scale: float) -> dict[str, Any]:
    """Seconds of whole commands; ``nothing``: of an archive that finds nothing to do, which is what starting costs."""
    count = int(1_000_000 * scale)
    root = str(directory.parent / "archive")
    what = ("archive", "--older-than", "0s", "--to", root)
    back = ("restore", "--from", root, "--since", _EVERYTHING)
    with Daemon(directory) as daemon:
        anyio.run(_fill, daemon.url, "orders", count, backend="asyncio")
        before_bytes = disk_bytes(directory)
        seconds, report = _pipeline(daemon.url, *what)
        assert (report["messages"], report["dropped"]) == (count, count), report
        nothing_s, again = _pipeline(daemon.url, *what, "--purge")
        assert again["messages"] == 0, again
        after_bytes = disk_bytes(directory)
        check_s, _ = _pipeline(daemon.url, *back, "--dry-run")
        restore_s, restored = _pipeline(daemon.url, *back)
        assert restored["stored"] == count, restored
        anyio.run(_fill, daemon.url, "invoices", count, backend="asyncio")
        with _object_store() as place:
            s3 = ("archive", "--older-than", "0s", "--topic", "invoices", "--to", *place)
            s3_s, report_of_s3 = _pipeline(daemon.url, *s3)
        assert (report_of_s3["messages"], report_of_s3["dropped"]) == (count, count), report_of_s3
    return {
        "messages": count,
        "archive_s": round(seconds, 1),
        "nothing_s": round(nothing_s, 1),
        "messages_per_s": round(count / (seconds - nothing_s)),
        "s3_s": round(s3_s, 1),
        "s3_messages_per_s": round(count / (s3_s - nothing_s)),
        "archive_mib": round(report["bytes"] / 2**20, 1),
        "check_s": round(check_s, 1),
        "restore_s": round(restore_s, 1),
        "disk_before_mib": round(before_bytes / 2**20, 1),
        "disk_after_mib": round(after_bytes / 2**20, 1),
    }
