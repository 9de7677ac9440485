"""The command is killed with SIGKILL at each point that matters, and run again: every message is somewhere, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tickwheel
from tests.spark.test_spark_cli import FAST
from tests.support.flight.calling import flight_url
from tests.support.processes.daemon_harness import Daemon
from tests.support.spark.archives import archived, check_each_once, files_of, ids_at, work_off
from tickwheel.spark import archive_messages
from tickwheel.spark.archive.directory import DirectoryArchive
from tickwheel.spark.archive.manifest import OURS
from tickwheel.spark.archive.places import Read
from tickwheel.spark.storage import DirectoryFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, DONE = 120, 100

#: `tickwheel pipeline archive`, in which one function kills the process, before or after its n-th call.
_DRIVER = """
import os, signal, sys
import tickwheel.sync
from tickwheel_cli.main import main
from tickwheel.spark.archive import archiving
from tickwheel.spark.archive.directory import DirectoryArchive

archiving._DROP_IDS = 30
place, name, when, at = sys.argv[1:5]
where = {"archiving": archiving, "Archive": DirectoryArchive, "Client": tickwheel.sync.Client}[place]
real, calls = getattr(where, name), []

def killing(*args, **options):
    calls.append(1)
    if when == "before" and len(calls) == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*args, **options)
    if when == "after" and len(calls) == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(where, name, killing)
sys.argv[1:] = sys.argv[5:]
sys.exit(main())
"""

POINTS = {
    "files are written": ("archiving", "check_files", "before", "1"),
    "files are checked": ("Archive", "commit", "before", "1"),
    "the manifest is there": ("Archive", "commit", "after", "1"),
    "files have their places": ("Archive", "publish", "after", "1"),
    "some are dropped": ("Client", "drop", "after", "2"),
    "all are dropped": ("Archive", "finish", "before", "1"),
}
#: One runs in `ci`, the others in `make soak`: each starts Spark in a process of its own.
IN_CI = "some are dropped"


@pytest.fixture
def daemon(tmp_path: Path, read: Read) -> Iterator[Daemon]:
    is_served = read == "flight"
    with Daemon(
        tmp_path / "data", purge_after="365d", flight=is_served, flight_listen="127.0.0.1:0"
    ) as running:
        if is_served:
            flight_url(running)
        yield running


@pytest.mark.timeout(400)  # two starts of Spark, on a machine that may be busy
@pytest.mark.parametrize(
    "point",
    [one if one == IN_CI else pytest.param(one, marks=pytest.mark.soak) for one in POINTS],
)
@pytest.mark.parametrize("read", ["in place", pytest.param("flight", marks=pytest.mark.soak)])
def test_killed_when(point: str, read: Read, spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    with tickwheel.sync.Client(daemon.unix_url) as client:
        sent = list(client.send_many("t", [b"x"] * COUNT).ids())
        work_off(client, "t", DONE)
        command = ["pipeline", "archive", "--older-than", "0s", "--to", str(root), "--url", daemon.unix_url]
        command += ["--read", read]
        ended = subprocess.run(
            [sys.executable, "-c", _DRIVER, *POINTS[point], *command, *FAST],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            timeout=240,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        left, committed = ids_at(client), DirectoryArchive(DirectoryFiles(root)).manifests()
        if point.startswith("files are"):
            assert (left, files_of(root), committed) == (sent, [], []), "nothing counts, nothing is dropped"
        else:
            assert len(committed) == 1
            dropped = {"some are dropped": 60, "all are dropped": DONE}.get(point, 0)
            assert len(left) == COUNT - dropped
        work_off(client, "t", 5)
        report = archive_messages(spark, root, older_than=timedelta(), url=daemon.unix_url, read=read)
        assert report.messages == (5 if committed else DONE + 5), "what is archived is not archived again"
        check_each_once(root, client, sent)
        assert len(ids_at(client)) == COUNT - DONE - 5
        assert list((root / OURS / "staging").iterdir()) == []
        again = archive_messages(spark, root, older_than=timedelta(), url=daemon.unix_url, read=read)
        assert (again.messages, again.resumed) == (0, {})
        assert len(archived(root)) == DONE + 5
