"""The archive in an object store, by its real runs on a simulated store and broker: whatever is killed, lost or late,
and whoever else archives, each message is in the archive or with the broker, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.support.run.profile import amount, seed, some_of
from tests.support.spark.simulated_storage import Killed, Life, SimulatedFiles, Turns, World
from tests.unit.tickwheel.spark.archive.test_archive_files import plain
from tickwheel.arrow.archive_table import SCHEMA, Counts, Passed, Piece, Wanted
from tickwheel.spark.archive import archiving
from tickwheel.spark.archive.archiving import ArchiveReport
from tickwheel.spark.archive.files import read_ids
from tickwheel.spark.archive.layout import archive_at
from tickwheel.spark.archive.manifest import OURS, RUNS, FileEntry, Manifest, Outcome
from tickwheel.spark.archive.objects import REMEMBERED_MS, ObjectArchive
from tickwheel.spark.archive.places import Read
from tickwheel.spark.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveError,
    ArchiveUncertain,
    StorageDenied,
    StorageError,
)
from tickwheel.spark.storage import DirectoryFiles

LOG = f"{1:016x}"
COUNT = 6


@dataclass
class Broker:
    """Messages that are done; those of ``called`` are called for again, so that they are kept."""

    world: World
    ids: set[int]
    log_id: str = LOG
    called: set[int] = field(default_factory=set)

    def drop(self, chosen: Sequence[tuple[int, int]]) -> Any:
        """Only what the archive holds at this moment may be dropped."""
        numbers = {number for first, count in chosen for number in range(first, first + count)}
        safe = Counter(number for log_id, number in archived(self.world) if log_id == self.log_id)
        assert numbers <= set(safe), "the broker is told to drop what the archive does not hold"
        kept = numbers & self.ids & self.called
        dropped = (numbers & self.ids) - kept
        self.ids -= dropped
        gone = len(numbers) - len(dropped) - len(kept)
        return SimpleNamespace(dropped=len(dropped), gone=gone, kept=[(number, 1) for number in sorted(kept)])


def archived(world: World) -> list[tuple[str, int]]:
    """Log and id of all that counts: of the files of all manifests, each of which must be whole."""
    found = []
    for name, content in world.contents.items():
        if name.startswith(f"{RUNS}/") and name.endswith(".json"):
            manifest = msgspec.json.decode(content, type=Manifest)
            for entry in manifest.files:
                found += [(manifest.log_id, one) for one in _ids(world.contents[entry.name], entry)]
    return found


_known: dict[bytes, list[int]] = {}


def _ids(content: bytes, entry: FileEntry) -> list[int]:
    if content not in _known:
        world = World(Random(0), contents={entry.name: content}, made={entry.name: 0})
        _known[content] = read_ids(SimulatedFiles(Life(world)), entry.name, entry).tolist()
    return _known[content]


def garbage(world: World) -> set[str]:
    """Files beside those that count."""
    named = {
        entry.name
        for name, content in world.contents.items()
        if name.startswith(f"{RUNS}/") and name.endswith(".json")
        for entry in msgspec.json.decode(content, type=Manifest).files
    }
    return {name for name in world.contents if name.startswith("topic=")} - named


@cache
def _row(number: int, log_id: str) -> Any:
    return pa.RecordBatch.from_pylist([plain(number) | {"log_id": log_id}], SCHEMA)


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark and the data directory do, in this process: each part is a task of three messages."""

    def run_tasks(
        spark: Any, parts: Sequence[Any], work: Callable[[Any, str], Any], answer: Any
    ) -> list[Any]:
        return [work(part, f"{number:05d}-0") for number, part in enumerate(parts)]

    monkeypatch.setattr(archiving, "run_tasks", run_tasks)
    monkeypatch.setattr(archiving, "_DROP_IDS", 2)
    monkeypatch.setattr("tickwheel.spark.archive.objects._READS_AT_ONCE", 1)


