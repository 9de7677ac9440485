"""Several messages of an ordering key given together, one case at a time; the model has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered
from timerlog.commitlog.records import Outbound
from timerlog.engine.deliver import AsAnswer
from timerlog.store import Store


def opened(directory: Path, keys: bytes) -> Store:
    """With one message of each key, a character each, that are due."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.create("t", {}, 0, NOW_MS).topic_id
    messages = [Outbound(b"x", order=bytes([key])) for key in keys]
    store.commit.write_internal(topic, messages, [], NOW_MS)
    pump(store, NOW_MS)
    store.groups.open(topic, "g", NOW_MS)
    return store


def fetch(store: Store, of_a_key: int, now_ms: int = NOW_MS) -> list[int]:
    frame = store.deliver.fetch(1, 0, 1, 100, 1 << 20, now_ms, asked=AsAnswer(1, 900, of_a_key))
    return delivered(frame)[0] if frame else []


def ack(store: Store, *receipts: tuple[int, int]) -> None:
    ids, epochs = zip(*receipts, strict=True)
    assert store.deliver.ack(ack_payload(1, ids, epochs), 1, NOW_MS).accepted == len(ids)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_batch_that_is_out_over_a_restart(tmp_path: Path, is_clean: bool) -> None:
    store = opened(tmp_path, b"kkkkk")
    assert fetch(store, 3) == [1, 2, 3]
    store.sync()
    store.close(clean=is_clean)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert fetch(store, 3) == [], "all that wait go through the lane"
    ack(store, (1, 1))
    assert fetch(store, 3) == [], "two of them are still out"
    pump(store, NOW_MS + 1_000)
    assert fetch(store, 3, NOW_MS + 1_000) == [2, 3, 4]
    store.close()


def test_a_message_that_is_called_again_waits_behind_the_batch_and_holds_up_none(tmp_path: Path) -> None:
    store = opened(tmp_path, b"kkkk")
    assert fetch(store, 2) == [1, 2]
    ack(store, (2, 1))
    assert store.change.redeliver([2], None, NOW_MS + 5_000, NOW_MS, acked=True) == ["redelivered"]
    ack(store, (1, 1))
    assert fetch(store, 2) == [3, 4], "its time has not come"
    pump(store, NOW_MS + 5_000)
    assert fetch(store, 1, NOW_MS + 5_000) == [3], "what was not done comes first"
    store.close()


def test_keys_are_mixed_in_the_order_of_their_first_messages(tmp_path: Path) -> None:
    store = opened(tmp_path, b"abcabcaabb")
    assert fetch(store, 1) == [1, 2, 3]
    store.close()


def test_a_batch_of_each_key(tmp_path: Path) -> None:
    store = opened(tmp_path, b"abcabcaabb")
    assert fetch(store, 3) == [1, 2, 3, 4, 5, 6, 7, 9]
    ack(store, (2, 1), (5, 1), (9, 1))
    assert fetch(store, 3) == [10]
    store.close()
