"""Which groups have subscribers, and the steps in which a broker looks after groups."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tickwheel_broker.background import readers as background_readers
from tickwheel_broker.background.readers import SEEN_AGAIN_MS, Readers
from tickwheel_broker.clock.clock import ManualClock
from timerlog.errors import DiskFull
from timerlog.store import Store


def store_and_readers(directory: Path) -> tuple[Store, Readers]:
    store = Store.open(directory, msgspec.structs.replace(SMALL, max_groups=500), NOW_MS)
    return store, Readers(store.groups, ManualClock(datetime.fromtimestamp(NOW_MS / 1_000, UTC)))


def groups_that_are_read(store: Store, readers: Readers, count: int) -> list[int]:
    topic = store.topics.open("t", NOW_MS)
    groups = [store.groups.open(topic, f"g{number}", NOW_MS) for number in range(count)]
    for group_id in groups:
        readers.joined(group_id)
    return groups


def test_each_ephemeral_group_ends_in_a_step_of_its_own(tmp_path: Path) -> None:
    """Clients that are gone may leave thousands of groups: nobody waits until all of them are deleted."""
    store, readers = store_and_readers(tmp_path)
    topic = store.topics.open("t", NOW_MS)
    groups = [store.groups.open(topic, f"e{number}", NOW_MS, ephemeral_ms=1_000) for number in range(5)]
    steps = readers.keep(NOW_MS + 1_000)
    for left in (4, 3):
        next(steps)
        assert len(store.tables.ephemeral) == left
    last = groups[-1]
    readers.joined(last)
    for _step in steps:
        pass
    assert list(store.tables.ephemeral) == [last], "its subscriber came between two steps"
    readers.left(last)
    with mock.patch.object(store.groups, "delete", side_effect=DiskFull("full")):
        assert list(readers.keep(NOW_MS + 9_000)) == []
    assert list(readers.keep(NOW_MS + 9_000)) == [None]
    store.close()


def test_groups_that_are_read_are_noted_a_hundred_a_step(tmp_path: Path) -> None:
    store, readers = store_and_readers(tmp_path)
    groups = groups_that_are_read(store, readers, 250)
    assert list(readers.keep(NOW_MS + SEEN_AGAIN_MS - 1)) == []
    again_ms = NOW_MS + SEEN_AGAIN_MS
    seen = [
        sum(store.tables.groups[one].seen_ms == again_ms for one in groups) for _ in readers.keep(again_ms)
    ]
    assert seen == [100, 200, 250]
    assert list(readers.keep(again_ms + 1)) == []
    store.close()


def test_a_subscriber_that_leaves_between_two_steps_is_not_noted(tmp_path: Path) -> None:
    store, readers = store_and_readers(tmp_path)
    groups = groups_that_are_read(store, readers, 150)
    steps = readers.keep(NOW_MS + SEEN_AGAIN_MS)
    next(steps)
    readers.left(groups[120])
    for _step in steps:
        pass
    has_readers = [store.tables.groups[group_id].has_readers for group_id in groups]
    assert has_readers == [number != 120 for number in range(150)]
    store.close()


def test_a_round_comes_to_its_end_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose rounds do not end is taken for one that hangs."""
    monkeypatch.setattr(background_readers, "_STEPS_A_ROUND", 3)
    store, readers = store_and_readers(tmp_path)
    read = groups_that_are_read(store, readers, 150)
    topic = store.topics.open("t", NOW_MS)
    for number in range(5):
        store.groups.open(topic, f"e{number}", NOW_MS, ephemeral_ms=1_000)
    again_ms = NOW_MS + SEEN_AGAIN_MS
    for steps, left in ((3, 4), (3, 1), (1, 0), (0, 0)):
        assert len(list(readers.keep(again_ms))) == steps
        assert len(store.tables.ephemeral) == left
    assert {store.tables.groups[group_id].seen_ms for group_id in read} == {again_ms}
    store.close()
