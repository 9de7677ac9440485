"""Tables with no more than the page of their header, as they are made on a nearly full disk: what they do not reach
reads as nothing. A look at it ended the process (SIGBUS)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.far import narrow_tables
from timerlog.engine.select import Filter
from timerlog.store import Store

IDS = np.array([1, 2], np.uint64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two messages are in their topic, and its groups have nothing of them: one began behind them."""
    with narrow_tables():
        store = Store.open(tmp_path / "data", SMALL, NOW_MS)
        topic = store.topics.open("orders", NOW_MS)
        store.groups.open(topic, "billing", NOW_MS)
        store.produce.ingest(send(topic, [b"x", b"y"], keys=[b"a", b"b"], times_ms=[NOW_MS] * 2), NOW_MS)
        store.sync()
        pump(store, NOW_MS)
        late = store.groups.open(topic, "late", NOW_MS, "latest")
        assert [group.deliveries.capacity for group in store.tables.groups.values()] == [0, 0]
        yield store
        assert late not in store.tables.groups or store.tables.groups[late].deliveries.capacity == 0
        store.close()


@pytest.mark.parametrize("group", [None, "billing", "late"])
@pytest.mark.parametrize("acked", [True, False])
def test_redelivering(store: Store, group: str | None, acked: bool) -> None:
    answers = store.change.redeliver(IDS, group, None, NOW_MS, acked=acked)
    assert answers == (["already_acked"] * 2 if group == "late" else ["waiting"] * 2)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), [1, 2]),
        (Filter(states=frozenset({"ready"})), [1, 2]),
        (Filter(states=frozenset({"leased", "waiting", "acked", "dead"})), []),
        (Filter(group="late"), []),
        (Filter(group="billing", done_from_ms=1), []),
        (Filter(done_until_ms=NOW_MS), []),
        (Filter(epoch_min=1), []),
    ],
)
def test_selecting(store: Store, wanted: Filter, found: list[int]) -> None:
    topic = store.tables.topic_ids["orders"]
    parts = store.select.matching(topic, wanted, NOW_MS)
    assert [message_id for part in parts for message_id in part.tolist()] == found


def test_looking(store: Store) -> None:
    groups = [
        {"group": "billing", "state": "ready", "epoch": 0},
        {"group": "late", "state": "not_its_own", "epoch": 0},
    ]
    assert [entry["groups"] for entry in store.select.browse(IDS, NOW_MS, 10)] == [groups, groups]
    found = store.select.message(1, NOW_MS, 10)
    assert found is not None
    assert [(group["group"], group["attempts"], group["until_ms"]) for group in found["groups"]] == [
        ("billing", 0, 0),
        ("late", 0, 0),
    ]
    assert store.look.state_hash()


def test_changing(store: Store) -> None:
    assert store.change.drop(IDS, NOW_MS).dropped == 0
    assert store.change.expire(IDS[:1], NOW_MS + 1) == 1
    assert store.change.cancel([2], NOW_MS, stop=True) == ["cancelled"]
    assert store.groups.seek("orders", "late", "earliest") == 0
    assert store.fill_wheel.clock_went_back(NOW_MS - 5_000, 5_000) == 0
    assert store.groups.delete("orders", "late") == 0
