"""What the archive does in a second: four million acked messages to Parquet, checked, dropped; and brought back. To a
directory, and to an S3 server on loopback (moto's, which is Python, and takes part of the machine)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio

from tickwheel import Client
from tickwheel_bench.daemon import Daemon, disk_bytes
from tickwheel_bench.load.messages import BATCH, work_off
from tickwheel_bench.program import installed
from tickwheel_bench.server import Server

BODY_BYTES = 100
_EVERYTHING = "2000-01-01T00:00Z"


async def _fill(client: Client, topic: str, count: int) -> None:
    for start in range(0, count, BATCH):
        some = os.urandom(BODY_BYTES * min(BATCH, count - start))
        bodies = [some[at : at + BODY_BYTES] for at in range(0, len(some), BODY_BYTES)]
        (await client.send_many(topic, bodies)).raise_for_errors()
    with anyio.fail_after(900):
        await work_off(client, topic, count)


def _pipeline(url: str, *arguments: str) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole command, the start of Java and Spark included, and its report."""
    started = time.perf_counter()
    done = subprocess.run(
        [installed("tickwheel"), "pipeline", *arguments, "--url", url, "--json"],
        capture_output=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return time.perf_counter() - started, report


class _ObjectStore(Server):
    """A server of S3 with a bucket."""

    @property
    def place(self) -> tuple[str, ...]:
        """Where to archive to, as words of the command."""
        options = (f"endpoint={self._endpoint}", "access_key_id=bench", "secret_access_key=bench")
        return ("s3://bench/archive", *(word for one in options for word in ("--fs", one)))

    def command(self) -> list[str]:
        """See Background."""
        return [installed("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def is_up(self) -> bool:
        """Makes the bucket, once the server is there."""
        with suppress(OSError):
            urlopen(Request(f"{self._endpoint}/bench", method="PUT")).close()
            return True
        return False

    @property
    def _endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def archive(directory: Path, scale: float) -> dict[str, Any]:
    """Seconds of whole commands; ``nothing``: of an archive that finds nothing to do, which is what starting costs."""
    count = int(4_000_000 * scale)
    root = str(directory.parent / "archive")
    what = ("archive", "--older-than", "0s", "--to", root)
    back = ("restore", "--from", root, "--since", _EVERYTHING)
    with Daemon(directory) as daemon:
        daemon.run(_fill, "orders", count)
        before_bytes = disk_bytes(directory)
        seconds, report = _pipeline(daemon.url, *what)
        assert (report["messages"], report["dropped"]) == (count, count), report
        nothing_s, again = _pipeline(daemon.url, *what, "--purge")
        assert again["messages"] == 0, again
        after_bytes = disk_bytes(directory)
        check_s, _ = _pipeline(daemon.url, *back, "--dry-run")
        restore_s, restored = _pipeline(daemon.url, *back)
        assert restored["stored"] == count, restored
        daemon.run(_fill, "invoices", count)
        with _ObjectStore(directory.parent / "s3") as store:
            s3 = ("archive", "--older-than", "0s", "--topic", "invoices", "--to", *store.place)
            s3_s, report_of_s3 = _pipeline(daemon.url, *s3)
        assert (report_of_s3["messages"], report_of_s3["dropped"]) == (count, count), report_of_s3
    return {
        "messages": count,
        "archive_s": round(seconds, 1),
        "nothing_s": round(nothing_s, 1),
        "messages_per_s": round(count / (seconds - nothing_s)),
        "s3_s": round(s3_s, 1),
        "s3_messages_per_s": round(count / (s3_s - nothing_s)),
        "directory_over_s3": round((seconds - nothing_s) / (s3_s - nothing_s), 2),
        "archive_mib": round(report["bytes"] / 2**20, 1),
        "check_s": round(check_s, 1),
        "restore_s": round(restore_s, 1),
        "disk_before_mib": round(before_bytes / 2**20, 1),
        "disk_after_mib": round(after_bytes / 2**20, 1),
    }
