"""A cluster that begins with a log that is there: a broker's, a backup, or a replica's; and back."""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest
import trio
from trio.testing import MockClock

from tests.support.cluster.replicas import SETTINGS, check_replicas, segments_of, work
from tests.support.native.driver import MIB, NOW_MS, pump
from tests.support.native.frames import ack_payload, delivered, delivered_bodies, send
from tests.support.stores.purging import LATER_MS
from tickwheel_broker.sharedlog.beginning import (
    ClusterExists,
    ClusterUnreachable,
    NoCluster,
    TopicNotUsable,
    UnfinishedCluster,
    begin,
    look_at,
    read_origin,
)
from tickwheel_broker.sharedlog.trimming import Trimming
from tickwheel_broker.sharedlog.upload import Begun, begin_from
from tickwheel_simulation.cluster.partition import Line, Partition, PartitionFaults
from timerlog.background import WaitDurable
from timerlog.errors import BadDirectory, ReplicaDirectory
from timerlog.files.disk import FileDisk
from timerlog.files.replica_mark import ReplicaMark, mark_replica, read_mark
from timerlog.maintenance.backup import back_up, restore
from timerlog.purge.drop import DropTicket, FreeTicket
from timerlog.replication import source as sources
from timerlog.replication.follower import open_follower
from timerlog.replication.genesis import Upload, pack_genesis, unpack_upload
from timerlog.replication.origin import origin_of
from timerlog.replication.places import Places
from timerlog.replication.record import Kind, Writer, fence, unpack
from timerlog.replication.rule import Reader, Said, State
from timerlog.replication.source import Source, SourceKind, open_source
from timerlog.settings import StoreSettings
from timerlog.store import Store

HOUR_MS: Final = 3_600_000
ANY: Final = msgspec.structs.replace(SETTINGS, segment_bytes=0)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BATCH_BYTES", 6_000)


class Alone:
    """A broker's store."""

    def __init__(self, directory: Path, now_ms: int = NOW_MS) -> None:
        self.store = Store.open(directory, SETTINGS, now_ms)

    def commit(self) -> None:
        """See `Owner`."""
        self.store.sync()


def broker(directory: Path, rounds: int = 8, *, purges: bool = False) -> str:
    """A directory whose broker was killed; its state."""
    alone = Alone(directory)
    work(alone, rounds)  # type: ignore[arg-type]
    if purges:
        alone.store.purge(LATER_MS)
        assert alone.store.log.segments[0] > 0
    topic = alone.store.topics.open("later", NOW_MS)
    alone.store.produce.ingest(send(topic, [b"in an hour"], times_ms=[NOW_MS + HOUR_MS]), NOW_MS)
    alone.store.sync()
    state = alone.store.look.state_hash()
    alone.store.close(clean=False)
    return state


def run(scenario: Callable[[Partition, Line], Awaitable[None]], fails: float = 0.0, seed: int = 1) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            log = Partition(random.Random(seed), PartitionFaults(fails=fails))
            await scenario(log, Line(log, nursery))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def upload(log: Partition, directory: Path, fails: float = 0.0) -> tuple[Begun, SourceKind]:
    """All of it."""
    found: list[Begun] = []

    async def scenario(_: Partition, line: Line) -> None:
        line.partition = log
        log.faults = PartitionFaults(fails=fails)
        found.append(await begin_from(line, "test", source, lambda: NOW_MS))

    with open_source(directory, ANY) as source:
        run(scenario)
    return found[0], source.kind


def new_log() -> Partition:
    return Partition(random.Random(7))


def mark_of(log: Partition) -> ReplicaMark:
    """As a node's process writes it."""
    genesis = state_of(log)[0].genesis
    return ReplicaMark(genesis.cluster, genesis.shard, genesis.log_id, pack_genesis(genesis).decode())


def records_of(log: Partition) -> list[tuple[int, bytes]]:
    return list(enumerate(log.records))[log.first_offset :]


