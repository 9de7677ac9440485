"""Files of bulk jobs that are put: whole or not at all, nowhere but in their job, and nothing of a run that does not
count.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.run.cases import table
from tests.support.stores.small_disk import small_tmpfs
from tickwheel.arrow.jobs import Stored
from tickwheel.errors import BadJob, DiskFull, Forbidden, ShuttingDown, TickwheelError
from tickwheel_flight.bulk import incoming
from tickwheel_flight.bulk.incoming import TooManyPuts, Watch
from tickwheel_flight.bulk.room import StagingFull
from tickwheel_flight.bulk.staged_names import BadPut, Name, parse_path
from tickwheel_flight.bulk.staging import ASK_AGAIN_S, MAX_CHUNK_BYTES, Staging, StagingUnusable
from tickwheel_flight.snapshots import StoodStill

JOB = "0123456789abcdef" * 2
RUN, OTHER_RUN = "a" * 32, "b" * 32
FILE = f"{RUN}-7-0-0.log"
MAX_BYTES = 1 << 20


class World:
    """One process that takes files, at a time that stands still."""

    def __init__(self, data: Path) -> None:
        self.now_s = 0.0
        self.watch = Watch(now_s=lambda: self.now_s)
        self.staging = Staging(data, MAX_BYTES, watch=self.watch, now_s=lambda: self.now_s)
        self.folder = data / "staging" / JOB
        self.judged = 0

    def plan(self, job: str = JOB, run: str = RUN) -> None:
        """What the broker and then the process do with a plan."""
        (self.staging.path / job).mkdir(parents=True, exist_ok=True)
        self.staging.begin(job, run)

    def judge(self) -> None:
        self.judged += 1

    def put(self, *chunks: bytes, file: str = FILE, job: str = JOB, end: Any = None) -> Stored:
        """``end``: what its writer says of the whole; the truth by default, and nothing if False."""
        content = b"".join(chunks)
        told = Stored(len(content), zlib.crc32(content)) if end is None else end
        pieces = [*chunks, told] if told else [*chunks]
        name = parse_path([b"staging", job.encode(), file.encode()])
        return self.staging.put(name, iter(pieces), self.judge)

    def manifest(self, run: str = RUN, job: str = JOB, **files: int) -> None:
        segments = [{"file": name, "bytes": size} for name, size in files.items()]
        content = json.dumps({"plan": {"job": job}, "segments": segments}).encode()
        self.put(content, file=f"{run}-manifest.json", job=job)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


def planned(folder: Path) -> World:
    """A new one, in which a run was planned."""
    found = World(Path(tempfile.mkdtemp(dir=folder)))
    found.plan()
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return planned(tmp_path)


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
def test_a_file_is_there_when_all_of_it_is(world: World) -> None:
    seen: list[list[str]] = []

    def chunks() -> Iterator[Any]:
        for _ in range(3):
            yield b"x" * 1_000
            seen.append(world.files)
        yield Stored(3_000, zlib.crc32(b"x" * 3_000))

    name = parse_path([b"staging", JOB.encode(), FILE.encode()])
    assert world.staging.put(name, chunks(), world.judge) == Stored(3_000, zlib.crc32(b"x" * 3_000))
    assert all(FILE not in files and len(files) == 2 for files in seen)
    assert world.files == [FILE, f"{RUN}-open"]
    assert (world.folder / FILE).read_bytes() == b"x" * 3_000
    assert (world.folder / FILE).stat().st_nlink == 1
    # Its answer was lost: the same again is no mistake, and another is.
    world.put(b"x" * 3_000)
    with pytest.raises(BadPut, match="another file"):
        world.put(b"y" * 3_000)
    assert (world.folder / FILE).read_bytes() == b"x" * 3_000
    assert world.files == [FILE, f"{RUN}-open"]


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
@table(
    "path",
    [
        [],
        ["staging"],
        ["staging", JOB],
        ["staging", JOB, FILE, ""],
        ["", JOB, FILE],
        ["log", JOB, FILE],
        ["staging", "..", FILE],
        ["staging", "../" + JOB, FILE],
        ["staging", JOB + "/", FILE],
        ["staging", JOB + "\n", FILE],
        ["staging", JOB.upper(), FILE],
        ["staging", JOB + "\0", FILE],
        ["staging", JOB, ".."],
        ["staging", JOB, "../" + FILE],
        ["staging", JOB, "/etc/passwd"],
        ["staging", JOB, FILE + "\0"],
        ["staging", JOB, FILE + "\n"],
        ["staging", JOB, f"{RUN}-7-0-0.log/x"],
        ["staging", JOB, f"{RUN}-7-0-\0.log"],
        ["staging", JOB, f"{RUN}-٧-0-0.log"],
        ["staging", JOB, f"{RUN}-open"],
        ["staging", JOB, f"{RUN}-7-0-0.log.0123456789abcdef.part"],
        ["staging", JOB, "manifest.json"],
        ["staging", JOB, f"{RUN}/../manifest.json"],
        ["staging", JOB, ""],
        ["staging", JOB, "x" * 100_000],
        [b"staging", JOB.encode(), b"\xff\xfe"],
    ],
)
def test_names_lead_nowhere_else(path: list[Any]) -> None:
    with pytest.raises(BadPut):
        parse_path(path)


def test_names() -> None:
    assert parse_path([b"staging", JOB.encode(), FILE.encode()]) == Name(JOB, RUN, FILE)
    assert parse_path(["staging", JOB, f"{RUN}-manifest.json"]).is_manifest


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
@table(
    ("chunks", "end"),
    [
        ([b"abc"], False),
        ([], False),
        ([b"abc"], Stored(3, 0)),
        ([b"abc"], Stored(2, zlib.crc32(b"abc"))),
        ([b"abc"], Stored(3, zlib.crc32(b"abd"))),
        ([bytes(MAX_CHUNK_BYTES + 1)], None),
    ],
)
def test_what_is_not_whole_goes(tmp_path: Path, chunks: list[bytes], end: Any) -> None:
    """Cut, changed on its way, or more at a time than fits."""
    world = planned(tmp_path)
    with pytest.raises(BadPut):
        world.put(*chunks, end=end)
    assert world.files == [f"{RUN}-open"]
    world.put(b"abc")


def test_what_its_source_raises_leaves_nothing(world: World) -> None:
    def chunks() -> Iterator[Any]:
        yield b"abc"
        raise ConnectionResetError(errno.ECONNRESET, "gone")

    with pytest.raises(StagingUnusable):
        world.staging.put(Name(JOB, RUN, FILE), chunks(), world.judge)
    assert world.files == [f"{RUN}-open"]


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
def test_links_are_not_followed(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / "target"
    target.write_bytes(b"untouched")
    # A file that is a link.
    (world.folder / FILE).symlink_to(target)
    with pytest.raises(BadPut):
        world.put(b"abc")
    (world.folder / f"{OTHER_RUN}-open").symlink_to(target)
    with pytest.raises(BadJob):
        world.put(b"abc", file=f"{OTHER_RUN}-1-0-0.log")
    (world.folder / f"{RUN}-8-0-0.log").symlink_to(target)
    world.manifest(**{f"{RUN}-8-0-0.log": len(b"untouched")})
    with pytest.raises(BadJob, match="is not here"):
        world.staging.complete(JOB, RUN)
    # A job that is a link, and all of them.
    other = "f" * 32
    (world.staging.path / other).symlink_to(outside)
    for work in (
        lambda: world.put(b"abc", job=other),
        lambda: world.staging.begin(other, RUN),
        lambda: world.staging.complete(other, RUN),
        lambda: world.staging.drop(other, RUN),
    ):
        with pytest.raises(StagingUnusable):
            work()
    moved = tmp_path / "moved"
    world.staging.path.rename(moved)
    world.staging.path.symlink_to(moved)
    with pytest.raises(StagingUnusable):
        world.put(b"abc")
    assert target.read_bytes() == b"untouched"
    assert list(outside.iterdir()) == [target]


def test_who_is_not_planned_puts_nothing(world: World) -> None:
    for job, file in (
        ("f" * 32, FILE),
        (JOB, f"{OTHER_RUN}-1-0-0.log"),
        (JOB, f"{OTHER_RUN}-manifest.json"),
    ):
        with pytest.raises(BadJob):
            world.put(b"abc", job=job, file=file)
    assert world.files == [f"{RUN}-open"]
    assert not (world.staging.path / ("f" * 32)).exists()


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
def test_only_what_the_driver_names_stays(world: World) -> None:
    """A second attempt at a task, and one that failed, go; files of another run are that run's."""
    world.plan(run=OTHER_RUN)
    for attempt in (1, 2, 3):
        world.put(b"abc", file=f"{RUN}-{attempt}-0-0.log")
    world.put(b"other", file=f"{OTHER_RUN}-1-0-0.log")
    (world.folder / f"{RUN}-4-0-0.log.0011223344556677.part").write_bytes(b"of a process that was killed")
    world.manifest(**{f"{RUN}-2-0-0.log": 3})
    world.staging.complete(JOB, RUN)
    kept = [f"{RUN}-2-0-0.log", f"{OTHER_RUN}-1-0-0.log", f"{OTHER_RUN}-open", "manifest.json"]
    assert world.files == kept
    world.staging.complete(JOB, RUN)
    assert world.files == kept, "to ask again changes nothing"
    with pytest.raises(BadJob, match="takes no files"):
        world.put(b"abc", file=f"{RUN}-5-0-0.log")
    world.put(b"abc", file=f"{OTHER_RUN}-2-0-0.log")


