"""The five services' work: durable first, in order, once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.full_disk import full_disk
from tests.support.stores.reader import Reader
from timerlog.errors import DiskFull
from timerlog.layout import MessageState
from timerlog.services.batches import ReadyBatch
from timerlog.store import Store
from timerlog.wheel.timers import Timers


def arrivals(store: Store, topic: int) -> list[int]:
    count = int(store.tables.native.topics[topic].count)
    return [int(number) for number in store.tables.topics[topic].arrivals.items["id"][:count]]


@pytest.mark.promise("R19")
def test_nothing_leaves_the_system_topic_before_it_is_durable(store: Store) -> None:
    store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"]), NOW_MS)
    assert store.enqueue_get.take(10) is None
    ticket = store.begin_sync()
    assert ticket is not None
    ticket.run()
    assert store.enqueue_get.take(10) is None
    store.finish_sync(ticket)
    batch = store.enqueue_get.take(10)
    assert batch is not None
    assert batch.ref.tolist() == [1]
    assert store.enqueue_get.take(10) is None


@pytest.mark.promise("R23", "S8", "in-which-order")
def test_order_is_by_due_time_and_then_as_sent(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    times = [NOW_MS + offset for offset in (30, 10, 20, 10, 30, 5_000_000, 10)]
    store.produce.ingest(send(topic, [b"x"] * 7, times_ms=times), NOW_MS)
    assert pump(store, NOW_MS) == 0
    assert pump(store, NOW_MS + 9) == 0, "never early"
    assert pump(store, NOW_MS + 40) == 6
    assert arrivals(store, topic) == [2, 4, 7, 3, 1, 5]
    assert pump(store, NOW_MS + 5_000_000) == 1


def test_topics_in_one_batch_keep_their_order(store: Store) -> None:
    a, b = store.topics.open("a", NOW_MS), store.topics.open("b", NOW_MS)
    for _ in range(3):
        store.produce.ingest(send(a, [b"x", b"x"]), NOW_MS)
        store.produce.ingest(send(b, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    assert arrivals(store, a) == [1, 2, 4, 5, 7, 8]
    assert arrivals(store, b) == [3, 6, 9]


@pytest.mark.promise("R24")
def test_a_message_that_changed_on_its_way_is_passed_over(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 4, times_ms=[NOW_MS + 5] * 4), NOW_MS)
    pump(store, NOW_MS)
    due = store.dequeue_get.turn(NOW_MS + 5, 100)
    assert due is not None
    assert store.change.cancel([1], NOW_MS) == ["cancelled"]
    ready = store.dequeue_get_message.look_up(due, NOW_MS + 5)
    assert ready.ids.tolist() == [2, 3, 4]
    assert store.change.cancel([2], NOW_MS) == ["cancelled"]
    assert store.change.reschedule([3], NOW_MS + 100, NOW_MS + 5) == ["rescheduled"]
    store.dequeue_put_message.move(ready, NOW_MS + 5)
    store.dequeue_put_message.move(ready, NOW_MS + 5)
    assert arrivals(store, topic) == [4], "the same batch twice changes nothing"
    pump(store, NOW_MS + 100)
    assert arrivals(store, topic) == [4, 3]


@pytest.mark.promise("R22", "when-is-a-message-safe")
def test_a_record_that_rotted_is_set_aside(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"first", b"second", b"third"], times_ms=[NOW_MS + 5] * 3), NOW_MS)
    store.sync()
    assert store.tables.directory is not None
    path = next(store.tables.directory.glob("commitlog/*.log"))
    with open(path, "r+b") as file:
        file.seek(int(store.tables.rows["position"][2]) + 50)
        file.write(b"\xff")
    assert pump(store, NOW_MS + 5) == 3
    assert arrivals(store, topic) == [1, 3]
    assert store.tables.rows["state"][2] == MessageState.DAMAGED


@pytest.mark.promise("when-the-clock-jumps")
def test_a_clock_that_went_back(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(
        send(topic, [b"x"] * 3, times_ms=[NOW_MS + 10, NOW_MS + 20, NOW_MS + 60_000]), NOW_MS
    )
    pump(store, NOW_MS + 10)
    early_ms = NOW_MS - 3_600_000
    store.fill_wheel.clock_went_back(early_ms)
    assert pump(store, early_ms) == 0
    assert pump(store, NOW_MS + 19) == 0, "what is in its topic does not come again, the rest is not early"
    assert pump(store, NOW_MS + 60_000) == 2
    assert arrivals(store, topic) == [1, 2, 3]


@pytest.mark.promise("when-the-clock-jumps")
@pytest.mark.parametrize("back_ms", [1, 999])
def test_a_clock_that_goes_back_a_little_loses_no_message(store: Store, back_ms: int) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 2, times_ms=[NOW_MS, NOW_MS + 10]), NOW_MS)
    store.sync()
    batch = store.enqueue_get.take(10)
    assert batch is not None
    at_once = store.enqueue_put.link(batch, NOW_MS)
    later = store.dequeue_get.turn(NOW_MS + 10, 10)
    for due, due_ms in ((at_once, NOW_MS), (later, NOW_MS + 10)):
        assert due is not None
        ready = store.dequeue_get_message.look_up(due, due_ms - back_ms)
        store.dequeue_put_message.move(ready, due_ms - back_ms)
    assert arrivals(store, topic) == [1, 2]


@pytest.mark.parametrize("back_ms", [1, 999])
def test_a_clock_that_goes_back_a_little_loses_no_lease(store: Store, back_ms: int) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    ended_ms = NOW_MS + 1_000
    while (due := store.dequeue_get.turn(ended_ms, 10)) is None:
        assert store.wheel.more
    ready = store.dequeue_get_message.look_up(due, ended_ms - back_ms)
    store.changes.take()
    store.dequeue_put_message.move(ready, ended_ms - back_ms)
    assert store.changes.take().woken == {reader.group}
    assert reader.fetch(now_ms=ended_ms - back_ms) == [(1, 2)]


def test_no_work_for_a_clock_behind_the_wheel(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"], times_ms=[NOW_MS + 10]), NOW_MS)
    pump(store, NOW_MS + 10)
    store.produce.ingest(send(topic, [b"x"], times_ms=[NOW_MS + 5]), NOW_MS)
    store.sync()
    batch = store.enqueue_get.take(10)
    assert batch is not None
    assert store.enqueue_put.link(batch, NOW_MS) is None
    assert store.dequeue_get.turn(NOW_MS, 10) is None
    assert store.dequeue_get.next_wakeup_ms() == NOW_MS + 11, "the wheel's next tick: nothing to do before"
    assert pump(store, NOW_MS + 11) == 1


def test_a_crowd_is_drained_though_the_clock_went_back(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.wheel.crowd_limit, store.wheel.walk_limit = 10, 4
    due_ms = NOW_MS + 10
    store.produce.ingest(send(topic, [b"x"] * 40, times_ms=[due_ms] * 40), NOW_MS)
    pump(store, NOW_MS)
    assert not store.dequeue_get.has_work(due_ms - 1)
    assert store.dequeue_get.has_work(due_ms)
    while (due := store.dequeue_get.turn(due_ms, 8)) is None:
        pass
    came = len(due)
    assert came < 40
    while store.dequeue_get.has_work(NOW_MS - 3_600_000):
        due = store.dequeue_get.turn(NOW_MS - 3_600_000, 8)
        came += 0 if due is None else len(due)
    assert came == 40
    assert not store.dequeue_get.has_work(due_ms)
    assert store.dequeue_get.next_wakeup_ms() is None


@pytest.mark.promise("V27", "S7")
def test_an_idle_store_knows_when_to_wake(store: Store) -> None:
    assert store.dequeue_get.next_wakeup_ms() is None
    store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"], times_ms=[NOW_MS + 77]), NOW_MS)
    pump(store, NOW_MS)
    assert store.dequeue_get.next_wakeup_ms() == NOW_MS + 77


def test_a_million_years_is_refused_and_the_year_9999_is_not(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    last = np.int64(253_402_300_799_999)
    store.produce.ingest(send(topic, [b"x"], times_ms=[int(last)]), NOW_MS)
    assert pump(store, NOW_MS) == 0
    assert pump(store, int(last) - 1) == 0
    assert pump(store, int(last)) == 1


YEAR_MS = 365 * 86_400_000


@pytest.mark.promise("when-the-clock-jumps")
def test_leases_and_backoffs_of_a_clock_that_was_ahead_are_turned_back(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 6), NOW_MS)
    pump(store, NOW_MS)
    ahead_ms = NOW_MS + YEAR_MS
    reader = Reader(store, topic)
    reader.fetch(now_ms=ahead_ms)
    assert reader.extend((2, 1), until_ms=ahead_ms + 60_000) == ["extended"]
    assert reader.nack((3, 1), delay_ms=None, now_ms=ahead_ms) == ["nacked"]
    assert reader.nack((4, 1), delay_ms=60_000, now_ms=ahead_ms) == ["nacked"]
    assert store.change.redeliver([5], "g", ahead_ms + 2_000, ahead_ms) == ["redelivered"]
    assert reader.ack((6, 1)) == (1, [])
    assert store.fill_wheel.clock_went_back(NOW_MS, YEAR_MS) == 3
    times_ms = (store.tables.groups[reader.group].deliveries.items["time_ms"][:5] - NOW_MS).tolist()
    assert times_ms == [1_000, 60_000, 1_000, YEAR_MS + 60_000, YEAR_MS + 2_000]
    pump(store, NOW_MS + 999)
    assert reader.fetch(now_ms=NOW_MS + 999) == []
    pump(store, NOW_MS + 1_000)
    assert reader.fetch(now_ms=NOW_MS + 1_000) == [(1, 2), (3, 2)]
    pump(store, NOW_MS + 60_000)
    assert (2, 2) in reader.fetch(now_ms=NOW_MS + 60_000), "who asked for more time got it"
    store.close(clean=False)


def test_a_long_lease_that_was_given_after_the_clock_went_back_stays(tmp_path: Path) -> None:
    """It is noticed a moment later. Found by clients of RocketMQ, who ask for times of their own, in the simulator."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(now_ms=NOW_MS)
    longest_ms = SMALL.max_backoff_ms
    until_ms = NOW_MS + longest_ms + 3_600_000
    assert reader.extend((1, 1), until_ms=until_ms) == ["extended"]
    assert reader.extend((2, 1), until_ms=NOW_MS + YEAR_MS + longest_ms) == ["extended"]
    assert store.fill_wheel.clock_went_back(NOW_MS + 500, YEAR_MS) == 1
    times_ms = store.tables.groups[reader.group].deliveries.items["time_ms"][:2].tolist()
    assert times_ms == [until_ms, NOW_MS + longest_ms]
    store.close(clean=False)


