"""Messages one by one: what is sent is what is read, whether it is written yet or not."""

from __future__ import annotations

import pytest

from tests.support.driver import NOW_MS
from tests.support.frames import SEND, frame
from timerlog.commitlog.records import MessageView, Outbound, send_payload
from timerlog.layout import MAX_KEY_BYTES
from timerlog.store import Store

MESSAGES = (
    Outbound(b"body", b"key", b"\x81\xa1a\x01", b"order", 50),
    Outbound(b""),
    Outbound(b"b" * 3_000, b"k" * MAX_KEY_BYTES, b"", b"o" * MAX_KEY_BYTES),
    Outbound(b"x", priority=7),
)


@pytest.mark.parametrize("is_flushed", [True, False])
def test_what_is_sent_is_what_is_read(store: Store, is_flushed: bool) -> None:
    topic = store.topics.open("t", NOW_MS)
    payload = send_payload(topic, MESSAGES, NOW_MS + 5)
    assert store.produce.ingest(frame(SEND, 1, payload), NOW_MS).messages == len(MESSAGES)
    if is_flushed:
        store.log.flush()
    assert (store.tables.native.staging_bytes == 0) == is_flushed
    views = [MessageView.read(store.tables.native, message_id) for message_id in range(1, 5)]
    assert [Outbound(view.body, view.key, view.headers, view.order, view.priority) for view in views] == list(
        MESSAGES
    )
    assert {(view.topic_id, view.deliver_at_ms, view.created_ms) for view in views} == {
        (topic, NOW_MS + 5, NOW_MS)
    }


def test_what_a_reschedule_changed_counts(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.commit.write_internal(topic, [Outbound(b"x", b"k")], [], NOW_MS)
    store.change.reschedule([1], NOW_MS + 77, NOW_MS, priority=9)
    view = MessageView.read(store.tables.native, 1)
    assert (view.deliver_at_ms, view.priority, view.key) == (NOW_MS + 77, 9, b"k")


def test_a_payload_of_none_is_judged_as_such(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    with pytest.raises(ValueError, match="add up"):
        store.produce.judge(send_payload(topic, []), NOW_MS)