@table("at", ["rename", "unlink", "fsync"])
def test_a_run_that_was_nearly_handed_in_is_handed_in_again(tmp_path: Path, at: str) -> None:
    world = planned(tmp_path)
    world.put(b"abc")
    world.put(b"abc", file=f"{RUN}-8-0-0.log")
    world.manifest(**{FILE: 3})
    with (
        mock.patch(f"os.{at}", side_effect=OSError(errno.EIO, "it ends here")),
        pytest.raises(StagingUnusable),
    ):
        world.staging.complete(JOB, RUN)
    again = World(world.staging.path.parent)
    again.staging.complete(JOB, RUN)
    assert world.files == [FILE, "manifest.json"]


@table(
    ("files", "job"),
    [
        ({FILE: 4}, JOB),
        ({f"{RUN}-8-0-0.log": 3}, JOB),
        ({f"{OTHER_RUN}-1-0-0.log": 3}, JOB),
        ({f"../{JOB}/{FILE}": 3}, JOB),
        ({f"{RUN}-/../{FILE}": 3}, JOB),
        ({f"{RUN}-\0": 3}, JOB),
        ({FILE: 3}, "f" * 32),
    ],
)
def test_a_manifest_names_files_of_its_run(tmp_path: Path, files: dict[str, int], job: str) -> None:
    world = planned(tmp_path)
    world.plan(run=OTHER_RUN)
    world.put(b"abc")
    world.put(b"abc", file=f"{OTHER_RUN}-1-0-0.log")
    segments = [{"file": name, "bytes": size} for name, size in files.items()]
    content = json.dumps({"plan": {"job": job}, "segments": segments}).encode()
    world.put(content, file=f"{RUN}-manifest.json")
    before = world.files
    with pytest.raises(BadJob):
        world.staging.complete(JOB, RUN)
    assert world.files == before


