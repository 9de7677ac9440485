"""Archives, what is brought back, and reports in an S3 server, by a real Spark and a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tickwheel
from tests.spark.conftest import Pipeline
from tests.spark.test_spark_cli import FAST
from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import seed
from tests.support.spark.archives import ids_at, work_off
from tests.support.spark.object_store import SECRET, ObjectStore, object_store
from tickwheel.spark import archive_messages, restore_messages
from tickwheel.spark.archive import archiving
from tickwheel.spark.archive.files import read_batches
from tickwheel.spark.archive.layout import archive_at
from tickwheel.spark.errors import ArchiveBusy, ArchiveDamaged
from tickwheel.spark.report.earlier import read_earlier
from tickwheel.spark.storage import Storage, storage_at
from tickwheel.spark.writing.rows import write_options
from tickwheel.spark.writing.sink import Sent, _report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = timedelta()
COUNT, DONE = 120, 100
#: Of one message sent to two topics these are not the same.
_OWN = {"id", "time_created", "time_acked", "groups", "deliver_at", "log_id"}


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "data", purge_after="365d") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[tickwheel.sync.Client]:
    with tickwheel.sync.Client(daemon.unix_url) as client:
        yield client


@pytest.fixture
def place(store: ObjectStore) -> str:
    return f"s3://{store.bucket()}/deep/archive"


def rows_at(storage: Storage) -> list[dict[str, Any]]:
    """All rows that count."""
    archive = archive_at(storage)
    found = [
        row
        for manifest in archive.manifests()
        for entry in manifest.files
        for batch in read_batches(storage, archive.name(manifest, entry))
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: int(row["id"]))


def check_each_once(storage: Storage, client: tickwheel.sync.Client, sent: list[int]) -> None:
    assert Counter([row["id"] for row in rows_at(storage)] + ids_at(client)) == Counter(sent)


@pytest.mark.promise("what-is-archived")
def test_an_object_store_has_what_a_directory_has(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    store: ObjectStore,
    place: str,
    tmp_path: Path,
) -> None:
    for topic in ("a", "b.x"):
        for number in range(40):
            client.send(
                topic,
                b"body %d" % number,
                key=f"k{number}",
                headers={"n": number} if number % 2 else {"raw": b"\xff"},
                order_key="o" if number % 5 == 0 else None,
                priority=number,
            )
        work_off(client, topic, 40)
    options: dict[str, Any] = {"older_than": NOW, "url": daemon.unix_url, "rows_per_task": 30}
    root, files = tmp_path / "archive", storage_at(place, store.options())
    archive_messages(spark, root, topics=["a"], **options)
    planned = archive_messages(spark, place, fs=store.options(), dry_run=True, **options)
    assert planned.messages == 40
    assert list(files.found("")) == [], "a dry run makes nothing"
    report = archive_messages(spark, place, fs=store.options(), **options)
    assert (report.messages, report.dropped, report.kept, report.warnings) == (40, 40, 0, [])
    assert ids_at(client) == []

    def same(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name not in _OWN} for row in rows]

    rows = rows_at(files)
    assert same(rows) == same(rows_at(storage_at(root)))
    assert {row["log_id"] for row in rows} == {client.log_place().log_id}
    names = {one.name for one in files.found("")}
    assert {name.partition("/")[0] for name in names} == {"topic=b.x", "_tickwheel"}
    assert not any("staging" in name or "begun" in name for name in names)
    # They come back equal, and only once.
    for _ in range(2):
        restore_messages(spark, root, into="from-directory", url=daemon.unix_url)
        back = restore_messages(spark, place, into="from-store", url=daemon.unix_url, fs=store.options())
    assert (back.messages, back.stored, back.duplicates) == (40, 0, 40)
    found = {}
    for topic in ("from-directory", "from-store"):
        messages = client.browse(topic, limit=100)
        found[topic] = sorted(
            (one.body, one.priority, one.order_key, one.headers.get("n")) for one in messages
        )
    assert found["from-directory"] == found["from-store"]
    # What is damaged, or gone, is named; nothing is sent of it.
    name = next(name for name in sorted(names) if name.endswith(".parquet"))
    content = files.read(name)
    assert content is not None
    files.write(name, content[:40] + bytes(100) + content[140:])
    for match in ("cannot be read|has the checksum", "is missing"):
        with pytest.raises(ArchiveDamaged, match=match) as caught:
            restore_messages(spark, place, into="x", url=daemon.unix_url, fs=store.options())
        assert f"{place}/{name}" in str(caught.value)
        files.remove([name])


@pytest.mark.promise("what-is-archived")
def test_two_at_once(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    store: ObjectStore,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list(client.send_many("t", [b"x"] * 30).ids())
    work_off(client, "t", 30)
    check_files = archiving.check_files
    reports = []

    def run() -> Any:
        options: dict[str, Any] = {"older_than": NOW, "url": daemon.unix_url, "fs": store.options()}
        return archive_messages(spark, place, **options)

    def meanwhile(*args: Any) -> None:
        check_files(*args)
        monkeypatch.setattr(archiving, "check_files", check_files)
        reports.append(run())

    monkeypatch.setattr(archiving, "check_files", meanwhile)
    with pytest.raises(ArchiveBusy, match="archived messages of this broker") as caught:
        run()
    (report,) = reports
    assert report.run in str(caught.value)
    assert (report.messages, report.dropped) == (30, 30)
    assert "has begun and not ended" in report.warnings[0]
    files = storage_at(place, store.options())
    check_each_once(files, client, sent)
    assert sum(one.name.endswith(".parquet") for one in files.found("")) == report.files


@pytest.mark.ci
@pytest.mark.timeout(600)  # on a machine that may be busy
def test_a_report_goes_there(
    daemon: Daemon, client: tickwheel.sync.Client, store: ObjectStore, pipeline: Pipeline
) -> None:
    client.send_many("t", [b"x"] * 30)
    work_off(client, "t", 30)
    out = f"s3a://{store.bucket()}/report"
    said = pipeline("report", "--data", str(daemon.directory), "--out", out, *store.words())
    assert f"{out}/index.html" in said.stdout
    assert SECRET not in said.output
    files = storage_at(out, store.options())
    assert read_earlier(out, store.options()).totals["acked"] == 30
    assert b"<html" in (files.read("index.html") or b"")[:200].lower()
    with files.open("tables/latency.parquet") as opened:
        assert pq.read_table(opened).num_rows > 0


def test_small_files_of_other_commands(
    spark: SparkSession,
    daemon: Daemon,
    store: ObjectStore,
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = store.options()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    place = f"s3://{store.bucket()}/small"
    rows = pa.table({"deliver_at": [1_935_000_000_000, None], "body": ["a", "b"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    said = pipeline(
        *("schedule", "--from", str(tmp_path / "rows.parquet"), "--topic", "t", "--max-rejects", "1"),
        *("--rejects", place, "--url", daemon.unix_url, "--json"),
    )
    told = json.loads(said.stdout)
    assert (told["messages"], told["rejected"]) == (1, 1)
    files = storage_at(place)
    (name,) = [one.name for one in files.found("")]
    assert told["rejects"] == f"{place}/{name}"
    with files.open(name) as opened:
        assert pq.read_table(opened).column("reason").to_pylist() == ["no_time"]
    # Spark does this in a process of its own, whose environment is that of Java's start.
    _report(write_options({"topic": "t", "report": f"{place}/counts.json"}), [Sent(1, 0)], is_complete=True)
    assert json.loads(files.read("counts.json") or b"")["stored"] == 1


#: `tickwheel pipeline archive`, in which one function kills the process, before or after its n-th call.
_DRIVER = """
import os, signal, sys
import tickwheel.sync
from tickwheel_cli.main import main
from tickwheel.spark.archive import archiving
from tickwheel.spark.archive.objects import ObjectArchive
from tickwheel.spark.storage.objects import ObjectFiles