def test_what_was_turned_back_is_so_after_a_replay(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(now_ms=NOW_MS + YEAR_MS)
    assert reader.nack((2, 1), delay_ms=None, now_ms=NOW_MS + YEAR_MS) == ["nacked"]
    assert store.fill_wheel.clock_went_back(NOW_MS, YEAR_MS) == 2
    before = store.look.state_hash()
    store.close()
    for derived in set((tmp_path / "data").iterdir()) - {tmp_path / "data" / "commitlog"}:
        if derived.is_dir():
            shutil.rmtree(derived)
        else:
            derived.unlink()
    again = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert again.look.state_hash() == before
    again.close()


def test_leases_of_a_right_clock_stay_when_it_is_put_back_a_little(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    assert reader.nack((2, 1), delay_ms=3_600_000) == ["nacked"]
    position = store.log.appended_position
    assert store.fill_wheel.clock_went_back(NOW_MS - 2_000, 2_000) == 0
    assert store.log.appended_position == position


def test_a_full_disk_still_turns_the_wheel_back(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x", b"later"], times_ms=[NOW_MS, NOW_MS + 10]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(now_ms=NOW_MS + YEAR_MS)
    with full_disk(store), pytest.raises(DiskFull):
        store.fill_wheel.clock_went_back(NOW_MS, YEAR_MS)
    assert pump(store, NOW_MS + 10) == 1


def test_what_ended_since_it_was_found_damaged_is_not_set_aside(store: Store) -> None:
    """It was cancelled meanwhile, or has two timers that are alike, or its batch is tried again."""
    store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"] * 3), NOW_MS)
    store.sync()
    assert store.change.cancel([2], NOW_MS) == ["cancelled"]
    ready = ReadyBatch(
        ids=np.zeros(0, np.uint64),
        versions=np.zeros(0, np.uint32),
        damaged=np.array([2, 1, 1], np.uint64),
        leases=Timers.room(0),
    )
    store.dequeue_put_message.move(ready, NOW_MS)
    states = store.tables.rows["state"][1:4].tolist()
    assert states == [MessageState.DAMAGED, MessageState.CANCELLED, MessageState.SCHEDULED]
    written = store.log.appended_position
    store.dequeue_put_message.move(ready, NOW_MS)
    assert store.log.appended_position == written