@table("content", [b"", b"{", b"null", b'{"plan":{"job":1},"segments":[]}', b"[" * 100_000, b"\xff"])
def test_a_manifest_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    world = planned(tmp_path)
    world.put(content, file=f"{RUN}-manifest.json")
    with pytest.raises(BadJob):
        world.staging.complete(JOB, RUN)
    assert "manifest.json" not in world.files


def test_what_is_dropped_takes_nothing_more(world: World) -> None:
    world.plan(run=OTHER_RUN)
    world.put(b"abc")
    world.put(b"abc", file=f"{OTHER_RUN}-1-0-0.log")
    world.staging.drop(JOB, RUN)
    assert world.files == [f"{OTHER_RUN}-1-0-0.log", f"{OTHER_RUN}-open"]
    with pytest.raises(BadJob):
        world.put(b"abc")
    world.staging.drop(JOB, RUN)
    world.staging.drop(JOB, OTHER_RUN)
    assert not world.folder.exists()
    world.staging.drop(JOB, OTHER_RUN)
    with pytest.raises(BadJob, match="There is no job"):
        world.put(b"abc")
    world.staging.complete(JOB, RUN)  # the broker is asked, and knows whether it was taken in


def test_a_refused_run_is_dropped_with_the_manifest(world: World) -> None:
    world.put(b"abc")
    world.manifest(**{FILE: 3})
    world.staging.complete(JOB, RUN)
    world.staging.drop(JOB, RUN)
    assert not world.folder.exists()


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
@table("how", ["drop", "complete", "gone"])
def test_a_put_that_ends_too_late(tmp_path: Path, how: str) -> None:
    """The driver is done, and a slow attempt is not: what it brings counts for nothing and stays nowhere."""
    world = planned(tmp_path)
    world.put(b"abc", file=f"{RUN}-1-0-0.log")
    world.manifest(**{f"{RUN}-1-0-0.log": 3})

    def chunks() -> Iterator[Any]:
        yield b"abc"
        if how == "drop":
            world.staging.drop(JOB, RUN)
        elif how == "complete":
            world.staging.complete(JOB, RUN)
        else:
            for path in world.folder.iterdir():
                path.unlink()
            world.folder.rmdir()
        yield Stored(3, zlib.crc32(b"abc"))

    with pytest.raises(BadJob):
        world.staging.put(Name(JOB, RUN, FILE), chunks(), world.judge)
    assert world.files == ([f"{RUN}-1-0-0.log", "manifest.json"] if how == "complete" else [])


