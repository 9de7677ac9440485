"""The tables of ``timerlog.life`` are what the engine does, what ``store.h`` knows, and what the page draws.

Of purges and of groups that begin anew the usual moves are looked at, and of bulk jobs none: `tests/unit/timerlog/bulk`
has these.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.damage import flip
from tests.support.stores.life import Watch, drawn, listed, moving
from tests.support.stores.purging import LATER_MS, fill, mixed, purge_steps
from tests.support.stores.reader import Reader
from tickwheel_native import lib
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.deliver import NoFrame
from timerlog.engine.groups import Start
from timerlog.layout import DeliveryState, MessageState, RecordType
from timerlog.life import DELIVERIES, ENDS, MESSAGES
from timerlog.names import PREPARED_HEADER
from timerlog.store import Store
from timerlog.tables.table import Table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "life-of-a-message.md"
LEASED, WAITING, ACKED = DeliveryState.LEASED, DeliveryState.WAITING, DeliveryState.ACKED
BACK_MS = 100_000_000
#: Their moves are made by native code for a whole range: see the test below.
ELSEWHERE = {RecordType.MESSAGE, RecordType.ADOPTED, RecordType.PURGED, RecordType.GROUP_CHANGED}


def test_states_are_those_of_store_h() -> None:
    named = {
        name: getattr(lib, f"TW_{name}") for name in (*MessageState.__members__, *DeliveryState.__members__)
    }
    assert {one.name: one.value for one in (*MessageState, *DeliveryState)} == named
    steps = listed(MESSAGES)
    assert {after for _, _, after in steps} == set(MessageState)
    assert {before for _, before, _ in steps} == set(MessageState)
    assert {after for _, _, after in listed(DELIVERIES)} == set(DeliveryState)
    assert {record: after for record, _, after in steps if record in ENDS} == ENDS


def test_the_page_shows_the_tables() -> None:
    text = PAGE.read_text()
    for title, moves in (("## A message", MESSAGES), ("## A delivery to a group", DELIVERIES)):
        assert "\n".join(drawn(moves)) in text.partition(title)[2].partition("\n## ")[0]


def scenario(store: Store, directory: Path) -> None:
    """Each move that a record makes, at least once."""
    topic = store.topics.open("t", NOW_MS, values={"max_attempts": 2})
    for due_ms in (NOW_MS, LATER_MS):
        store.produce.ingest(
            send(topic, [b"x" * 500] * 12, times_ms=[due_ms] * 12), NOW_MS
        )  # 1 to 12, 13 to 24
    pump(store, NOW_MS)
    change, reader, other = store.change, Reader(store, topic), Reader(store, topic, "other")
    change.cancel([13, 12], NOW_MS)
    change.reschedule([14, 11], LATER_MS + 1, NOW_MS)
    assert change.expire(np.array([10], np.uint64), NOW_MS + 1) == 1
    held = reader.fetch(8)  # 1 to 8
    change.cancel([8], NOW_MS, stop=True)
    assert change.expire(np.array([7], np.uint64), NOW_MS + 1) == 1
    reader.extend(held[0], until_ms=NOW_MS + 90_000)
    reader.ack(held[0], held[1])
    other.ack(*other.fetch(1))
    change.drop(np.array([1], np.uint64), NOW_MS + 1)
    change.redeliver([2], "g", NOW_MS + 5, NOW_MS, acked=True)
    change.redeliver([3], "g", NOW_MS + 5, NOW_MS)
    change.redeliver([3], "g", NOW_MS + 9, NOW_MS, postpone=True)
    reader.nack(held[3], give_up=True)
    change.redeliver([4], "g", NOW_MS + 5, NOW_MS)
    reader.nack(held[4], is_attempt=False)
    reader.nack(held[5], delay_ms=3)
    store.fill_wheel.clock_went_back(NOW_MS - BACK_MS, BACK_MS)
    for now_ms in (NOW_MS + 10, NOW_MS + 200_000, NOW_MS + 500_000):  # leases end, the last one for good
        pump(store, now_ms)
        reader.fetch(now_ms=now_ms)
    commit_prepared(store)
    spoil(store, directory)


def commit_prepared(store: Store) -> None:
    """A prepared message ends when a message of its own takes its place."""
    store.topics.open("sure", NOW_MS)
    prepared = store.prepared.open("sure", {}, NOW_MS)
    headers = msgspec.msgpack.encode({PREPARED_HEADER: {"deliver_at_ms": LATER_MS}})
    message = Outbound(b"sure", b"key", headers, b"", 50)
    send_it = store.produce.judge(send_payload(prepared, [message]), NOW_MS)
    ((number, _),) = store.commit.write(bytes(16), [send_it], [], NOW_MS)
    assert store.prepared.decide([number], commit=True, now_ms=NOW_MS)[0] == ["committed"]


def spoil(store: Store, directory: Path) -> None:
    """A message that is due, and a message that a subscriber holds, lose their records."""
    topic = store.topics.open("spoilt", NOW_MS)
    store.produce.ingest(send(topic, [b"y" * 500] * 4, times_ms=[NOW_MS] * 3 + [LATER_MS]), NOW_MS)
    first = store.tables.next_id - 4
    pump(store, NOW_MS + 600_000)
    reader, other = Reader(store, topic), Reader(store, topic, "other")
    assert reader.fetch(1)
    store.sync()
    for message_id in (first, first + 3):
        position = int(store.tables.rows["position"][message_id])
        flip(directory, position + 400, SMALL.segment_bytes)
    assert store.deliver.fetch(other.group, other.holder, 7, 100, MIB, NOW_MS + 600_000) is NoFrame.AGAIN
    pump(store, LATER_MS + 10)


def test_the_engine_makes_each_move_and_no_other(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    scenario(store, tmp_path / "data")
    for seen, moves in ((watch.messages, MESSAGES), (watch.deliveries, DELIVERIES)):
        expected = listed(moves)
        assert moving(seen) <= expected
        assert {step for step in expected if step[0] not in ELSEWHERE} - seen == set()


def test_messages_come_and_go_and_groups_begin_anew(tmp_path: Path) -> None:
    store = mixed(tmp_path / "data")
    rows, end = store.tables.rows, store.tables.next_id
    new = fill(store, store.tables.topic_ids["a"], [b"new"], LATER_MS)
    assert rows["state"][new].tolist() == [MessageState.SCHEDULED]
    groups = store.tables.topics[store.tables.topic_ids["b"]].groups
    deliveries = store.tables.groups[groups["g"]].deliveries
    seen = seek(store, deliveries, "latest") | seek(store, deliveries, "earliest")
    assert seen >= {(state, DeliveryState.UNTOUCHED) for state in (LEASED, WAITING, ACKED)} | {(ACKED, ACKED)}
    steps = {(RecordType.GROUP_CHANGED, before, after) for before, after in seen}
    assert moving(steps) <= listed(DELIVERIES)
    before = rows["state"][:end].copy()
    for _pause in purge_steps(store, LATER_MS):
        pass
    after = store.tables.rows["state"][:end]
    is_gone = (after != before) & (before != MessageState.NONE)
    assert set(after[is_gone].tolist()) == {MessageState.NONE}
    gone = {(RecordType.PURGED, MessageState(state), MessageState.NONE) for state in before[is_gone].tolist()}
    assert {state for _, state, _ in gone} == {MessageState.READY, MessageState.CANCELLED}
    assert gone <= listed(MESSAGES)
    store.close()


def seek(store: Store, deliveries: Table, start: Start) -> set[tuple[DeliveryState, DeliveryState]]:
    """The states before and after the group begins anew there, of each delivery."""
    before = deliveries.items["state"][: deliveries.capacity].tolist()
    store.groups.seek("b", "g", start)
    after = deliveries.items["state"][: deliveries.capacity].tolist()
    return {(DeliveryState(b), DeliveryState(a)) for b, a in zip(before, after, strict=True)}
