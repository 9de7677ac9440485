"""A replicated log without Kafka: a partition that is a list, an owner that is a store, and followers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.cluster.partition import Partition
from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from timerlog.background import InThread, Stage, WaitDurable
from timerlog.bulk.job import AdoptReport
from timerlog.commitlog.durability import Link
from timerlog.files.disk import FileDisk
from timerlog.purge.drop import DropTicket, FreeTicket, Pause
from timerlog.recovery.checkpoint import Place
from timerlog.replication.follower import Follower, open_follower
from timerlog.replication.genesis import genesis_of, genesis_record
from timerlog.replication.origin import origin_of
from timerlog.replication.record import Writer, fence, unpack
from timerlog.replication.rule import Said
from timerlog.settings import StoreSettings
from timerlog.store import Store

LOG_ID = 0xC1C1
SETTINGS = SMALL
GENESIS = genesis_of("test", 0, LOG_ID, SETTINGS, began_ms=NOW_MS)
_STAGED_BYTES = 50_000
#: Of a new log, behind its GENESIS.
START = Place(64, 0, 0, 0, 0, 0)


class Replicas:
    """One replicated log, whose first segment begins at a position. Each node has a directory below ``root``."""

    def __init__(self, root: Path, position: int = 0) -> None:
        self._root, self._position = root, position
        #: Of the first record that is left.
        self.first = 0
        self.partition = Partition()
        self.partition.append(genesis_record(GENESIS, 0))

    def directory(self, node: int) -> Path:
        return self._root / f"node-{node}"

    def segments(self, node: int) -> dict[str, bytes]:
        """See `segments_of`."""
        return segments_of(self.directory(node))

    def follower(self, node: int) -> Follower:
        """Opens what a node has, which has not followed yet."""
        directory = self.directory(node)
        directory.mkdir(parents=True, exist_ok=True)
        origin = origin_of(list(enumerate(self.partition.records))[self.first :])
        assert origin is not None
        assert origin.genesis == GENESIS
        if origin.start == START:
            far = msgspec.structs.replace(START, end=START.end + self._position)
            origin = origin._replace(start=far)
        return open_follower(directory, FileDisk(directory), SETTINGS, origin, NOW_MS)

    def follow(self, follower: Follower, up_to: int | None = None) -> None:
        """All records up to one."""
        end = len(self.partition.records) if up_to is None else up_to
        for offset in range(follower.offset + 1, end):
            assert offset >= self.first, "what is deleted is not read"
            follower.take(offset, self.partition.records[offset])
            while follower.is_linking:
                follower.work()

    def owner(self, node: int, term: int, now_ms: int = NOW_MS, max_bytes: int = 900) -> Owner:
        """Makes a node the owner."""
        follower = self.follower(node)
        self.partition.append(fence(node, term, now_ms))
        self.follow(follower)
        assert follower.reader.state.term == term
        directory = self.directory(node)
        store = Store.of(follower.promote(), FileDisk(directory), SETTINGS, now_ms, follower.healing)
        writer = Writer(node, term, follower.reader.state.chain)
        return Owner(self.partition, store, writer, follower, max_bytes)

    def hand_over(self, owner: Owner, follower: Follower, node: int, term: int) -> None:
        """To the node that followed: it has the same state. Both have ended afterwards."""
        state = owner.close()
        follower.close()
        assert self.owner(node, term).close() == state


class Owner:
    """Ships what its store wrote instead of syncing it."""

    def __init__(
        self, partition: Partition, store: Store, writer: Writer, follower: Follower, max_bytes: int
    ) -> None:
        self._partition, self.store, self.writer, self._max_bytes = partition, store, writer, max_bytes
        #: That it was before.
        self.follower, self.places = follower, follower.places

    def close(self) -> str:
        """As a process that is gone; what its state was."""
        state = self.store.look.state_hash()
        self.store.close(clean=False)
        return state

    def commit(self) -> None:
        """One group commit."""
        ticket = self.store.begin_sync()
        if ticket is not None:
            links = [piece for piece in ticket.pieces if isinstance(piece, Link)]
            for record in self.writer.data(ticket.pieces, NOW_MS, self._max_bytes):
                head, body = unpack(record) or pytest.fail("it is a record")
                said, known = (Said.BATCH, links) if head.is_last else (Said.PART, ())
                self.places.read(head, body, said, self._partition.append(record), known)
            self.store.finish_sync(ticket)

    def stage(self, stage: Stage) -> None:
        """All nodes get the files of a job."""
        for piece in stage.ranges(_STAGED_BYTES) if stage.paths else [(0, b"")]:
            for record in self.writer.stage(stage.job, [piece], NOW_MS):
                head, body = unpack(record) or pytest.fail("it is a record")
                self.places.read(head, body, Said.STAGED, self._partition.append(record))

    def adopt(
        self, directory: Path, max_rejects: int = 0, staged: Callable[[], object] = lambda: None
    ) -> AdoptReport:
        """Takes a job in; ``staged`` is called when all nodes have its files."""
        job = self.store.adopter.start(directory, max_rejects)
        while not job.is_done:
            match self.store.adopter.step(NOW_MS):
                case Stage() as stage:
                    self.stage(stage)
                    if stage.paths:
                        staged()
                case WaitDurable():
                    self.commit()
                case InThread() as pause:
                    pause.work()
        if job.error is not None:
            raise job.error
        return job.report

    def purge_steps(self, now_ms: int) -> Iterator[Pause]:
        """Step by step: stopping anywhere is what a crash does."""
        job = self.store.purger.start()
        while not job.is_done:
            pause = self.store.purger.step(now_ms)
            yield pause
            match pause:
                case WaitDurable():
                    self.commit()
                case DropTicket() | FreeTicket():
                    pause.run()
        assert job.error is None, job.error

    def purge(self, now_ms: int) -> None:
        """All that can go."""
        for _ in self.purge_steps(now_ms):
            pass

    @property
    def trimmed_offset(self) -> int | None:
        """Where the record stands before which the partition may be deleted."""
        place = self.places.start_of(self.store.log.segments[0])
        return None if place is None else place.offset + 1


def work(owner: Owner, rounds: int, first: int = 0) -> None:
    """Sends with keys, deliveries, acks, cancels and other times, in many group commits and some segments."""
    store = owner.store
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    owner.commit()
    for number in range(first, first + rounds):
        now_ms = NOW_MS + 100 * number
        keys = [b"key-%d-%d" % (number, one) for one in range(20)]
        times = [now_ms + 7 * one for one in range(20)]
        store.produce.ingest(send(topic, [b"body" * 50] * 20, keys=keys, times_ms=times), now_ms)
        if number % 7 == 6:
            store.log.roll()
        owner.commit()
        pump(store, now_ms + 50)
        frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 8, MIB, now_ms + 50)
        if frame:
            ids, epochs = delivered(frame)
            store.deliver.ack(ack_payload(group, ids[:5], epochs[:5]), 1, now_ms + 50)
            store.change.cancel([ids[-1] + 10], now_ms + 50)
        owner.commit()


def check_replicas(
    directories: Sequence[Path],
    records: Sequence[tuple[int, bytes]],
    settings: StoreSettings,
    now_ms: int,
    check: Callable[[Store], None],
) -> None:
    """All go on to the end of what the shared log has left: they have the same bytes and the same state then.
    ``check`` gets the store of each."""
    origin, first = origin_of(records), records[0][0]
    assert origin is not None
    contents, states = [], set()
    for directory in directories:
        print("looks at", directory)
        disk = FileDisk(directory)
        follower = open_follower(directory, disk, settings, origin, now_ms)
        assert follower.offset + 1 >= first
        for offset, record in itertools.islice(records, follower.offset + 1 - first, None):
            follower.take(offset, record)
            while follower.is_linking:
                follower.work()
        while follower.trim_step():
            pass
        contents.append(segments_of(directory))
        store = Store.of(follower.promote(), disk, settings, now_ms)
        states.add(store.look.state_hash())
        check(store)
        store.close(clean=False)
    assert all(content == contents[0] for content in contents), "the replicas have different bytes"
    assert len(states) == 1, "the replicas have different states"


def segments_of(directory: Path) -> dict[str, bytes]:
    """What the segments hold, by the names of their files."""
    return {
        path.name: path.read_bytes().rstrip(b"\0") for path in sorted((directory / "commitlog").glob("*"))
    }