def test_a_writer_that_stands_still_makes_room(world: World) -> None:
    given_up = threading.Event()
    size = MAX_BYTES - 1_000

    def chunks() -> Iterator[Any]:
        yield bytes(size)
        with pytest.raises(StagingFull):
            world.put(bytes(2_000), file=f"{RUN}-8-0-0.log")
        world.now_s += incoming.STILL_S - 1
        world.watch.give_up_still()
        assert any(name.endswith(".part") for name in world.files)
        world.now_s += 1
        world.watch.give_up_still()
        assert world.files == [f"{RUN}-open"]
        world.put(bytes(2_000), file=f"{RUN}-8-0-0.log")  # its bytes are free again, though its call is open
        given_up.set()
        yield b"after all"

    with pytest.raises(StoodStill, match="60 s"):
        world.staging.put(Name(JOB, RUN, FILE), chunks(), world.judge)
    assert given_up.is_set()
    assert world.files == [f"{RUN}-8-0-0.log", f"{RUN}-open"]


def test_the_watch_looks_by_itself(world: World) -> None:
    staging = Staging(world.staging.path.parent, MAX_BYTES, watch=Watch(still_s=0.0))
    is_gone = threading.Event()

    def chunks() -> Iterator[Any]:
        yield b"abc"
        while any(name.endswith(".part") for name in world.files):
            is_gone.wait(0.01)
        yield b"abc"

    with pytest.raises(StoodStill):
        staging.put(Name(JOB, RUN, FILE), chunks(), world.judge)


def test_at_most_so_many_bytes(world: World) -> None:
    half = MAX_BYTES // 2
    world.put(bytes(half), file=f"{RUN}-1-0-0.log")
    with pytest.raises(StagingFull) as caught:
        world.put(bytes(half), b"x", file=f"{RUN}-2-0-0.log")
    assert caught.value.retryable
    assert f"{MAX_BYTES:,}" in caught.value.message
    assert world.files == [f"{RUN}-1-0-0.log", f"{RUN}-open"]
    world.put(bytes(half), file=f"{RUN}-2-0-0.log")
    with pytest.raises(StagingFull):
        world.put(b"x", file=f"{RUN}-3-0-0.log")
    # What the broker has taken in makes room.
    (world.folder / f"{RUN}-1-0-0.log").unlink()
    world.put(b"x", file=f"{RUN}-3-0-0.log")
    # Those of other jobs and of a process before count, too.
    again = World(world.staging.path.parent)
    again.plan(job="f" * 32)
    with pytest.raises(StagingFull):
        again.put(bytes(half), job="f" * 32)


