"""What a disk of one node makes of a record, the node fetches again from the shared log."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.support.clients.waiting import until
from tests.support.cluster.replicas import Owner, Replicas, work
from tests.support.native.driver import MIB, NOW_MS, pump
from tests.support.native.frames import delivered, send
from tests.support.stores.bulk import columns
from tests.support.stores.bulk import job as bulk_job
from tests.support.stores.damage import flip
from tests.support.stores.purging import LATER_MS
from tests.support.stores.queried import answer_to, damaged_of, job
from tickwheel_broker.sharedlog.healing import Heal
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.commitlog.healing import HealingCounts
from timerlog.engine.deliver import NoFrame
from timerlog.errors import BeingHealed
from timerlog.layout import MessageState
from timerlog.replication.follower import Follower
from timerlog.replication.record import Kind, unpack, unpack_link
from timerlog.services.dequeue_put_message import HEAL_MS

pytestmark = pytest.mark.usefixtures("autojump_clock")


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


@asynccontextmanager
async def healing(replicas: Replicas, follower: Follower) -> AsyncIterator[None]:
    """Inside, a replica is healed."""
    async with trio.open_nursery() as nursery:
        shared = Partition(random.Random(1))
        shared.records = replicas.partition.records
        shared.first_offset = replicas.first
        nursery.start_soon(Heal(Line(shared, nursery), follower).run)
        yield
        nursery.cancel_scope.cancel()


async def until_healed(replicas: Replicas, follower: Follower) -> None:
    """Until it wants no record any more."""
    async with healing(replicas, follower):
        await until(lambda: follower.healing.wanted is None)


async def until_whole(replicas: Replicas, follower: Follower, node: int, whole: dict[str, bytes]) -> None:
    """What is damaged now, and was this before, is this again. Then the follower ends."""
    assert replicas.segments(node) != whole
    async with healing(replicas, follower):
        await until(lambda: replicas.segments(node) == whole)
    follower.close()


def send_one(owner: Owner, body: bytes, at_ms: int = NOW_MS) -> tuple[int, int]:
    """(its id, where its record is)."""
    store = owner.store
    topic = store.topics.open("t", NOW_MS)
    store.groups.open(topic, "g", NOW_MS)
    owner.commit()
    number = store.tables.next_id
    store.produce.ingest(send(topic, [body], times_ms=[at_ms]), NOW_MS)
    owner.commit()
    return number, int(store.tables.rows["position"][number])


def fetch(owner: Owner, now_ms: int) -> bytes | NoFrame:
    group = owner.store.tables.topics[owner.store.topics.open("t", now_ms)].groups["g"]
    return owner.store.deliver.fetch(group, owner.store.holders.acquire(group), 1, 8, MIB, now_ms)


async def test_a_follower_looks_through_its_log_and_heals_it(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    work(owner, 30)
    follower = replicas.follower(2)
    replicas.follow(follower)
    segment_bytes, directory = owner.store.log.segment_bytes, replicas.directory(2)
    whole = replicas.segments(2)
    assert len(whole) > 3
    rng = random.Random(5)
    for base in owner.store.log.segments:
        end = min(owner.store.log.appended_position, base + len(whole[f"{base:020d}.log"]))
        for _ in range(10):
            flip(directory, rng.randrange(base + 64, end - 16), segment_bytes)
    await until_whole(replicas, follower, 2, whole)
    assert follower.healing.counts.healed > 3
    assert not follower.healing.counts.lost
    owner.store.close(clean=False)


async def test_records_of_a_bulk_job_are_found_in_its_files(replicas: Replicas, tmp_path: Path) -> None:
    """Also a record that was rejected after the files had left."""
    owner = replicas.owner(1, 1)
    keys = [b"key-%d" % number for number in range(8_000)]
    part = columns([NOW_MS + 10_000] * 8_000, bodies=[b"b" * 900] * 8_000, keys=keys)
    bulk_job(owner.store, tmp_path / "job", [("jobs", part)], NOW_MS)
    owner.commit()

    def send_meanwhile() -> None:
        topic = owner.store.topics.record("jobs").topic_id
        owner.store.produce.ingest(send(topic, [b"late"], keys=[b"key-2500"]), NOW_MS)
        owner.commit()

    assert owner.adopt(tmp_path / "job", max_rejects=1, staged=send_meanwhile).rejected == 1
    work(owner, 3)
    follower = replicas.follower(2)
    replicas.follow(follower)
    whole, segment_bytes = replicas.segments(2), owner.store.log.segment_bytes
    (linked,) = follower.places.linked
    assert linked.end - linked.first == 2 * segment_bytes
    (link,) = (
        unpack_link(head.position, body)
        for head, body in filter(None, map(unpack, replicas.partition.records))
        if head.kind is Kind.LINK
    )
    ((filled, _),) = link.fills
    damaged = [100_000, 1_000_000, segment_bytes + 200_000, segment_bytes + 900_000, filled + 60]
    for place in damaged:
        flip(replicas.directory(2), linked.first + place, segment_bytes)
    assert replicas.segments(2) != whole
    async with healing(replicas, follower):
        await until(lambda: follower.healing.counts.healed + follower.healing.counts.lost == len(damaged))
    assert replicas.segments(2) == whole
    follower.close()
    owner.store.close(clean=False)


async def test_a_message_that_is_due_is_fetched_again(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    work(owner, 5)
    number, position = send_one(owner, b"what was sent", NOW_MS + 5_000)
    state = owner.store.tables.rows["state"]
    flip(replicas.directory(1), position + 50, owner.store.log.segment_bytes)
    pump(owner.store, NOW_MS + 5_000)
    assert state[number] == MessageState.SCHEDULED, "it waits"
    await until_healed(replicas, owner.follower)
    pump(owner.store, NOW_MS + 5_000 + HEAL_MS)
    assert state[number] == MessageState.READY
    owner.commit()
    frames = [fetch(owner, NOW_MS + 20_000) for _ in range(20)]
    assert b"what was sent" in b"".join(frame for frame in frames if frame)
    owner.store.close(clean=False)


async def test_a_message_that_is_delivered_is_fetched_again(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    number, position = send_one(owner, b"what was sent")
    pump(owner.store, NOW_MS)
    owner.commit()
    flip(replicas.directory(1), position + 50, owner.store.log.segment_bytes)
    with pytest.raises(BeingHealed):
        fetch(owner, NOW_MS)
    await until_healed(replicas, owner.follower)
    frame = fetch(owner, NOW_MS)
    assert frame
    assert delivered(frame) == ([number], [1])
    assert b"what was sent" in frame
    owner.store.close(clean=False)


async def test_a_message_that_is_looked_at_is_fetched_again(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    number, position = send_one(owner, b"what was sent", NOW_MS + 5_000)
    flip(replicas.directory(1), position + 50, owner.store.log.segment_bytes)

    def query() -> dict[str, object]:
        asked = job(owner.store, "SELECT body FROM t", NOW_MS)
        owner.store.select.heal(damaged_of(asked))
        _, answer = answer_to(asked)
        return {"body": answer["rows"][0][0]}

    for look in (
        lambda: owner.store.select.message(number, NOW_MS, 100) or {},
        lambda: owner.store.select.browse(np.array([number], np.uint64), NOW_MS, 100)[0],
        query,
    ):
        look()
        assert owner.follower.healing.wanted == position
        await until_healed(replicas, owner.follower)
        assert look()["body"] == b"what was sent"
        flip(replicas.directory(1), position + 50, owner.store.log.segment_bytes)
    owner.store.close(clean=False)


@pytest.mark.parametrize("place", [4, 17, 50], ids=["length", "id", "body"])
async def test_a_purge_loses_nothing(replicas: Replicas, place: int) -> None:
    """Not even a message of which the disk has left neither length nor number."""
    owner = replicas.owner(1, 1)
    work(owner, 10)
    number, position = send_one(owner, b"what was sent", LATER_MS + 5_000)
    owner.store.log.roll()
    work(owner, 10, first=10)
    flip(replicas.directory(1), position + place, owner.store.log.segment_bytes)
    with pytest.raises(AssertionError, match="fetched again"):
        owner.purge(LATER_MS)
    await until_healed(replicas, owner.follower)
    owner.purge(LATER_MS)
    assert owner.store.tables.rows["position"][number] > position, "it was moved"
    assert position < owner.store.log.segments[0]
    entry = owner.store.select.message(number, LATER_MS, 100)
    assert entry is not None
    assert entry["body"] == b"what was sent"
    owner.store.close(clean=False)


@pytest.mark.parametrize("place", [4, 17, 50], ids=["length", "id", "body"])
async def test_a_follower_forgets_what_the_owner_purged(replicas: Replicas, place: int) -> None:
    """It finds that in its own log, which has to be whole for it."""
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    work(owner, 25)
    replicas.follow(follower)
    position = int(owner.store.tables.rows["position"][5])
    flip(replicas.directory(2), position + place, owner.store.log.segment_bytes)
    owner.purge(LATER_MS)
    work(owner, 3, first=25)
    with pytest.raises(BeingHealed):
        replicas.follow(follower)
    before = follower.reader.state, follower.end
    with pytest.raises(BeingHealed):
        replicas.follow(follower)
    assert (follower.reader.state, follower.end) == before, "nothing of it was taken"
    await until_healed(replicas, follower)
    replicas.follow(follower)
    replicas.hand_over(owner, follower, 2, 2)


@pytest.mark.parametrize("knows_places", [True, False])
async def test_what_is_trimmed_is_not_needed_for_it(replicas: Replicas, knows_places: bool) -> None:
    """The last place before the record that a node has noted may be gone, or it has lost its list."""
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    work(owner, 25)
    owner.purge(LATER_MS)
    work(owner, 5, first=25)
    replicas.follow(follower)
    directory, log = replicas.directory(2), owner.store.log
    assert owner.trimmed_offset is not None
    replicas.first = owner.trimmed_offset
    if not knows_places:
        follower.places.all, follower.places.starts = [], []
    while follower.trim_step():
        pass
    whole = replicas.segments(2)
    assert log.segments[0] > 0
    flip(directory, log.segments[0] + 100, log.segment_bytes)
    await until_whole(replicas, follower, 2, whole)
    owner.store.close(clean=False)


@pytest.mark.promise("when-is-a-message-safe")
async def test_only_what_the_shared_log_has_damaged_is_damaged(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    number, position = send_one(owner, b"what was sent")
    other, _ = send_one(owner, b"another one")
    flip(replicas.directory(1), position + 50, owner.store.log.segment_bytes)
    [offset] = [at for at, one in enumerate(replicas.partition.records) if b"what was sent" in one]
    record = bytearray(replicas.partition.records[offset])
    record[record.index(b"what was sent") + 3] ^= 1
    replicas.partition.records[offset] = bytes(record)
    pump(owner.store, NOW_MS)
    await until_healed(replicas, owner.follower)
    pump(owner.store, NOW_MS + HEAL_MS)
    state = owner.store.tables.rows["state"]
    assert state[number] == MessageState.DAMAGED
    assert state[other] == MessageState.READY, "it stops no other"
    assert owner.follower.healing.counts == HealingCounts(healed=0, lost=1)
    owner.store.close(clean=False)


async def test_what_does_not_count_yet_is_not_taken_from_others(replicas: Replicas) -> None:
    """There the shared log may have what another owner wrote."""
    owner = replicas.owner(1, 1)
    _, position = send_one(owner, b"what was sent")
    log, heals = owner.store.log, owner.follower.healing
    end = log.durable_position
    owner.store.produce.ingest(send(1, [b"nobody knows of this"]), NOW_MS)
    log.flush()
    before = replicas.segments(1)
    heals.lost(np.array([end], np.uint64))
    assert heals.wanted is None
    assert heals.take(end, b"the bytes of another") == 0
    assert replicas.segments(1) == before
    heals.lost(np.array([position], np.uint64))
    assert heals.wanted == position
    owner.store.close(clean=False)


async def test_what_was_purged_while_it_was_fetched_is_neither_healed_nor_lost(replicas: Replicas) -> None:
    """Its segment has no addresses any more."""
    owner = replicas.owner(1, 1)
    _, position = send_one(owner, b"what was sent")
    log, heals = owner.store.log, owner.follower.healing
    log.roll()
    send_one(owner, b"what is sent later")
    heals.lost(np.array([position], np.uint64))
    assert heals.wanted == position
    log.detach(log.segments[0])
    assert heals.settle(position, position + 1) == []
    assert (heals.counts.healed, heals.counts.lost, heals.wanted) == (0, 0, None)
    owner.store.close(clean=False)