class Cluster:
    """Nodes that follow what was uploaded; one of them owns it for a while."""

    def __init__(self, log: Partition, root: Path) -> None:
        self.log, self._root = log, root

    def directory(self, node: int) -> Path:
        return self._root / f"node-{node}"

    @contextmanager
    def owner(self, node: int, term: int, now_ms: int = NOW_MS) -> Iterator[Owning]:
        directory = self.directory(node)
        directory.mkdir(exist_ok=True)
        records = records_of(self.log)
        origin = origin_of(records)
        assert origin is not None
        follower = open_follower(directory, FileDisk(directory), SETTINGS, origin, now_ms)
        self.log.records.append(fence(node, term, now_ms))
        for offset, record in records_of(self.log):
            if offset > follower.offset:
                follower.take(offset, record)
        assert (follower.reader.state.term, follower.reader.state.node) == (term, node)
        store = Store.of(follower.promote(), FileDisk(directory), SETTINGS, now_ms, follower.healing)
        owning = Owning(self.log, store, Writer(node, term, follower.reader.state.chain), follower.places)
        owning.commit()
        yield owning
        owning.commit()
        store.close(clean=False)

    def check(self, nodes: int = 2) -> str:
        """All nodes, and one that is new, have the same; its state."""
        states: list[str] = []
        directories = [self.directory(number) for number in range(1, nodes + 1)]
        for directory in directories:
            directory.mkdir(exist_ok=True)
        check_replicas(
            directories,
            records_of(self.log),
            SETTINGS,
            NOW_MS,
            lambda store: states.append(store.look.state_hash()),
        )
        return states[0]


class Owning:
    """Ships what its store wrote."""

    def __init__(self, log: Partition, store: Store, writer: Writer, places: Places) -> None:
        self._log, self.store, self._writer, self.places = log, store, writer, places

    def purge(self, now_ms: int) -> None:
        """All that can go."""
        job = self.store.purger.start()
        while not job.is_done:
            match self.store.purger.step(now_ms):
                case WaitDurable():
                    self.commit()
                case DropTicket() | FreeTicket() as ticket:
                    ticket.run()
        assert job.error is None, job.error
        self.commit()

    def commit(self) -> None:
        """See `Owner`."""
        ticket = self.store.begin_sync()
        if ticket is None:
            return
        for record in self._writer.data(ticket.pieces, NOW_MS):
            head, body = unpack(record) or pytest.fail("it is a record")
            said = Said.BATCH if head.is_last else Said.PART
            self.places.read(head, body, said, len(self._log.records))
            self._log.records.append(record)
        self.store.finish_sync(ticket)


def receive(owner: Owning, topic: str, now_ms: int) -> list[bytes]:
    """What a new group is delivered of a topic then."""
    store = owner.store
    owner.commit()
    pump(store, now_ms)
    group = store.groups.open(store.topics.open(topic, now_ms), f"g{now_ms}", now_ms)
    owner.commit()
    frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 1_000, MIB, now_ms)
    owner.commit()
    return [body for _, body in delivered_bodies(frame)] if frame else []


@pytest.mark.parametrize("purges", [False, True])
def test_a_broker_goes_on_as_a_cluster(tmp_path: Path, purges: bool) -> None:
    """With the same bytes, state, log and timeline; and by itself it does not start any more."""
    state = broker(tmp_path / "data", 22, purges=purges)
    with (tmp_path / "data" / "commitlog" / max(segments_of(tmp_path / "data"))).open("r+b") as last:
        last.seek(len(last.read().rstrip(b"\0")) + 8)
        last.write(b"a record that was not written whole")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    begun, kind = upload(log := new_log(), tmp_path / "data")
    assert (kind, begun.went_on, begun.upload.genesis.timeline) == (SourceKind.BROKER, False, 0)
    with pytest.raises(ReplicaDirectory, match="cluster test"):
        Store.open(tmp_path / "data", SETTINGS, NOW_MS)
    cluster = Cluster(log, tmp_path)
    assert cluster.check() == state
    again = Store.open(tmp_path / "copy", SETTINGS, NOW_MS)
    again.close(clean=False)
    written = segments_of(tmp_path / "copy")
    assert {
        name: content[: len(written[name])] for name, content in segments_of(tmp_path / "node-1").items()
    } == written
    with cluster.owner(1, 7) as owner:
        assert owner.store.log.log_id == again.log.log_id
        assert owner.store.timeline == again.timeline
        assert receive(owner, "later", NOW_MS + HOUR_MS - 1) == []
        assert receive(owner, "later", NOW_MS + HOUR_MS) == [b"in an hour"]
    cluster.check(3)