archiving._DROP_IDS = 30
place, name, when, at = sys.argv[1:5]
where = {"archiving": archiving, "Archive": ObjectArchive, "Files": ObjectFiles, "Client": tickwheel.sync.Client}[place]
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
    "it has begun": ("Archive", "begin", "after", "1"),
    "files are written": ("archiving", "check_files", "before", "1"),
    "files are checked": ("Archive", "commit", "before", "1"),
    "the manifest is there": ("Archive", "_is_created", "after", "1"),
    "it counts": ("Archive", "commit", "after", "1"),
    "some are dropped": ("Client", "drop", "after", "2"),
    "all are dropped": ("Archive", "finish", "before", "1"),
    "that is written down": ("Archive", "finish", "after", "1"),
}
IN_CI = ("files are written", "some are dropped")


def driver(words: list[str], arguments: list[str], store: ObjectStore, log: Path) -> list[str]:
    """A command that archives to the store, and has Spark write down all that it does."""
    logs = [
        "spark.eventLog.enabled=true",
        "spark.eventLog.compress=false",
        f"spark.eventLog.dir={log.as_uri()}",
    ]
    conf = [word for one in logs for word in ("--conf", one)]
    return [sys.executable, "-c", _DRIVER, *words, "pipeline", *arguments, *store.words(), *FAST, *conf]


