"""Dropping what is done: gone at once and for good, nothing else, and its space comes back with the next purge."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.stores.purging import ack, fill, take
from timerlog.engine.select import Filter
from timerlog.errors import OtherLog
from timerlog.layout import MessageState, UInt64Array
from timerlog.recovery import checkpoint
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

DONE_MS = NOW_MS + 10
COUNT = 40


def ids(*numbers: int) -> UInt64Array:
    return np.array(numbers, np.uint64)


def keys(prefix: str, count: int = COUNT) -> list[bytes]:
    return [b"%s-%d" % (prefix.encode(), number) for number in range(count)]


def worked_off(store: Store) -> tuple[int, int]:
    """Messages 1 to 40, of which the first 30 are acked in both groups, and 31 to 35 in one; 41 is far away. The
    groups' numbers."""
    topic = store.topics.open("t", NOW_MS)
    groups = store.groups.open(topic, "one", NOW_MS), store.groups.open(topic, "two", NOW_MS)
    fill(store, topic, keys("due"), NOW_MS)
    fill(store, topic, [b"far"], NOW_MS + 10**9)
    pump(store, NOW_MS)
    for group, count in zip(groups, (30, 35), strict=True):
        taken, epochs = take(store, group, 40, DONE_MS)
        ack(store, group, taken[:count], epochs[:count], DONE_MS)
    return groups


def test_only_what_every_group_is_done_with_goes(store: Store) -> None:
    worked_off(store)
    stats = store.look.stats(DONE_MS)
    result = store.change.drop(ids(*range(1, 42), 7, 99), DONE_MS + 1)
    assert (result.dropped, result.gone, result.kept.tolist()) == (30, 1, list(range(31, 42)))
    again = store.change.drop(ids(*range(1, 42)), DONE_MS + 1)
    assert (again.dropped, again.gone, again.kept.tolist()) == (0, 30, list(range(31, 42)))
    after = store.look.stats(DONE_MS)
    assert after["ready"] == stats["ready"] - 30
    assert {name: after[name] for name in ("messages", "acked", "cancelled", "leased", "scheduled")} == {
        name: stats[name] for name in ("messages", "acked", "cancelled", "leased", "scheduled")
    }
    assert store.select.find("t", ["due-0", "due-29", "due-30"]) == [0, 0, 31], "their keys are free"
    assert store.change.redeliver([1, 31], None, None, DONE_MS, acked=True) == ["not_found", "redelivered"]
    assert store.change.cancel([1], DONE_MS) == ["not_found"]


def test_what_was_done_too_late_stays(store: Store) -> None:
    worked_off(store)
    assert store.change.drop(ids(1, 2), DONE_MS).kept.tolist() == [1, 2]
    store.change.redeliver([2], "two", None, DONE_MS, acked=True)
    later_ms = DONE_MS + 20_000
    pump(store, later_ms)
    group = store.tables.topics[store.tables.topic_ids["t"]].groups["two"]
    taken, epochs = take(store, group, 1, later_ms)
    assert taken == [2]
    assert store.change.drop(ids(1, 2), DONE_MS + 1).kept.tolist() == [2], "it is not done any more"
    ack(store, group, taken, epochs, later_ms)
    assert store.change.drop(ids(2), DONE_MS + 1).kept.tolist() == [2], "it was done again, and later"
    assert store.change.drop(ids(2), later_ms + 1).dropped == 1


def test_a_group_that_began_later_does_not_count(store: Store) -> None:
    worked_off(store)
    store.groups.open(store.tables.topic_ids["t"], "new", DONE_MS, "latest")
    assert store.change.drop(ids(1), DONE_MS + 1).dropped == 1
    store.groups.open(store.tables.topic_ids["t"], "all", DONE_MS, "earliest")
    assert store.change.drop(ids(2), DONE_MS + 1).kept.tolist() == [2]


def test_the_letter_of_a_dropped_message_is_sent_again(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.topics.set("t", {"max_attempts": 1}, (), None, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    fill(store, topic, [b"k"], NOW_MS)
    pump(store, NOW_MS)
    taken, epochs = take(store, group, 1, DONE_MS)
    store.settle.nack(group, taken, epochs, 0, "no", DONE_MS)
    pump(store, DONE_MS)
    (letter,) = (
        number
        for part in store.select.matching(store.topics.record("t.dead").topic_id, Filter(), DONE_MS)
        for number in part
    )
    assert store.change.drop(ids(1), DONE_MS + 1).dropped == 1
    assert store.replay_dead.replay("t", [int(letter)], DONE_MS) == {"sent_again": 1}
    assert store.select.find("t", ["k"]) == [int(letter) + 1]


def test_another_log_is_refused(store: Store) -> None:
    store.change.check_log(store.log.log_id)
    with pytest.raises(OtherLog, match="this one is"):
        store.change.check_log(store.log.log_id ^ 1)


@pytest.mark.parametrize("ending", ["killed", "no derived files", "power loss"])
def test_it_stays_dropped(tmp_path: Path, ending: str) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    worked_off(store)
    store.change.drop(ids(*range(1, 31)), DONE_MS + 1)
    store.sync()
    state = store.look.state_hash()
    store.close(clean=False)
    if ending == "no derived files":
        remove_derived_files(tmp_path)
    boot = "another" if ending == "power loss" else checkpoint.boot_id()
    with mock.patch.object(checkpoint, "boot_id", return_value=boot):
        store = Store.open(tmp_path, SMALL, DONE_MS)
    assert store.look.state_hash() == state
    assert store.change.drop(ids(*range(1, 31)), DONE_MS + 1).gone == 30
    assert (store.tables.rows["state"][1:31] == MessageState.DROPPED).all()
    assert store.select.find("t", ["due-0", "due-29", "due-30"]) == [0, 0, 31]
    report = store.purge(DONE_MS)
    assert report.purged_messages == 30, "long before purge_after"
    assert store.look.stats(DONE_MS)["acked"] == 65
    store.close()