@pytest.mark.promise("in-a-cluster")
@pytest.mark.parametrize("by_backup", [False, True])
def test_receipts_of_before(tmp_path: Path, by_backup: bool) -> None:
    """They count on where the broker itself goes on, and nowhere else."""
    alone, now_ms = Alone(tmp_path / "data"), NOW_MS + 10_000
    work(alone, 8)  # type: ignore[arg-type]
    store = alone.store
    group = store.groups.open(store.topics.open("t", now_ms), "g", now_ms)
    frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 8, MIB, now_ms)
    assert frame
    receipts = ack_payload(group, *delivered(frame))
    store.sync()
    store.close(clean=False)
    if by_backup:
        back_up(tmp_path / "data", tmp_path / "backup", NOW_MS)
    upload(log := new_log(), tmp_path / ("backup" if by_backup else "data"))
    with Cluster(log, tmp_path).owner(1, 7, now_ms) as owner:
        accepted = owner.store.deliver.ack(receipts, 1, now_ms).accepted
    assert accepted == (0 if by_backup else 8)


def test_the_directory_of_the_broker_may_be_that_of_a_node(tmp_path: Path) -> None:
    state = broker(tmp_path / "node-1")
    upload(log := new_log(), tmp_path / "node-1")
    assert Cluster(log, tmp_path).check() == state