def check_that_it_ends(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    files: Storage,
    sent: list[int],
    fs: dict[str, str],
) -> None:
    """The next run finishes what was left; then nothing is left to do."""
    work_off(client, "t", 5)
    options: dict[str, Any] = {"older_than": NOW, "url": daemon.unix_url, "fs": fs}
    archive_messages(spark, files.shown, **options)
    check_each_once(files, client, sent)
    assert len(ids_at(client)) == COUNT - DONE - 5
    again = archive_messages(spark, files.shown, **options)
    assert (again.messages, again.resumed) == (0, {})
    named = {entry.name for manifest in archive_at(files).manifests() for entry in manifest.files}
    assert {one.name for one in files.found("") if one.name.endswith(".parquet")} == named


@pytest.mark.timeout(900)  # two starts of Spark, on a machine that may be busy
@pytest.mark.parametrize(
    "point", [one if one in IN_CI else pytest.param(one, marks=pytest.mark.soak) for one in POINTS]
)
def test_killed_when(
    point: str,
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    store: ObjectStore,
    place: str,
    tmp_path: Path,
) -> None:
    log = tmp_path / "events"
    log.mkdir()
    sent = list(client.send_many("t", [b"x"] * COUNT).ids())
    work_off(client, "t", DONE)
    arguments = ["archive", "--older-than", "0s", "--to", place, "--url", daemon.unix_url]
    ended = subprocess.run(
        driver([*POINTS[point]], arguments, store, log),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=500,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    # What Spark writes down, and prints, has no secret.
    events = b"".join(path.read_bytes() for path in log.rglob("*") if path.is_file())
    assert b"SparkListenerApplicationStart" in events
    for text in (events, ended.stdout, ended.stderr):
        assert SECRET.encode() not in text
    files = storage_at(place, store.options())
    committed = archive_at(files).manifests()
    is_early = point in ("it has begun", "files are written", "files are checked")
    assert len(committed) == (not is_early)
    if is_early:
        assert ids_at(client) == sent, "nothing counts, nothing is dropped"
    check_that_it_ends(spark, daemon, client, files, sent, store.options())


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_at_any_time(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    draw = Random(seed("killed at any time"))
    for course in range(20):
        with (
            Daemon(tmp_path / f"data{course}", purge_after="365d") as daemon,
            tickwheel.sync.Client(daemon.unix_url) as client,
        ):
            sent = list(client.send_many("t", [b"x"] * COUNT).ids())
            work_off(client, "t", DONE)
            files = storage_at(f"s3://{store.bucket()}/x", store.options())
            arguments = ["archive", "--older-than", "0s", "--to", files.shown, "--url", daemon.unix_url]
            log = tmp_path / f"log{course}"
            log.mkdir()
            process = subprocess.Popen(
                driver(["archiving", "check_files", "never", "0"], arguments, store, log),
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # From its first object on, each step is as likely.
            while process.poll() is None and next(files.found(""), None) is None:
                time.sleep(0.01)
            time.sleep(draw.random() * 3)
            process.kill()
            process.wait()
            check_that_it_ends(spark, daemon, client, files, sent, store.options())
