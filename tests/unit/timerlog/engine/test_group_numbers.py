"""Numbers of groups that are gone are given to other groups, for which nothing of the old ones counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, pump
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, ack, fill, take
from tests.support.stores.reader import Reader
from tests.unit.timerlog.engine.test_groups import opened, same_after_every_end, topic_with
from tickwheel.arrow.event_table import all_events, read_event_batches
from tickwheel_broker.errors import advice_for
from timerlog.engine.select import Filter
from timerlog.errors import TooManyGroups, UnknownGroup
from timerlog.layout import DeliveryState
from timerlog.query.columns import TableColumns
from timerlog.readers.describe import describe_directory
from timerlog.readers.events import event_types
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store
from timerlog.tables.base_record import capture
from timerlog.tables.name_fences import CAPACITY
from timerlog.tables.tables import OLD_FENCE

STALE, NOT_FOUND = 2, 3
Receipt = tuple[int, int]


def numbered(tmp_path: Path, max_groups: int) -> Store:
    return opened(tmp_path, max_groups=max_groups)


def test_any_number_of_groups_can_be_made_one_after_another(tmp_path: Path) -> None:
    store = numbered(tmp_path, 4)
    topic = topic_with(store, 3)
    stays = Reader(store, topic, "stays")
    numbers = []
    for turn in range(10):
        reader = Reader(store, topic, f"short-{turn}")
        numbers.append(reader.group)
        assert [message_id for message_id, _ in reader.fetch()] == [1, 2, 3]
        store.groups.delete("t", f"short-{turn}")
    assert numbers == [2, 3, 4] * 3 + [2], "fresh ones first, then those that are free the longest"
    assert stays.fetch() == [(1, 1), (2, 1), (3, 1)]
    store = same_after_every_end(tmp_path, store)
    assert store.groups.create("t", "next", "earliest", 0, NOW_MS) == (3, True), "also after a start"
    store.close()


def test_when_no_number_is_free_it_says_so_and_a_deleted_group_frees_one(tmp_path: Path) -> None:
    store = numbered(tmp_path, 4)
    store.topics.create("s", {}, 2, NOW_MS)
    topic = topic_with(store, 1)
    sharded = store.topics.record("s").topic_id
    for name in "ab":
        store.groups.open(topic, name, NOW_MS)
    with pytest.raises(TooManyGroups, match="there are 2 groups of 4, and no 3 consecutive numbers are free"):
        store.groups.open(sharded, "g", NOW_MS)
    with pytest.raises(TooManyGroups, match="no 3 consecutive"):
        store.groups.create("s", "g", "earliest", 0, NOW_MS)
    store.groups.delete("t", "a")
    with pytest.raises(TooManyGroups, match="there are 1 groups of 4, and no 3"):
        store.groups.open(sharded, "g", NOW_MS)
    store.groups.delete("t", "b")
    assert store.groups.open(sharded, "g", NOW_MS) == 1, "two freed numbers, and a fresh one"
    assert store.groups.open(topic, "a", NOW_MS) == 4
    with pytest.raises(TooManyGroups, match=r"there are 4 groups of 4$") as refused:
        store.groups.open(topic, "b", NOW_MS)
    assert "delete groups" in advice_for(refused.value)
    same_after_every_end(tmp_path, store).close()


@pytest.mark.promise("groups-that-are-deleted-or-moved")
def test_receipts_of_the_dead_group_are_stale_for_the_next_one(tmp_path: Path) -> None:
    store = numbered(tmp_path, 1)
    topic = topic_with(store, 4)
    old = Reader(store, topic, "old")
    held = old.fetch(3)
    pump(store, NOW_MS + 5_000)  # the leases end
    again = old.fetch(2, NOW_MS + 5_000)
    assert [epoch for _, epoch in again] == [2, 2]
    store.groups.delete("t", "old")
    new = Reader(store, topic, "new")
    assert new.group == old.group
    given = new.fetch(2)
    assert given == [(1, 3), (2, 3)]
    before = store.look.state_hash()
    for late in (held, again, [(message_id, epoch) for message_id in (3, 4) for epoch in (1, 2)]):
        assert new.ack(*late) == (0, [STALE] * len(late))
        assert set(new.nack(*late)) == set(new.extend(*late, until_ms=NOW_MS + 60_000)) == {"stale_receipt"}
    assert store.look.state_hash() == before
    entry = store.groups.describe(new.group)
    assert (entry["delivered"], entry["leased"], entry["acked"], entry["backlog"]) == (2, 2, 0, 4)
    store = same_after_every_end(tmp_path, store)
    new = Reader(store, topic, "new")
    assert store.groups.describe(new.group)["delivered"] == 2
    assert new.ack(*held, *given) == (2, [STALE] * 3)
    assert new.fetch() == [(3, 3), (4, 3)]
    assert store.look.topic_entry(topic)["groups"][0]["acked"] == 2
    store.close()


@pytest.mark.promise("groups-that-are-deleted-or-moved")
@pytest.mark.parametrize("others", [0, CAPACITY])
def test_receipts_count_for_no_group_that_is_made_again_under_the_name(tmp_path: Path, others: int) -> None:
    """A client that was away subscribes by name, and acks what it has: the number of the group is another one then."""
    store = numbered(tmp_path, 10)
    topic = topic_with(store, 3)
    old = Reader(store, topic, "g")
    held = old.fetch(3)
    store.groups.delete("t", "g")
    for number in range(others):
        store.tables.name_fences.add(topic, f"other-{number}", 1)
    new = Reader(store, topic, "g")
    assert new.group != old.group
    given = new.fetch(2)
    assert given == [(1, 2), (2, 2)]
    assert new.ack(*held) == (0, [STALE] * 3)
    assert set(new.nack(*held)) == set(new.extend(*held, until_ms=NOW_MS + 60_000)) == {"stale_receipt"}
    if not others:
        store = same_after_every_end(tmp_path, store)
        new = Reader(store, topic, "g")
    assert new.ack(*given) == (2, [])
    assert Reader(store, topic, "h").fetch(1) == [(1, 2 if others else 1)]
    store.close()


def test_timers_of_the_dead_groups_leases_do_nothing_to_the_next_one(tmp_path: Path) -> None:
    store = numbered(tmp_path, 1)
    topic = topic_with(store, 2)
    old = Reader(store, topic, "old")
    old.nack(*old.fetch(1), delay_ms=900)
    assert len(old.fetch(1)) == 1  # until NOW_MS + 1,000
    store.groups.delete("t", "old")
    new = Reader(store, topic, "new")
    given = new.fetch(2, NOW_MS + 500)  # until NOW_MS + 1,500
    pump(store, NOW_MS + 1_200)  # when those of the dead group would have ended
    assert new.fetch(2, NOW_MS + 1_200) == []
    rows = store.tables.groups[new.group].deliveries.items[:2]
    assert rows["state"].tolist() == [DeliveryState.LEASED] * 2
    pump(store, NOW_MS + 1_600)
    assert new.fetch(2, NOW_MS + 1_600) == [(message_id, epoch + 1) for message_id, epoch in given]
    same_after_every_end(tmp_path, store, NOW_MS + 1_600).close()


def test_attempts_and_failures_begin_anew(tmp_path: Path) -> None:
    store = numbered(tmp_path, 2)
    store.topics.create("t", {"max_attempts": 2, "min_backoff_ms": 1}, 0, NOW_MS)
    topic = topic_with(store, 2)
    old = Reader(store, topic, "old")
    store.groups.open(topic, "other", NOW_MS)
    old.nack(*old.fetch(1), error="the old one's")
    store.groups.delete("t", "old")
    new = Reader(store, topic, "new")
    assert new.group == old.group
    assert len(store.tables.failures) == 0
    lateness = store.deliver.first_lateness_ms.count
    assert new.fetch() == [(1, 2), (2, 2)]
    assert store.deliver.first_lateness_ms.count - lateness == 2, "for this group they are first deliveries"
    assert store.groups.redelivered[new.group] == 0
    assert [
        found
        for found in store.select.matching(topic, Filter(epoch_min=2, group="new"), NOW_MS)
        if len(found)
    ] == []
    (first,) = store.select.matching(topic, Filter(epoch_min=1, group="new"), NOW_MS)
    assert first.tolist() == [1, 2]
    assert new.nack((1, 2), error="new") == ["nacked"], "one attempt is left"
    assert new.nack(*new.fetch(1), error="new") == ["dead"]
    store = same_after_every_end(tmp_path, store)
    (letter,) = store.select.matching(store.topics.record("t.dead").topic_id, Filter(), NOW_MS)
    (entry,) = store.select.browse(letter, NOW_MS, 100)
    assert "the old one's" not in str(entry)
    store.close()


def test_views_count_what_was_delivered_to_the_new_group_alone(tmp_path: Path) -> None:
    store = numbered(tmp_path, 1)
    topic = topic_with(store, 2)
    old = Reader(store, topic, "old")
    old.ack(*old.fetch(1))
    old.fetch(1)
    store.groups.delete("t", "old")
    new = Reader(store, topic, "new")
    new.ack(*new.fetch(1))
    info = store.select.message(1, NOW_MS, 9)
    assert info is not None
    assert [info["groups"][0][name] for name in ("group", "epoch", "attempts")] == ["new", 1, 1]
    with closing(Snapshot(describe(store.log, store.tables, NOW_MS))) as snapshot:
        names = ["id", "group", "epoch", "attempts"]
        tables = [TableColumns(snapshot).table(chunk, names).to_pylist() for chunk in snapshot.chunks(topic)]
    assert [tuple(row.values()) for rows in tables for row in rows] == [(1, "new", 1, 1), (2, "new", 0, 0)]
    store.sync()
    store.close()
    offline = describe_directory(tmp_path, NOW_MS)
    events = [
        tuple(row.values())
        for part in all_events([offline])
        for batch in read_event_batches(
            offline, part, ["event", "group", "id", "epoch"], [], event_types(["delivered", "acked"])
        )
        for row in batch.to_pylist()
    ]
    assert [event for event in events if event[1]] == [("delivered", "new", 1, 1), ("acked", "new", 1, 1)]
    assert len(events) == 5, "what the group that is gone was given and acked belongs to no group"


def test_what_was_given_up_before_a_delivery_begins_with_one_attempt(tmp_path: Path) -> None:
    store = numbered(tmp_path, 1)
    store.topics.create("t", {"max_attempts": 3, "min_backoff_ms": 1}, 0, NOW_MS)
    topic = topic_with(store, 1)
    old = Reader(store, topic, "old")
    for _ in range(2):
        old.nack(*old.fetch(1))
    store.groups.delete("t", "old")
    new = Reader(store, topic, "new")
    store.dead_letters.bury(new.group, store.tables.rows["topic_seq"][1:2].copy(), NOW_MS)
    assert store.groups.describe(new.group)["dead"] == 1
    assert store.change.redeliver([1], None, None, NOW_MS, acked=True) == ["redelivered"]
    assert [new.nack(*new.fetch(1)) for _ in range(3)] == [["nacked"], ["nacked"], ["dead"]]
    same_after_every_end(tmp_path, store).close()


def test_sums_of_what_was_purged_are_not_the_next_groups(tmp_path: Path) -> None:
    store = numbered(tmp_path, 1)
    topic = store.topics.open("t", NOW_MS)
    old = store.groups.open(topic, "old", NOW_MS)
    fill(store, topic, [b"%d" % n for n in range(7_000)], NOW_MS)  # more than a segment
    pump(store, NOW_MS)
    ack(store, old, *take(store, old, 7_000, NOW_MS), NOW_MS)
    store.sync()
    purged = store.purge(LATER_MS).purged_messages
    assert purged > 4_000
    store.groups.delete("t", "old")
    new = store.groups.open(topic, "new", NOW_MS)
    assert new == old
    fill(store, topic, [b"more %d" % n for n in range(20)], NOW_MS)
    pump(store, NOW_MS)
    entry = store.groups.describe(new)
    assert (entry["delivered"], entry["acked"], entry["backlog"]) == (0, 0, 7_020 - purged)
    ids, epochs = take(store, new, 7_020, NOW_MS)
    assert (len(ids), set(epochs)) == (7_020 - purged, {2})
    ack(store, new, ids, epochs, NOW_MS)
    store = same_after_every_end(tmp_path, store, LATER_MS)
    assert store.groups.describe(new)["delivered"] == len(ids)
    fill(store, topic, [b"%d" % n for n in range(7_000)], LATER_MS)
    store.sync()
    assert store.purge(2 * LATER_MS - NOW_MS).purged_messages == len(ids)
    entry = store.groups.describe(new)
    assert (entry["delivered"], entry["acked"]) == (len(ids), len(ids)), "purged ones count as delivered once"
    same_after_every_end(tmp_path, store, 2 * LATER_MS - NOW_MS).close()


def test_numbers_of_before_are_free_with_a_fence_above_all_epochs(tmp_path: Path) -> None:
    """A log that does not say which epochs a deleted group gave out."""
    store = numbered(tmp_path, 3)
    topic = topic_with(store, 1)
    for name in "abc":
        store.groups.open(topic, name, NOW_MS)
    old = store.groups._changed(2, deleted=True)
    assert old.fence is None
    store.writer.write_together(store.groups._controls([old]))
    base = msgspec.msgpack.encode(msgspec.structs.replace(capture(store.tables, 0), free_groups=None))
    assert msgspec.msgpack.decode(base, type=type(capture(store.tables, 0))).free_groups is None
    store.tables.free_groups.clear()
    store.tables.load_free_groups(None)
    assert store.tables.free_groups == {2: OLD_FENCE}
    store = same_after_every_end(tmp_path, store)
    reader = Reader(store, topic, "d")
    assert (reader.group, reader.fetch()) == (2, [(1, OLD_FENCE + 1)])
    assert store.groups.describe(2)["delivered"] == 1
    store = same_after_every_end(tmp_path, store)
    assert store.groups.describe(2)["delivered"] == 1
    store.close()


# -- in any order, against a model ---------------------------------------------------------------------------


@dataclass
class Group:
    topic: str
    name: str
    numbers: list[int]
    held: dict[int, int] = field(default_factory=dict)  # id → epoch
    acked: set[int] = field(default_factory=set)
    given: list[Receipt] = field(default_factory=list)
    delivered: int = 0
    reader: Reader | None = None


class Model:
    """Groups of three topics, one with shards, and which numbers they must have."""

    MOST = 7

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.rng, self.now_ms = directory, random.Random(seed), NOW_MS
        self.store = opened(directory, max_groups=self.MOST)
        self.groups: dict[tuple[str, str], Group] = {}
        self.free: list[int] = []
        self.last = 0
        self.late: list[tuple[int, Receipt]] = []
        self.highest: dict[tuple[int, int], int] = {}  # (number in receipts, message) → epoch
        self.reused = self.refused = 0
        for name, shards in (("t", 0), ("u", 0), ("s", 2)):
            self.store.topics.create(name, {}, shards, NOW_MS)
            self.send(name)

    def send(self, topic: str) -> None:
        keys = [b"%d-%d" % (self.now_ms, n) for n in range(6)]
        topic_id = self.store.topics.record(topic).topic_id
        self.store.produce.ingest(send(topic_id, [b"x"] * 6, keys=keys), self.now_ms)
        pump(self.store, self.now_ms)

    def expected(self, count: int) -> list[int]:
        if self.last + count <= self.MOST:
            return list(range(self.last + 1, self.last + 1 + count))
        runs = [list(range(first, first + count)) for first in range(1, self.MOST + 2 - count)]
        usable = [run for run in runs if all(one in self.free or one > self.last for one in run)]
        free_since = {number: place + 1 for place, number in enumerate(self.free)}
        return min(usable, key=lambda run: max(free_since.get(one, 0) for one in run), default=[])

    def create(self) -> None:
        topic, name = self.rng.choice("tus"), self.rng.choice("abc")
        if (topic, name) in self.groups:
            return
        numbers = self.expected(3 if topic == "s" else 1)
        if not numbers:
            with pytest.raises(TooManyGroups):
                self.store.groups.create(topic, name, "earliest", 0, self.now_ms)
            self.refused += 1
            return
        self.reused += numbers[0] <= self.last
        assert self.store.groups.create(topic, name, "earliest", 0, self.now_ms) == (numbers[0], True)
        self.free = [one for one in self.free if one not in numbers]
        self.last = max(self.last, numbers[-1])
        self.groups[topic, name] = Group(topic, name, numbers)

    def any_group(self) -> Group | None:
        return self.rng.choice(list(self.groups.values())) if self.groups else None

    def reader(self, group: Group) -> Reader:
        if group.reader is None:
            group.reader = Reader(self.store, self.store.topics.record(group.topic).topic_id, group.name)
        return group.reader

    def fetch(self, group: Group) -> None:
        for part in self.store.groups.parts_of(group.numbers[0]):
            for message_id, epoch in self.reader(group).fetch(
                self.rng.choice([1, 4]), self.now_ms, part=part
            ):
                assert message_id not in group.acked
                assert epoch > self.highest.get((group.numbers[0], message_id), 0)
                self.highest[group.numbers[0], message_id] = epoch
                group.held[message_id] = epoch
                group.given.append((message_id, epoch))
                group.delivered += 1

    def ack(self, group: Group) -> None:
        if group.held:
            one = self.rng.choice(list(group.held))
            assert self.reader(group).ack((one, group.held[one])) == (1, [])
            del group.held[one]
            group.acked.add(one)

    def nack(self, group: Group) -> None:
        if group.held:
            one = self.rng.choice(list(group.held))
            (result,) = self.reader(group).nack((one, group.held[one]), now_ms=self.now_ms)
            assert result in ("nacked", "lease_ended")  # what has ended can be acked still
            if result == "nacked":
                del group.held[one]

    def seek(self, group: Group) -> None:
        self.store.groups.seek(group.topic, group.name, "earliest")
        group.held.clear()
        group.acked.clear()

    def delete(self, group: Group) -> None:
        self.store.groups.delete(group.topic, group.name)
        self._gone(group)

    def _gone(self, group: Group) -> None:
        self.free += group.numbers
        self.late += [(group.numbers[0], receipt) for receipt in group.given]
        del self.groups[group.topic, group.name]

    def delete_topic(self, _: Group) -> None:
        for group in [one for one in self.groups.values() if one.topic == "u"]:
            self._gone(group)
        self.store.topics.delete("u")
        self.store.topics.create("u", {}, 0, self.now_ms)
        self.send("u")

    def say_late(self, _: Group) -> None:
        """Receipts of dead groups, also where their number is that of another group."""
        for number, (message_id, epoch) in self.rng.sample(self.late, min(5, len(self.late))):
            before, ids, epochs = self.store.look.state_hash(), [message_id], [epoch]
            if number not in self.store.tables.groups:
                with pytest.raises(UnknownGroup):
                    self.store.settle.nack(number, ids, epochs, 0, "", self.now_ms)
                continue
            late = Reader.__new__(Reader)
            late.store, late.group = self.store, number
            accepted, codes = late.ack((message_id, epoch))
            assert accepted == 0
            assert codes in ([STALE], [NOT_FOUND])
            for results in (
                self.store.settle.nack(number, ids, epochs, 0, "late", self.now_ms),
                self.store.settle.extend(number, ids, epochs, self.now_ms + 90_000),
            ):
                assert results in (["stale_receipt"], ["not_found"])
            assert self.store.look.state_hash() == before

    def wait(self, _: Group) -> None:
        self.now_ms += self.rng.choice([300, 1_500])
        pump(self.store, self.now_ms)

    def more(self, group: Group) -> None:
        self.send(group.topic)

    def restart(self, _: Group) -> None:
        self.store = same_after_every_end(self.directory, self.store, self.now_ms)
        for group in self.groups.values():
            group.reader = None

    def check(self) -> None:
        for group in self.groups.values():
            entry = self.store.groups.describe(group.numbers[0])
            assert (entry["acked"], entry["delivered"]) == (len(group.acked), group.delivered)
        assert sorted(self.store.tables.groups) == sorted(
            number for group in self.groups.values() for number in group.numbers
        )


@pytest.mark.promise("groups-that-are-deleted-or-moved")
@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_groups_against_a_model(tmp_path: Path, seed: int) -> None:
    model = Model(tmp_path, seed)
    acts: list[tuple[Callable[[Group], None], int]] = [
        (model.fetch, 8), (model.ack, 8), (model.nack, 3), (model.seek, 1), (model.delete, 4),
        (model.delete_topic, 1), (model.say_late, 4), (model.wait, 4), (model.more, 1), (model.restart, 1),
    ]  # fmt: skip
    for _ in range(200):
        model.create()
        group = model.any_group()
        if group is not None:
            act = model.rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
            act(group)
        model.check()
    assert model.reused > 10
    assert model.refused > 10
    model.restart(Group("", "", []))
    model.check()
    model.store.close()
