"""Groups as a whole: deleted ones pin nothing, moved ones begin anew, ephemeral ones end; also after a kill."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.far import begin_late
from tests.support.stores.purging import LATER_MS, ack, fill, take
from tests.support.stores.reader import Reader
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.select import Filter
from timerlog.errors import UnknownGroup, UnknownTopic
from timerlog.layout import MessageState
from timerlog.recovery import checkpoint
from timerlog.store import Store

STALE, NEVER = 2, 4
HOUR_MS = 3_600_000


def opened(
    directory: Path, *, boot: str | None = None, now_ms: int = NOW_MS, max_groups: int = SMALL.max_groups
) -> Store:
    settings = msgspec.structs.replace(SMALL, max_groups=max_groups)
    with mock.patch.object(checkpoint, "boot_id", return_value=boot or checkpoint.boot_id()):
        return Store.open(directory, settings, now_ms)


def topic_with(store: Store, count: int, *, name: str = "t") -> int:
    """A topic whose messages are all due."""
    topic = store.topics.open(name, NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * count), NOW_MS)
    pump(store, NOW_MS)
    return topic


def same_after_every_end(directory: Path, store: Store, now_ms: int = NOW_MS) -> Store:
    """The state is the same after a kill, and after the log alone was read."""
    state, most = store.look.state_hash(), store.settings.max_groups
    store.sync()
    store.close(clean=False)
    store = opened(directory, now_ms=now_ms, max_groups=most)
    assert store.recovery.from_checkpoint or store.recovery.replayed_records
    assert store.look.state_hash() == state
    store.close(clean=False)
    store = opened(directory, boot="another", now_ms=now_ms, max_groups=most)
    assert (store.look.state_hash(), store.recovery.from_checkpoint) == (state, False)
    return store


# -- deleting --


@pytest.mark.promise("groups-that-are-deleted-or-moved")
def test_a_deleted_group_is_gone_and_its_receipts_are_of_an_unknown_group(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = topic_with(store, 4)
    typo, right = Reader(store, topic, "typo"), Reader(store, topic, "right")
    held = typo.fetch(2)
    typo.nack(held[0], delay_ms=500)
    assert store.groups.delete("t", "typo") == 4
    for act in (lambda: typo.ack(held[1]), lambda: typo.fetch(), lambda: store.groups.delete("t", "typo")):
        with pytest.raises(UnknownGroup):
            act()
    with pytest.raises(UnknownTopic):
        store.groups.delete("no", "typo")
    assert store.holders.outstanding(typo.holder) == 0
    pump(store, NOW_MS + 5_000)  # timers of its leases go off, and find nothing
    assert [group["name"] for group in store.look.topic_entry(topic)["groups"]] == ["right"]
    assert not list(tmp_path.glob(f"topics/{topic}-{typo.group}.*"))
    assert len(right.fetch()) == 4
    store = same_after_every_end(tmp_path, store)
    again = store.groups.open(topic, "typo", NOW_MS)
    assert again > right.group > typo.group, "a fresh number, as long as there are any"
    assert store.groups.describe(again)["backlog"] == 4
    store.close()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_any_of_several_groups_can_go(store: Store, position: int) -> None:
    topic = topic_with(store, 3)
    names = ["a", "b", "c"]
    readers = {name: Reader(store, topic, name) for name in names}
    store.groups.delete("t", names.pop(position))
    for name in names:
        assert readers[name].ack(*readers[name].fetch()) == (3, [])
    assert store.change.verdicts([1, 2, 3]) == [4, 4, 4], "every group that is there is done with them"


@pytest.mark.promise("groups-that-are-deleted-or-moved")
def test_a_deleted_group_pins_nothing_against_purge(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = store.topics.open("t", NOW_MS)
    good, typo = store.groups.open(topic, "good", NOW_MS), store.groups.open(topic, "typo", NOW_MS)
    fill(store, topic, [b"%d" % n for n in range(7_000)], NOW_MS)  # more than a segment
    pump(store, NOW_MS)
    ack(store, good, *take(store, good, 7_000, NOW_MS), NOW_MS)
    take(store, typo, 100, NOW_MS)
    store.sync()
    assert store.purge(LATER_MS).purged_messages == 0
    store.groups.delete("t", "typo")
    store.sync()
    assert store.purge(LATER_MS).purged_messages > 4_000
    assert store.groups.describe(good)["acked"] == 7_000
    same_after_every_end(tmp_path, store, LATER_MS).close()


def test_a_group_of_a_topic_with_shards_goes_and_moves_in_all_of_them(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.topics.create("t", {}, 2, NOW_MS)
    topic = store.topics.record("t").topic_id
    fill(store, topic, [b"key %d" % n for n in range(50)], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    parts = store.groups.parts_of(reader.group)
    held = [reader.fetch(part=part) for part in parts]
    assert [len(some) > 10 for some in held] == [True, True]
    assert reader.ack(*held[0]) == (len(held[0]), [])
    assert store.groups.seek("t", "g", "earliest") == 50
    assert sum(len(reader.fetch(part=part)) for part in parts) == 50
    with pytest.raises(UnknownGroup, match="shard"):
        store.groups.delete("t/-80", "g")
    assert store.groups.delete("t", "g") == 50
    assert not any(part in store.tables.groups for part in (reader.group, *parts))
    same_after_every_end(tmp_path, store).close()


# -- beginning anew --


@pytest.mark.promise("groups-that-are-deleted-or-moved")
def test_seeking_back_gives_everything_again_whatever_became_of_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = topic_with(store, 6)
    reader, other = Reader(store, topic), Reader(store, topic, "other")
    acked, waits, held = reader.fetch(2), reader.fetch(2), reader.fetch(1)
    other.ack(*other.fetch(1))
    assert reader.ack(*acked) == (2, [])
    assert reader.nack(*waits, delay_ms=5_000) == ["nacked"] * 2
    store.changes.take()
    assert store.groups.seek("t", "g", "earliest") == 6
    changed = store.changes.take()
    (revoked,) = changed.revoked
    assert (revoked.holder, revoked.ids, revoked.epochs) == (reader.holder, [5], [1])
    assert (changed.woken, store.holders.outstanding(reader.holder)) == ({reader.group}, 0)
    assert reader.ack(*acked, *waits, *held) == (0, [STALE] * 5)
    assert store.change.cancel([1], NOW_MS) == ["already_delivered"], "it was delivered before the seek"
    assert reader.fetch() == [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1)]
    pump(store, NOW_MS + 5_000)  # the wait from before is nobody's any more
    assert other.fetch() == [(n, 1) for n in range(2, 7)], "other groups go on"
    store = same_after_every_end(tmp_path, store)
    assert store.groups.describe(reader.group)["backlog"] == 6
    store.close()


def test_seeking_forward_leaves_out_what_lies_before(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = store.topics.open("t", NOW_MS)
    times = [NOW_MS - 5_000 + 1_000 * n for n in range(6)]
    store.produce.ingest(send(topic, [b"x"] * 6, times_ms=times), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    held = reader.fetch(3)
    assert reader.ack(held[0]) == (1, [])
    assert store.groups.seek("t", "g", times[4]) == 2
    assert reader.ack(held[1]) == (0, [STALE])
    assert store.change.redeliver([1, 2], None, None, NOW_MS, acked=True) == ["already_acked"] * 2, (
        "not its business"
    )
    assert reader.fetch() == [(5, 1), (6, 1)]
    assert reader.ack((5, 1), (6, 1)) == (2, [])
    entry = store.groups.describe(reader.group)
    assert (entry["acked"], entry["backlog"], entry["leased"], entry["delivered"]) == (3, 0, 0, 5)
    assert store.change.verdicts(range(1, 7)) == [4, 4, 4, 2, 4, 4], "only 4 was never given to anybody"
    store = same_after_every_end(tmp_path, store)
    assert store.groups.seek("t", "g", "latest") == 0
    assert store.groups.seek("t", "g", "earliest") == 6
    store = same_after_every_end(tmp_path, store)
    again = Reader(store, topic)
    assert again.fetch() == [(1, 2), (2, 2), (3, 2), (4, 1), (5, 2), (6, 2)]
    store.close()


def test_a_group_that_began_late_can_go_back_to_what_it_never_had(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = topic_with(store, 3_000)
    group = store.groups.open(topic, "g", NOW_MS, "latest")
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    assert take(store, group, 10, NOW_MS)[0] == [3_001]
    assert store.groups.seek("t", "g", "earliest") == 3_001
    assert take(store, group, 5_000, NOW_MS)[0] == list(range(1, 3_002))
    same_after_every_end(tmp_path, store).close()


def test_priorities_and_ordering_keys_hold_after_a_seek(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    bodies = [Outbound(b"a1", order=b"a"), Outbound(b"a2", order=b"a"), Outbound(b"last", priority=90)]
    bodies += [Outbound(b"b1", order=b"b"), Outbound(b"first", priority=5)]
    for body in bodies:
        store.commit.write(bytes(16), [store.produce.judge(send_payload(topic, [body]), NOW_MS)], [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert take(store, reader.group, 9, NOW_MS) == ([5, 1, 4, 3], [1] * 4)
    reader.ack((1, 1))
    assert reader.fetch() == [(2, 1)]
    store.groups.seek("t", "g", "earliest")
    ids, epochs = take(store, reader.group, 9, NOW_MS)
    assert (ids[:2], sorted(ids[2:]), epochs) == ([5, 1], [3, 4], [2] * 4), "a2 waits for a1 again"
    reader.ack((1, 2))
    assert reader.fetch() == [(2, 2)]


def test_dead_letters_and_attempts_after_a_seek(store: Store) -> None:
    store.topics.create("t", {"max_attempts": 2, "min_backoff_ms": 1}, 0, NOW_MS)
    topic = topic_with(store, 1)
    reader = Reader(store, topic)
    assert [reader.nack(*reader.fetch()) for _ in range(2)] == [["nacked"], ["dead"]]
    assert store.groups.describe(reader.group)["dead"] == 1
    store.groups.seek("t", "g", "earliest")
    assert store.groups.describe(reader.group)["dead"] == 0
    assert reader.nack(*reader.fetch()) == ["nacked"], "the attempts count anew"
    dead_id = store.topics.record("t.dead").topic_id
    (letters,) = store.select.matching(dead_id, Filter(), NOW_MS)
    assert store.replay_dead.replay("t", letters.tolist(), NOW_MS) == {"not_dead": 1}, (
        "the group has it again anyway"
    )
    assert reader.nack(*reader.fetch()) == ["dead"]
    store.groups.seek("t", "g", "latest")
    (letters,) = store.select.matching(dead_id, Filter(), NOW_MS)
    assert store.replay_dead.replay("t", letters.tolist(), NOW_MS) == {"ended": 1}, (
        "what lies before is not its business"
    )


@pytest.mark.promise("groups-that-are-deleted-or-moved")
def test_any_order_of_changes_follows_from_the_log(tmp_path: Path) -> None:
    rng = random.Random(11)
    store = opened(tmp_path, max_groups=2)  # so that numbers are used again
    topic = store.topics.open("t", NOW_MS)
    readers: dict[str, Reader] = {}
    now_ms = NOW_MS
    for step in range(120):
        now_ms += 50
        name = rng.choice("ab")
        if name not in readers:
            readers[name] = Reader(store, topic, name)
        reader = readers[name]
        match rng.randrange(9):
            case 0 | 1:
                store.produce.ingest(send(topic, [b"y" * 900] * 60, priority=rng.choice([10, 50])), now_ms)
                pump(store, now_ms)
            case 2 | 3 | 4:
                held = reader.fetch(rng.choice([1, 30, 200]), now_ms)
                done = [receipt for receipt in held if rng.random() < 0.7]
                reader.ack(*done) if done else None
                rest = [receipt for receipt in held if receipt not in done and rng.random() < 0.5]
                reader.nack(*rest, delay_ms=40, now_ms=now_ms) if rest else None
            case 5:
                store.groups.seek(
                    "t", name, rng.choice(["earliest", "latest", now_ms - rng.randrange(3_000)])
                )
            case 6:
                pump(store, now_ms)
            case 7 if rng.random() < 0.3:
                store.groups.delete("t", readers.pop(name).store and name)
            case 8 if rng.random() < 0.4:
                store.sync()
                store.purge(now_ms + LATER_MS - NOW_MS)
        if step % 40 == 39:
            store = same_after_every_end(tmp_path, store, now_ms)
            readers = {name: Reader(store, topic, name) for name in store.tables.topics[topic].groups}
            pending = {name: store.groups.describe(one.group)["backlog"] for name, one in readers.items()}
            for name, one in readers.items():
                assert len(take(store, one.group, 1 << 20, now_ms + 60_000)[0]) <= pending[name]
    store.close()


# -- ephemeral ones, and who reads --


def test_an_ephemeral_group_ends_with_its_last_subscriber_and_a_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = topic_with(store, 2)
    group = store.groups.open(topic, "e", NOW_MS, ephemeral_ms=1_000)
    stays = store.groups.open(topic, "stays", NOW_MS)
    readers = {group}

    def end(now_ms: int, opened_ms: int = NOW_MS) -> list[tuple[str, str]]:
        return list(store.groups.end_ephemeral(now_ms, opened_ms, readers.__contains__))

    store.groups.readers_changed(group, NOW_MS, has_readers=True)
    assert end(NOW_MS + HOUR_MS) == []
    store = same_after_every_end(tmp_path, store)
    readers.clear()  # they were there when the broker was killed
    assert end(NOW_MS + HOUR_MS + 999, opened_ms=NOW_MS + HOUR_MS) == []
    store.groups.readers_changed(group, NOW_MS + HOUR_MS, has_readers=False)
    assert end(NOW_MS + HOUR_MS + 999) == []
    store = same_after_every_end(tmp_path, store)
    assert store.groups.describe(group)["last_read_ms"] == NOW_MS + HOUR_MS
    assert end(NOW_MS + HOUR_MS + 1_000, opened_ms=NOW_MS + 9 * HOUR_MS) == [("t", "e")], "also after a kill"
    store = same_after_every_end(tmp_path, store)
    assert (group in store.tables.groups, stays in store.tables.groups) == (False, True)
    assert store.tables.rows["state"][1] == MessageState.READY
    store.close()


def test_each_ephemeral_group_is_judged_when_its_turn_comes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = topic_with(store, 2)
    groups = [store.groups.open(topic, f"e{number}", NOW_MS, ephemeral_ms=1_000) for number in range(4)]
    readers: set[int] = set()
    steps = store.groups.end_ephemeral(NOW_MS + HOUR_MS, NOW_MS, readers.__contains__)
    assert next(steps) == ("t", "e0")
    assert [group in store.tables.groups for group in groups] == [False, True, True, True]
    store.groups.delete("t", "e1")
    readers.add(groups[2])
    assert list(steps) == [("t", "e3")]
    assert [group in store.tables.groups for group in groups] == [False, False, True, False]
    store.close()


@pytest.mark.parametrize("what", ["release", "clock", "seek", "delete"])
def test_a_group_that_begins_where_much_is_gone(tmp_path: Path, what: str) -> None:
    """The numbers that are gone of its topic have no rows, nor addresses."""
    begin_late(tmp_path / "data", 1 << 35, 1 << 35)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    store.produce.ingest(send(1, [b"x"] * 5, times_ms=[NOW_MS] * 5), NOW_MS)
    pump(store, NOW_MS + 1)
    group = store.groups.open(1, "late", NOW_MS)
    holder = store.holders.acquire(group)
    assert store.deliver.fetch(group, holder, 1, 3, MIB, NOW_MS + 2)
    name = store.tables.topics[1].record.name
    match what:
        case "release":
            assert store.settle.release_holder(holder, NOW_MS + 3) == 3
        case "clock":
            store.fill_wheel.clock_went_back(NOW_MS - 5_000, 5_000)
        case "seek":
            assert store.groups.seek(name, "late", "earliest") == 5
        case "delete":
            assert store.groups.delete(name, "late") == 5
    state = store.look.state_hash()
    store.sync()
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.look.state_hash() == state
    store.close()