def test_a_backup_becomes_another_timeline(tmp_path: Path) -> None:
    """As one that is restored: no id, and no receipt, of before means anything; the broker itself may go on."""
    broker(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup", NOW_MS - HOUR_MS)
    begun, kind = upload(log := new_log(), tmp_path / "backup")
    genesis = begun.upload.genesis
    assert (kind, genesis.since_ms) == (SourceKind.BACKUP, NOW_MS - HOUR_MS)
    cluster = Cluster(log, tmp_path)
    before = Store.open(tmp_path / "data", SETTINGS, NOW_MS)
    gap_end = before.tables.next_id + (1 << 24) + 10 * HOUR_MS
    with cluster.owner(1, 7) as owner:
        store = owner.store
        assert store.timeline == f"{genesis.timeline:016x}"
        assert store.log.log_id == genesis.log_number != before.log.log_id
        assert store.tables.next_id == gap_end
        assert store.tables.epoch_floor > 1 << 20
        assert receive(owner, "later", NOW_MS + HOUR_MS) == [b"in an hour"]
    before.close()
    cluster.check()
    with cluster.owner(2, 8) as owner:
        assert owner.store.tables.next_id == gap_end, "a timeline begins once"
    cluster.check(3)


def test_a_replica_becomes_the_log_of_another_cluster(tmp_path: Path) -> None:
    """It may lack what was told last, and has the settings of its cluster."""
    broker(tmp_path / "data")
    upload(lost := new_log(), tmp_path / "data")
    with Cluster(lost, tmp_path).owner(1, 7) as owner:
        work(owner, 9, first=8)  # type: ignore[arg-type]
        last_ms = owner.store.applier.tick_ms
    replica = tmp_path / "node-1"
    mark_replica(FileDisk(replica), mark_of(lost))
    kept = sources.kept_settings(replica, StoreSettings(), {"ack_wait"})
    assert (kept.ack_wait_ms, kept.max_backoff_ms) == (StoreSettings().ack_wait_ms, SETTINGS.max_backoff_ms)
    begun, kind = upload(log := new_log(), replica)
    assert kind is SourceKind.REPLICA
    assert begun.upload.genesis.timeline
    assert begun.upload.genesis.since_ms >= last_ms
    assert read_mark(replica) == mark_of(lost), "it stays what it was"
    with pytest.raises(BadDirectory, match="holds another log"), Cluster(log, tmp_path).owner(1, 7):
        pass
    (tmp_path / "new").mkdir()
    cluster = Cluster(log, tmp_path / "new")
    with cluster.owner(1, 7) as owner:
        assert owner.store.timeline == f"{begun.upload.genesis.timeline:016x}"
        assert receive(owner, "later", NOW_MS + HOUR_MS) == [b"in an hour"]
    cluster.check()


def test_and_back(tmp_path: Path) -> None:
    """The backup of a node, restored, is a broker of its own, also when its cluster has purged."""
    broker(tmp_path / "data", 22)
    upload(log := new_log(), tmp_path / "data")
    cluster = Cluster(log, tmp_path)
    with cluster.owner(1, 7) as owner:
        owner.purge(LATER_MS)
        work(owner, 9, first=22)  # type: ignore[arg-type]
        state = owner.store.look.state_hash()
    back_up(tmp_path / "node-1", tmp_path / "backup", NOW_MS)
    restore(tmp_path / "backup", tmp_path / "again", 77)
    alone = Alone(tmp_path / "again")
    assert alone.store.tables.timeline
    assert alone.store.look.state_hash() != state, "ids of before mean nothing"
    alone.store.close()
    alone = Alone(tmp_path / "again")
    alone.store.purge(LATER_MS)
    alone.store.close()
    shutil.copytree(tmp_path / "again", tmp_path / "copy")
    upload(again := new_log(), tmp_path / "again")
    (tmp_path / "new").mkdir()
    with Cluster(again, tmp_path / "new").owner(1, 7) as owner:
        assert receive(owner, "later", NOW_MS + HOUR_MS) == [b"in an hour"]


def test_a_restored_directory_that_was_never_started_keeps_its_mark(tmp_path: Path) -> None:
    broker(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup", NOW_MS)
    restore(tmp_path / "backup", tmp_path / "restored", 77)
    begun, kind = upload(log := new_log(), tmp_path / "restored")
    assert (kind, begun.upload.genesis.log_number) == (SourceKind.BROKER, 77)
    assert begun.upload.genesis.since_ms == NOW_MS
    with Cluster(log, tmp_path).owner(1, 7) as owner:
        assert owner.store.timeline == f"{begun.upload.genesis.timeline:016x}"


class Killed(Exception):
    """The process is gone."""


class MortalLine(Line):
    """It is killed at an append: before or after the log has the records."""

    appends_left = 0
    is_late = False

    async def append(self, records: list[bytes]) -> list[int | None]:
        """See `SharedLog`."""
        self.appends_left -= 1
        if self.appends_left < 0 and not self.is_late:
            raise Killed
        offsets = await super().append(records)
        if self.appends_left < 0:
            raise Killed
        return offsets


def upload_until(log: Partition, directory: Path, appends: int, *, is_late: bool) -> bool:
    """Whether it came to its end before it was killed, with so many appends."""

    async def scenario(_: Partition, line: Line) -> None:
        mortal = MortalLine(log, trio.lowlevel.current_task().parent_nursery)  # type: ignore[arg-type]
        mortal.appends_left, mortal.is_late = appends, is_late
        await begin_from(mortal, "test", source, lambda: NOW_MS)

    with open_source(directory, ANY) as source:
        try:
            run(scenario)
        except BaseExceptionGroup as group:
            if group.split(Killed)[1] is not None:
                raise
            return False
    return True


async def refuse(line: Line) -> None:
    """A node, the status and a second cluster."""
    with pytest.raises(UnfinishedCluster):
        await read_origin(line)
    with pytest.raises(UnfinishedCluster):
        await look_at(line, lambda: NOW_MS)
    with pytest.raises(UnfinishedCluster):
        await begin(line, "test", SETTINGS, NOW_MS)


@pytest.mark.promise("in-a-cluster")
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("again", [2, 3, 4])
def test_killed_anywhere_it_goes_on(tmp_path: Path, is_late: bool, again: int) -> None:
    """Each process comes some appends further. Until all is there, no node takes it for a log; the broker's directory
    is given away only when it may be."""
    state = broker(tmp_path / "data", 20)
    log, kills = new_log(), 0
    while not upload_until(log, tmp_path / "data", again, is_late=is_late):
        kills += 1
        assert kills < 1_000

        async def look(_: Partition, line: Line) -> None:
            line.partition = log
            if not log.records:
                with pytest.raises(NoCluster):
                    await read_origin(line)
            elif not is_whole(log):
                await refuse(line)

        run(look)
        if not is_whole(log) and read_mark(tmp_path / "data") is not None:
            assert missing_batches(log, tmp_path / "data") == 1
    assert kills > 3
    assert read_mark(tmp_path / "data") is not None
    assert log.first_offset > 0, "who begins to read need not look whether all is there"
    assert Cluster(log, tmp_path).check() == state


def state_of(log: Partition) -> tuple[Upload, State]:
    parts = [unpack(record) for record in log.records]
    assert parts[0] is not None
    found = unpack_upload(parts[0][1])
    reader = Reader(found.genesis.segment_bytes, State(end=found.first))
    for one in parts[1:]:
        assert one is not None
        reader.take(*one)
    return found, reader.state


def is_whole(log: Partition) -> bool:
    found, state = state_of(log)
    return state.end == found.end


def missing_batches(log: Partition, directory: Path) -> int:
    with open_source(directory, ANY) as source:
        return len(list(source.batches(state_of(log)[1].end)))


class WatchedLine(Line):
    """It looks at the directory whenever all of the log is there, and is killed the first time."""

    directory: Path
    was_given_away = False

    async def append(self, records: list[bytes]) -> list[int | None]:
        """See `SharedLog`."""
        offsets = await super().append(records)
        if is_whole(self.partition):
            self.was_given_away = read_mark(self.directory) is not None
            raise Killed
        return offsets


@pytest.mark.promise("in-a-cluster")
def test_a_broker_is_given_away_before_all_counts(tmp_path: Path) -> None:
    """Otherwise it could be started beside the cluster. Whoever finishes gives away what it was given."""
    broker(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    lines: list[WatchedLine] = []

    async def scenario(log: Partition, line: Line) -> None:
        lines.append(WatchedLine(log, trio.lowlevel.current_task().parent_nursery))  # type: ignore[arg-type]
        lines[0].directory = tmp_path / "data"
        with pytest.raises(Killed):
            await begin_from(lines[0], "test", source, lambda: NOW_MS)

    with open_source(tmp_path / "data", ANY) as source:
        run(scenario)
    assert lines[0].was_given_away
    log = lines[0].partition
    count = len(log.records)
    assert upload(log, tmp_path / "copy")[0].went_on
    assert (len(log.records), log.first_offset > 0) == (count, True), "nothing was missing"
    assert read_mark(tmp_path / "copy") is not None


def test_a_backup_does_not_go_on_with_what_a_broker_has_begun(tmp_path: Path) -> None:
    """The cluster would be the broker, which could be started again."""
    broker(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup", NOW_MS)
    log = new_log()
    assert not upload_until(log, tmp_path / "data", 3, is_late=True)
    with pytest.raises(ExceptionGroup) as refused:
        upload(log, tmp_path / "backup")
    assert refused.group_contains(UnfinishedCluster)
    assert upload(log, tmp_path / "data")[0].went_on


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_way_to_the_log_costs_time_only(tmp_path: Path, seed: int) -> None:
    """Records are lost, doubled and late, and answers are."""
    state = broker(tmp_path / "data", 15)
    log = Partition(random.Random(seed))
    upload(log, tmp_path / "data", fails=0.1)
    assert log.counts
    assert Cluster(log, tmp_path).check() == state


def test_two_at_once_make_one_log(tmp_path: Path) -> None:
    """The later one goes on, and the other one says so."""
    state = broker(tmp_path / "data", 15)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    log, ended = new_log(), []

    async def scenario(_: Partition, line: Line) -> None:
        async def one(source: Source) -> None:
            own = Line(log, nursery)
            try:
                await begin_from(own, "test", source, lambda: NOW_MS)
            except ClusterExists as error:
                ended.append(error.message)
            else:
                ended.append("")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, first)
            nursery.start_soon(one, second)

    with open_source(tmp_path / "data", ANY) as first, open_source(tmp_path / "copy", ANY) as second:
        run(scenario)
    assert sorted(ended) in (["", ""], ["", "Somebody else makes this cluster at the same moment."])
    assert Cluster(log, tmp_path).check() == state


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    broker(tmp_path / "data")
    broker(tmp_path / "other", 3)

    async def with_cluster(log: Partition, line: Line) -> None:
        await begin(line, "test", SETTINGS, NOW_MS)
        with pytest.raises(ClusterExists):
            await begin_from(line, "test", source, lambda: NOW_MS)
        assert len(log.records) == 1

    async def with_something(log: Partition, line: Line) -> None:
        log.put(b"somebody else's record")
        with pytest.raises(TopicNotUsable):
            await begin_from(line, "test", source, lambda: NOW_MS)
        await line.delete_before(1)
        with pytest.raises(TopicNotUsable):
            await begin_from(line, "test", source, lambda: NOW_MS)
        assert len(log.records) == 1

    async def with_another(log: Partition, line: Line) -> None:
        line.partition = unfinished
        count = len(unfinished.records)
        with pytest.raises(UnfinishedCluster, match="another log"):
            await begin_from(line, "test", source, lambda: NOW_MS)
        assert len(unfinished.records) == count

    unfinished = new_log()
    assert not upload_until(unfinished, tmp_path / "other", 2, is_late=False)
    with open_source(tmp_path / "data", ANY) as source:
        for scenario in (with_cluster, with_something, with_another):
            run(scenario)
    others = msgspec.structs.replace(ANY, ack_wait_ms=77_000)
    with open_source(tmp_path / "other", others) as source:
        run(with_another)
    assert read_mark(tmp_path / "data") is None


def test_it_gives_up_when_nothing_comes_to_count(tmp_path: Path) -> None:
    broker(tmp_path / "data")

    async def scenario(log: Partition, line: Line) -> None:
        async with trio.open_nursery() as nursery:

            async def cut() -> None:
                while len(log.records) < 4:
                    await log.wait_changed()
                line.refuses_appends = True

            nursery.start_soon(cut)
            with pytest.raises(ClusterUnreachable, match="goes on where this one stopped"):
                await begin_from(line, "test", source, lambda: NOW_MS)
            line.refuses_appends = False
            assert (await begin_from(line, "test", source, lambda: NOW_MS)).went_on

    with open_source(tmp_path / "data", ANY) as source:
        run(scenario)


@pytest.mark.parametrize("is_apart", [False, True])
def test_an_owner_trims_only_to_where_a_node_can_begin(tmp_path: Path, is_apart: bool) -> None:
    """Segments that were uploaded do not say themselves which log they are of, but what stands right before them does.
    `is_apart`: something stands between."""
    broker(tmp_path / "data", 22)
    upload(log := new_log(), tmp_path / "data")
    cluster = Cluster(log, tmp_path)
    starts = [at for at, record in enumerate(log.records) if kind_of(record) is Kind.START]
    assert len(starts) > 2
    if is_apart:
        log.records.insert(starts[-1] + 1, b"somebody else's record")

    async def trim(_: Partition, line: Line) -> None:
        line.partition = log
        await Trimming(line, owner.store.log, owner.places, lambda: False).trim()

    with cluster.owner(1, 7) as owner:
        before = log.first_offset
        owner.purge(LATER_MS)
        run(trim)
        assert log.first_offset == (before if is_apart else starts[-1])
        cluster.check(2)
        work(owner, 9, first=22)  # type: ignore[arg-type]
        owner.purge(LATER_MS)
        run(trim)
        assert kind_of(log.records[log.first_offset]) is Kind.DATA
        cluster.check(3)


def kind_of(record: bytes) -> Kind | None:
    found = unpack(record)
    return None if found is None else found[0].kind