class BrokerPlace:
    """What a run reads: each part is a task of three messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.read: Read = "in place"
        self.topics: list[str] = []

    def parts(self, wanted: Wanted, rows: int, *, are_counts: bool) -> list[Any]:
        return [(first, first + 3) for first in range(1, COUNT + 1, 3)]

    def count(self, part: Any, wanted: Wanted) -> Counts:
        raise NotImplementedError

    def pieces(self, part: Any, wanted: Wanted, passed: Passed) -> Iterator[Piece]:
        broker = self._broker
        for number in range(*part):
            if number in broker.ids - broker.called and number not in wanted.without:
                passed.meant += 1
                yield Piece("t", 0, _row(number, broker.log_id))


class Client:
    def __init__(self, broker: Broker, life: Life) -> None:
        self._broker, self._life = broker, life

    def log_place(self) -> Any:
        return SimpleNamespace(log_id=self._broker.log_id, directory="")

    def stats(self) -> Any:
        return SimpleNamespace(now_ms=self._life.world.now_ms)

    def drop(self, log_id: str, chosen: Sequence[tuple[int, int]], *, done_before: int) -> Any:
        assert log_id == self._broker.log_id
        return self._life.do(lambda: self._broker.drop(chosen))


def run(broker: Broker, life: Life) -> ArchiveReport:
    """A run of the archive, as `tickwheel pipeline archive` does it."""
    nothing: Any = None
    client: Any = Client(broker, life)
    work = archiving._Run(
        spark=nothing,
        client=client,
        archive=archive_at(SimulatedFiles(life)),
        place=BrokerPlace(broker),
        rows_per_task=100,
        now_ms=life.world.now_ms,
    )
    return work.work(timedelta(), (), ("acked",), purge=False, dry_run=False)


def finished(broker: Broker, sent: set[int]) -> None:
    """Nothing was lost and nothing is twice, whatever happened; and a run that nothing happens to ends it all."""
    world = broker.world
    found = Counter(number for log_id, number in archived(world) if log_id == broker.log_id)
    assert set(found) | broker.ids == sent, "a message is lost"
    assert all(times == 1 for times in found.values()), "a message is archived twice"
    world.late_steps = world.lost_one_in = 0
    for _ in range(31):
        world.step()
    run(broker, Life(world))
    found = Counter(number for log_id, number in archived(world) if log_id == broker.log_id)
    assert Counter(found.elements()) == Counter(sent)
    assert broker.ids <= broker.called
    for name in world.contents:
        if name.startswith(f"{RUNS}/") and name.endswith(".json"):
            manifest = msgspec.json.decode(world.contents[name], type=Manifest)
            assert manifest.log_id != broker.log_id or name.replace(".json", ".done") in world.contents


def new(number: str, **badness: int) -> Broker:
    world = World(Random(seed(number)), **badness)
    return Broker(world, set(range(1, COUNT + 1)))


def test_a_run_and_one_that_finds_nothing() -> None:
    broker = new("plain")
    broker.called = {3}
    report = run(broker, Life(broker.world))
    assert (report.messages, report.dropped, report.kept, report.warnings) == (COUNT - 1, COUNT - 1, 0, [])
    assert sorted(number for _, number in archived(broker.world)) == sorted({*range(1, COUNT + 1)} - {3})
    assert f"{RUNS}/00000001.json" in broker.world.contents
    again = run(broker, Life(broker.world))
    assert (again.messages, again.run) == (0, None)
    assert [name for name in broker.world.contents if name.startswith(f"{OURS}/begun")] == []
    assert garbage(broker.world) == set()


@pytest.mark.promise("what-is-archived")
def test_it_is_killed_at_each_step() -> None:
    steps = Life(World(Random(0)))
    run(Broker(steps.world, set(range(1, COUNT + 1))), steps)
    assert steps.steps >= 20
    for step in some_of(range(1, steps.steps + 1), 2):
        for after in (False, True):
            broker = new("kill")
            with pytest.raises(Killed):
                run(broker, Life(broker.world, kill_at=step, after=after))
            finished(broker, set(range(1, COUNT + 1)))
            assert garbage(broker.world) == set(), f"killed at {step}"


@pytest.mark.promise("what-is-archived")
def test_it_is_killed_while_it_brings_a_killed_run_to_its_end() -> None:
    for first in some_of(range(3, 21), 6):
        for second in some_of(range(3, 21), 6):
            broker = new("twice")
            for step in (first, second):
                try:
                    run(broker, Life(broker.world, kill_at=step))
                except Killed:
                    continue
            finished(broker, set(range(1, COUNT + 1)))


def _others(seed_name: str, brokers: Sequence[Broker], **badness: int) -> list[Exception]:
    """Several runs at once, of which some are killed. What went wrong with them."""
    world = brokers[0].world
    draw = Random(seed(seed_name))
    turns, failed = Turns(draw), list[Exception]()

    def of(number: int, broker: Broker) -> Callable[[], None]:
        kill_at = draw.randrange(1, 40) if badness.get("kills") else 0
        life = Life(world, lambda: turns.wait(number), kill_at, after=draw.random() < 0.5)

        def work() -> None:
            try:
                run(broker, life)
            except Killed:
                pass
            except Exception as error:
                failed.append(error)

        return work

    turns.run(*(of(number, broker) for number, broker in enumerate(brokers)))
    return failed


@pytest.mark.promise("what-is-archived")
def test_two_at_once_and_one_says_so() -> None:
    busy = 0
    for course in range(amount("examples")):
        broker = new(f"two {course}")
        failed = _others(f"two {course}", [broker, broker])
        assert [type(error) for error in failed] in ([], [ArchiveBusy]), failed
        busy += len(failed)
        assert garbage(broker.world) == set(), "who is late takes its files away"
        finished(broker, set(range(1, COUNT + 1)))
    assert busy > amount("examples") // 2


@pytest.mark.promise("what-is-archived")
def test_many_at_once_that_are_killed_on_a_bad_store() -> None:
    kinds = set[type[Exception]]()
    for course in range(amount("examples") * 2):
        name = f"bad {course}"
        broker = new(name, late_steps=course % 3 * 20, lost_one_in=course % 4 * 3)
        broker.called = {2, 7} if course % 2 else set()
        other = Broker(broker.world, set(range(1, COUNT + 1)), log_id=f"{2:016x}")
        for error in _others(name, [broker, broker, other, broker], kills=1):
            kinds.add(type(error))
            assert isinstance(error, ArchiveBusy | ArchiveUncertain | StorageError | ArchiveDamaged), error
        broker.called.clear()
        for each in (broker, other):
            finished(each, set(range(1, COUNT + 1)))
    assert {ArchiveBusy, ArchiveUncertain} <= kinds


@pytest.mark.promise("what-is-archived")
def test_brokers_do_not_keep_each_other_off() -> None:
    for course in range(amount("examples")):
        broker = new(f"logs {course}")
        other = Broker(broker.world, set(range(1, COUNT + 1)), log_id=f"{2:016x}")
        assert _others(f"logs {course}", [broker, other]) == []
        assert broker.ids == other.ids == set()
        assert len(archived(broker.world)) == 2 * COUNT


@pytest.mark.promise("what-is-archived")
def test_what_was_left_is_deleted_and_what_others_have_beside_is_not() -> None:
    broker = new("left")
    with pytest.raises(Killed):
        run(broker, Life(broker.world, kill_at=8))
    left = garbage(broker.world)
    assert left
    mine = {"topic=t/date=1970-01-01/mine.parquet", "notes.txt"}
    for name in mine:
        broker.world.put(name, b"no archive")
    report = run(broker, Life(broker.world))
    assert len(report.warnings) == 1
    assert "has begun and not ended" in report.warnings[0]
    assert garbage(broker.world) == mine - {"notes.txt"}
    assert "notes.txt" in broker.world.contents
    (marker,) = [name for name in broker.world.contents if name.startswith(f"{OURS}/begun")]
    # A task of the dead run writes after all; later runs know its name for an hour.
    late = next(iter(left))
    broker.world.put(late, b"late")
    broker.world.now_ms += REMEMBERED_MS
    broker.ids = {5}
    broker.world.contents = {
        name: content for name, content in broker.world.contents.items() if not name.startswith(RUNS)
    }
    run(broker, Life(broker.world))
    assert late not in broker.world.contents
    assert marker not in broker.world.contents


@dataclass(slots=True)
class _Losing(World):
    """The answer to the first manifest is lost. ``arrives``: so many steps later it is there; None: never."""

    arrives: int | None = None
    is_lost: bool = False

    def lose(self, name: str, content: bytes) -> bool:
        if self.is_lost or not name.endswith(".json"):
            return False
        self.is_lost = True
        if self.arrives is not None:
            self.on_their_way.append((self.steps + self.arrives, name, content))
        return True


@pytest.mark.parametrize("arrives", [None, 0, 1, 3, 6, 9, 12, 15, 18, 21, 30])
def test_a_run_whose_fate_is_not_known(arrives: int | None) -> None:
    """Its manifest never arrives, or while the next run reads, writes and commits, or after it."""
    broker = Broker(_Losing(Random(0), arrives=arrives), set(range(1, COUNT + 1)))
    with pytest.raises(ArchiveUncertain, match="It is not known"):
        run(broker, Life(broker.world))
    assert [name for name in broker.world.contents if name.startswith("topic=")], "they may count"
    try:
        run(broker, Life(broker.world))
    except ArchiveBusy:
        assert arrives
    finished(broker, set(range(1, COUNT + 1)))
    assert garbage(broker.world) == set()


@dataclass(slots=True)
class _Replacing(World):
    def create(self, name: str, content: bytes) -> bool:
        self.put(name, content)
        return True


@pytest.mark.promise("what-is-archived")
def test_a_store_that_replaces_what_is_there_is_refused() -> None:
    broker = Broker(_Replacing(Random(0)), set(range(1, COUNT + 1)))
    with pytest.raises(ArchiveError, match="two runs could not be kept apart"):
        run(broker, Life(broker.world))
    assert len(broker.ids) == COUNT
    assert garbage(broker.world) == set()


@dataclass(slots=True)
class _Refusing(World):
    def create(self, name: str, content: bytes) -> bool:
        if name.endswith(".json"):
            raise StorageDenied("no")
        return World.create(self, name, content)


def test_a_put_that_is_refused_leaves_nothing() -> None:
    broker = Broker(_Refusing(Random(0)), set(range(1, COUNT + 1)))
    with pytest.raises(StorageDenied):
        run(broker, Life(broker.world))
    assert garbage(broker.world) == set()
    assert len(broker.ids) == COUNT


def test_a_missing_manifest_is_damage_and_no_end(tmp_path: Path) -> None:
    broker = new("missing")
    for numbers in ({1, 2}, {3, 4}, {5, 6}):
        broker.ids = set(numbers)
        run(broker, Life(broker.world))
    del broker.world.contents[f"{RUNS}/00000002.json"]
    with pytest.raises(ArchiveDamaged, match=r"00000002\.json is missing"):
        run(broker, Life(broker.world))


def test_a_copy_in_a_directory_is_the_same_archive_and_the_other_way_round(tmp_path: Path) -> None:
    broker = new("copy")
    broker.called = {1}
    run(broker, Life(broker.world))
    for name, content in broker.world.contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    copy = archive_at(DirectoryFiles(tmp_path))
    copy.check()
    (manifest,) = copy.manifests()
    assert manifest.rows == COUNT - 1
    assert copy.outcome(manifest) == Outcome(dropped=COUNT - 1, gone=0, kept=[])
    assert [copy.name(manifest, entry) for entry in manifest.files] == [
        entry.name for entry in manifest.files
    ]
    with copy.locked():
        assert copy.remove_orphans() == 0
        copy.finish(manifest, Outcome(dropped=1, gone=1, kept=[]))
    assert (tmp_path / RUNS / "00000001.done").read_bytes() != broker.world.contents[f"{RUNS}/00000001.done"]
    # Names of a directory are read in an object store, too.
    renamed = {
        name.replace("/00000001.", f"/{manifest.run}."): one for name, one in broker.world.contents.items()
    }
    back = archive_at(
        SimulatedFiles(
            Life(
                World(
                    Random(0),
                    contents=renamed,
                    made=dict.fromkeys(renamed, 0),
                    modified_ms=dict.fromkeys(renamed, 0),
                )
            )
        )
    )
    assert isinstance(back, ObjectArchive)
    back.check()
    assert back.manifests() == [manifest]
    assert back.outcome(manifest) == Outcome(dropped=COUNT - 1, gone=0, kept=[])


def test_there_is_no_archive() -> None:
    with pytest.raises(ArchiveError, match="is not an archive"):
        archive_at(SimulatedFiles(Life(World(Random(0))))).check()
