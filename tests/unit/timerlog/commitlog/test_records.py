"""What records say: messages one by one, and the payloads of control records, read back as they were packed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.driver import NOW_MS
from tests.support.native.frames import SEND, frame
from timerlog.commitlog import records
from timerlog.commitlog.records import MessageView, Outbound, send_payload
from timerlog.layout import (
    MAX_KEY_BYTES,
    MAX_TIME_MS,
    RECORD_HEAD_BYTES,
    RUN,
    TRANSACTION_ID_BYTES,
    RecordType,
    Runs,
)
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


RUNS = st.lists(
    st.tuples(
        st.integers(0, (1 << 63) - 1),
        st.integers(1, (1 << 32) - 1),
        st.integers(0, (1 << 32) - 1),
        st.integers(0, MAX_TIME_MS),
    ),
    max_size=5,
).map(lambda rows: np.array(rows, RUN))


@given(RUNS, st.text(max_size=20), st.integers(1, MAX_TIME_MS), st.integers(0, 3))
def test_what_was_packed_is_unpacked(runs: Runs, error: str, time_ms: int, how: int) -> None:
    for packed, unpacked, wanted in (
        (records.pack_nack(runs, error), records.unpack_nack, error),
        (records.pack_lease(runs, time_ms), records.unpack_lease, time_ms),
        (records.pack_returned(runs, time_ms), records.unpack_numbered, time_ms),
        (records.pack_redeliver(runs, how), records.unpack_numbered, how),
    ):
        found, value = unpacked(packed)
        assert found.tolist() == runs.tolist()
        assert value == wanted


def test_leases_of_older_versions_do_not_say_when() -> None:
    runs = np.array([(5, 2, 1, 99)], RUN)
    found, given_ms = records.unpack_lease(runs.tobytes())
    assert (found.tolist(), given_ms) == (runs.tolist(), 0)


def test_a_priority_or_none_is_told_in_aux() -> None:
    for priority in (*range(256), records.AS_IT_IS):
        assert records.reschedule_priority(records.reschedule_aux(priority)) == priority
    assert records.reschedule_aux(records.AS_IT_IS) == 0


@given(st.integers(0, 3 * records.RUNS_A_RECORD))
def test_many_runs_are_several_records_that_fit(count: int) -> None:
    runs = np.zeros(count, RUN)
    runs["first"], runs["count"] = np.arange(count), 1
    controls = records.in_records(RecordType.ACK, 7, runs)
    assert b"".join(payload for _, _, payload in controls) == runs.tobytes()
    assert all(len(payload) <= records.RUNS_A_RECORD * RUN.itemsize for _, _, payload in controls)
    sizes = [RECORD_HEAD_BYTES + -(-len(payload) // 8) * 8 for _, _, payload in controls]
    assert sum(sizes) <= records.room_for_runs(count)
    assert RECORD_HEAD_BYTES + TRANSACTION_ID_BYTES + sum(sizes) <= records.group_room_bytes(controls)