def test_many_at_once_stay_within_the_limit(world: World) -> None:
    results: list[str] = []

    def write(number: int) -> None:
        try:
            world.put(*[bytes(10_000)] * 20, file=f"{RUN}-{number}-0-0.log")
            results.append("stored")
        except StagingFull:
            results.append("full")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = results.count("stored")
    assert len(results) == 20
    assert stored * 200_000 <= MAX_BYTES
    assert sum(path.stat().st_size for path in world.folder.iterdir()) == stored * 200_000
    assert len(world.files) == stored + 1
    fits = MAX_BYTES // 200_000 - stored
    for number in range(fits):
        world.put(bytes(200_000), file=f"{RUN}-{100 + number}-0-0.log")


def test_at_most_so_many_files_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_PUTS", 1)

    def chunks() -> Iterator[Any]:
        with pytest.raises(TooManyPuts):
            world.put(b"abc", file=f"{RUN}-8-0-0.log")
        yield Stored(0, 0)

    world.staging.put(Name(JOB, RUN, FILE), chunks(), world.judge)
    world.put(b"abc", file=f"{RUN}-8-0-0.log")


@pytest.mark.promise("bulk-jobs-that-come-by-arrow-flight")
@table(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "full"), DiskFull),
        (OSError(errno.EDQUOT, "full"), DiskFull),
        (OSError(errno.EIO, "broken"), StagingUnusable),
    ],
)
@table("at", ["write", "fsync", "link", "open"])
def test_a_disk_that_fails(tmp_path: Path, error: OSError, kind: type[TickwheelError], at: str) -> None:
    world = planned(tmp_path)
    real: Callable[..., Any] = getattr(os, at)
    calls = 0

    def fail(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if at == "write" and calls == 1:
            return real(*args, **named)
        if at == "open" and not str(args[0]).endswith(".part"):
            return real(*args, **named)
        raise error

    with mock.patch(f"os.{at}", fail), pytest.raises(kind):
        world.put(b"abc", b"def")
    assert world.files == [f"{RUN}-open"]
    world.put(b"abc", b"def")


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """The broker keeps a part of it for other messages, so that a put never takes the last of it."""
    with small_tmpfs(tmp_path / "disk", 40 << 20) as disk:
        world = World(disk)
        world.staging = Staging(disk, 1 << 40)
        world.plan()
        with pytest.raises(DiskFull, match="are kept for other messages"):
            world.put(*[bytes(1 << 20)] * 100)
        assert world.files == [f"{RUN}-open"]
        world.put(*[bytes(1 << 20)] * 30)
        found = os.statvfs(disk)
        assert found.f_bavail * found.f_frsize >= 2 << 20


def test_a_token_that_is_revoked_while_it_writes(world: World) -> None:
    def judge() -> None:
        raise Forbidden

    def chunks() -> Iterator[Any]:
        yield b"abc"
        world.now_s += ASK_AGAIN_S
        yield b"abc"
        pytest.fail("it goes on")

    with pytest.raises(Forbidden):
        world.staging.put(Name(JOB, RUN, FILE), chunks(), judge)
    assert world.files == [f"{RUN}-open"]


def test_the_process_ends(world: World) -> None:
    def chunks() -> Iterator[Any]:
        yield b"abc"
        world.staging.stop()
        assert world.files == [f"{RUN}-open"]
        yield b"abc"

    with pytest.raises(ShuttingDown):
        world.staging.put(Name(JOB, RUN, FILE), chunks(), world.judge)
    with pytest.raises(ShuttingDown):
        world.put(b"abc")


def test_there_is_no_directory_of_jobs(tmp_path: Path) -> None:
    world = World(tmp_path / "elsewhere")
    for work in (world.put, lambda: world.staging.begin(JOB, RUN)):
        with pytest.raises(StagingUnusable, match="No such file"):
            work()


def test_files_are_given_back(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        world.put(b"abc", file=f"{RUN}-{number}-0-0.log")
        with pytest.raises(BadPut):
            world.put(b"abc", end=False)
    assert len(os.listdir("/proc/self/fd")) == before
