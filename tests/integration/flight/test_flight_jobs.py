"""Bulk jobs by DoPut: all or none, each message once, for who may publish everywhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.flight.conftest import Served
from tests.support.flight.calling import Caller, rss_mib, told
from tests.support.flight.writing import Writer, asked, begun, put_raw, staged
from tickwheel import sync
from tickwheel.arrow.jobs import DROP_JOB, PLAN_JOB, Run, Stored
from tickwheel.arrow.network import Flights
from tickwheel.client.admin.pipeline import JobRefused
from tickwheel.errors import BadJob, TickwheelError
from tickwheel_bench.processes import wait_until

pytestmark = pytest.mark.usefixtures("no_defects")

COUNT = 500
JOBS = iter(f"{number:032x}" for number in range(1, 1_000_000))
RUNS = iter(f"{number:032x}" for number in range(1 << 100, (1 << 100) + 1_000_000))


@pytest.fixture
def writer(served: Served, tmp_path: Path) -> Writer:
    return writing(served, tmp_path)


def writing(served: Served, folder: Path, who: str = "all", job: str | None = None) -> Writer:
    flights = Flights(served.url, token=served.tokens.get(who, ""))
    job = job or next(JOBS)
    return Writer(Run(flights, job, next(RUNS)), folder / job[-6:] / who, f"jobs-{job[-6:]}")


def keys_of(served: Served, topic: str) -> list[str]:
    with sync.Client(served.daemon.url, token=served.tokens["all"]) as client:
        found = client.query(f"select key from messages where topic = '{topic}' order by id", limit=100_000)
    return [key for (key,) in found.rows]


def files(served: Served, writer: Writer) -> list[str]:
    return [
        name.partition("/")[2] for name in staged(served.place.data) if name.startswith(f"{writer.run.job}/")
    ]


def test_a_job_comes_in_by_flight_alone(served: Served, writer: Writer) -> None:
    writer.begin()
    writer.task(COUNT)
    # A task that failed once, and one that was tried twice at once: their files count for nothing.
    for segment in writer.write(COUNT, attempt=1):
        writer.run.put(writer.folder / segment.file, segment.file)
    writer.task(COUNT, attempt=2, first=COUNT)
    writer.put_manifest()
    result = writer.adopt()
    assert (result.messages, result.rejected, result.repeated) == (2 * COUNT, 0, False)
    assert keys_of(served, writer.topic) == [f"k{number}" for number in range(2 * COUNT)]
    assert files(served, writer) == []
    assert not (served.place.data / "staging" / writer.run.job).exists()
    again = writer.adopt()
    assert again.messages == result.messages, "to ask again changes nothing"
    planned = writer.run.begin([writer.topic]).adopted
    assert planned is not None
    assert planned.messages == 2 * COUNT
    assert files(served, writer) == [], "what is known needs no directory"
    entries = [one for one in served.place.audited_as("AdoptJob", "ok") if one["subject"] == writer.run.job]
    assert {entry["token"] for entry in entries} == {served.tokens["all"].split("_")[1]}


def test_keys_that_are_taken(served: Served, writer: Writer) -> None:
    with sync.Client(served.daemon.url, token=served.tokens["all"]) as client:
        client.send(writer.topic, b"before", key="k7", delay_ms=9_000_000)
    writer.begin()
    writer.task(COUNT)
    writer.put_manifest()
    with pytest.raises(JobRefused) as caught:
        writer.adopt()
    assert caught.value.result.rejected == 1
    assert [key for key, _, _ in caught.value.result.samples] == ["k7"]
    writer.run.drop()
    assert files(served, writer) == []
    assert keys_of(served, writer.topic) == ["k7"]


def test_who_may_not_publish_everywhere(served: Served, writer: Writer, tmp_path: Path) -> None:
    """Neither puts nor asks anything, with names that are right."""
    writer.begin()
    writer.task(COUNT)
    writer.put_manifest()
    before = files(served, writer)
    (segment,) = writer.segments
    for who in ("queries", "query-a", "body-a", "consumes", "nothing", "none", "wrong"):
        token = {"none": "", "wrong": "twk_0123456789ab_" + "x" * 43}.get(who) or served.tokens.get(who, "")
        run = Run(Flights(served.url, token=token), writer.run.job, writer.run.name)
        works: list[Callable[[], Any]] = [
            lambda run=run: run.begin([writer.topic]),  # type: ignore[misc]
            lambda run=run: run.plan(["other"]),  # type: ignore[misc]
            lambda run=run: run.reserve_ids(1),  # type: ignore[misc]
            lambda run=run: run.adopt(0),  # type: ignore[misc]
            run.drop,
            lambda run=run: run.put(writer.folder / segment.file, segment.file),  # type: ignore[misc]
        ]
        for work in works:
            with pytest.raises(TickwheelError) as caught:
                work()
            assert caught.value.code in ("forbidden", "login_required", "bad_token"), who
    assert files(served, writer) == before
    # Who may publish, and nothing else, writes jobs.
    other = writing(served, tmp_path, "publishes")
    other.begin()
    other.task(COUNT)
    other.put_manifest()
    assert other.adopt().messages == COUNT


def test_another_token_in_the_same_job(served: Served, writer: Writer, tmp_path: Path) -> None:
    """It has a run of its own, and cannot touch what it does not know the name of; the first that is handed in wins."""
    writer.begin()
    writer.task(COUNT)
    other = writing(served, tmp_path, "publishes", writer.run.job)
    other.topic = writer.topic
    other.begin()
    other.task(3)
    other.segments += writer.segments  # files of another run
    other.put_manifest()
    with pytest.raises(BadJob, match="no file of this run"):
        other.adopt()
    other.run.drop()
    mine = files(served, writer)
    assert [name for name in mine if not name.startswith(writer.run.name)] == []
    assert len(mine) == 2
    with pytest.raises(BadJob):
        other.task(3, attempt=1)
    other = writing(served, tmp_path, "publishes", writer.run.job)
    other.topic = writer.topic
    other.begin()
    other.task(5)
    other.put_manifest()
    assert other.adopt().messages == 5
    with pytest.raises(BadJob):
        writer.task(COUNT, attempt=1, first=COUNT)
    with pytest.raises(BadJob):
        writer.put_manifest()
    planned = writer.run.plan([]).adopted
    assert planned is not None
    assert planned.messages == 5
    assert len(keys_of(served, writer.topic)) == 5
    assert files(served, writer) == []


def test_paths_lead_nowhere_else(served: Served, writer: Writer) -> None:
    writer.begin()
    job, run = writer.run.job, writer.run.name
    before = sorted(path for path in served.place.data.rglob("*") if path.is_file())
    end = Stored(3, zlib.crc32(b"abc"))
    for path in (
        ["..", job, f"{run}-1-0-0.log"],
        ["staging", "..", f"{run}-1-0-0.log"],
        ["staging", job, f"../{run}-1-0-0.log"],
        ["staging", job, f"{run}-1-0-0.log\0"],
        ["staging", job, "manifest.json"],
        ["staging", job, "/etc/cron.d/x"],
        ["staging", f"{job}/..", f"{run}-1-0-0.log"],
        ["staging"],
    ):
        assert told(lambda path=path: put_raw(served.all, path, [b"abc"], end))[0] == "bad_put"  # type: ignore[misc]
    assert sorted(path for path in served.place.data.rglob("*") if path.is_file()) == before


def test_what_comes_is_not_trusted(served: Served, writer: Writer) -> None:
    writer.begin()
    path = ["staging", writer.run.job, f"{writer.run.name}-1-0-0.log"]
    for chunks, end in (
        ([b"abc"], None),
        ([b"abc"], b"garbage"),
        ([b"abc"], b"[" * 100_000),
        ([b"abc"], Stored(3, 1)),
        ([bytes(5 << 20)], Stored(5 << 20, zlib.crc32(bytes(5 << 20)))),
    ):
        assert told(lambda chunks=chunks, end=end: put_raw(served.all, path, chunks, end))[0] == "bad_put"  # type: ignore[misc]
    for schema in (pa.schema([]), pa.schema([("bytes", pa.large_string())]), pa.schema([("x", pa.int64())])):
        assert (
            told(lambda schema=schema: put_raw(served.all, path, [], Stored(0, 0), schema))[0]  # type: ignore[misc]
            == "bad_put"
        )
    assert files(served, writer) == [f"{writer.run.name}-open"]
    for action, packed in (
        (PLAN_JOB, b"{"),
        (PLAN_JOB, asked(job="../x", topics=[])),
        (PLAN_JOB, asked(job=writer.run.job, run="..")),
        (PLAN_JOB, asked(job=writer.run.job, topics=[], extra=1)),
        (PLAN_JOB, asked(job=writer.run.job, topics=["not a name"])),
        (DROP_JOB, asked(job=writer.run.job)),
        (DROP_JOB, asked(job=writer.run.job, run=writer.run.name + "\n")),
        (DROP_JOB, b"\xff"),
    ):
        assert told(lambda a=action, p=packed: served.all.act(a, p))[0] in ("bad_source", "bad_topic_name"), (
            packed
        )  # type: ignore[misc]


def test_a_writer_that_goes_away(served: Served, writer: Writer) -> None:
    writer.begin()
    path = ["staging", writer.run.job, f"{writer.run.name}-1-0-0.log"]
    with begun(Caller(served.url, served.tokens["all"]), path):
        wait_until(lambda: any(name.endswith(".part") for name in files(served, writer)))
    wait_until(lambda: files(served, writer) == [f"{writer.run.name}-open"])
    writer.task(COUNT, attempt=1)


def test_memory_is_that_of_a_batch(served: Served, writer: Writer) -> None:
    writer.begin()
    pid = served.daemon.child_pids[-1]
    writer.task(COUNT)
    before = rss_mib(pid)
    large = writer.folder / "large"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    writer.run.put(large, f"{writer.run.name}-9-0-0.log")
    assert rss_mib(pid, "VmHWM") < max(before, rss_mib(pid)) + 100
    writer.run.drop()
