"""Records of a job: C writes what its twin writes, and takes in what its twin takes in, whatever it is handed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_pair import NOW_MS, Pair
from tests.support.native.native_store import Outputs, pointer
from tests.twins import bulk
from tests.twins.bulk import FILL_TYPE, FOREIGN, Message
from tests.twins.log import make_record
from tests.twins.store import padded
from tickwheel_native import ffi, lib

texts = st.binary(max_size=12)
messages = st.lists(
    st.builds(
        Message, st.just(1), st.integers(0, NOW_MS), st.integers(0, 255), texts, texts, st.just(b""), texts
    ),
    min_size=1,
    max_size=8,
)


def build_in_c(
    items: Sequence[Message], order: Sequence[int], first_id: int, capacity: int
) -> tuple[int, bytes]:
    with Outputs() as out:
        columns = ffi.new("tw_bulk *", {"created_ms": NOW_MS})
        columns.topic_ids = out.input([m.topic_id for m in items], np.uint16, "uint16_t *")
        columns.deliver_at_ms = out.input([m.deliver_at_ms for m in items], np.int64, "int64_t *")
        columns.priorities = out.input([m.priority for m in items], np.uint8, "uint8_t *")
        for at, data, parts in (
            ("key_at", "keys", [m.key for m in items]),
            ("headers_at", "headers", [m.headers for m in items]),
            ("order_at", "orders", [m.order for m in items]),
            ("body_at", "bodies", [m.body for m in items]),
        ):
            setattr(columns, at, out.input(np.cumsum([0, *map(len, parts)]), np.int64, "int64_t *"))
            setattr(columns, data, out.bytes(b"".join(parts)))
        records, size = out.array(capacity, np.uint8), ffi.new("uint64_t *")
        indexes = out.input(list(order), np.uint32, "uint32_t *")
        into = pointer(records, "uint8_t *")
        count = lib.tw_bulk_build(columns, indexes, len(order), first_id, into, capacity, size)
        return int(count), records[: size[0]].tobytes()


@given(messages, st.randoms(), st.integers(1, 1 << 30), st.integers(0, 800))
def test_records_are_written_in_the_order_asked_for(
    items: list[Message], random: object, first_id: int, capacity: int
) -> None:
    order = list(range(len(items)))
    random.shuffle(order)  # type: ignore[attr-defined]
    found = build_in_c(items, order, first_id, capacity)
    assert found == bulk.build([items[i] for i in order], first_id, NOW_MS, capacity)


def whole(items: Sequence[Message], first_id: int = 5) -> bytes:
    return bulk.build(items, first_id, NOW_MS, 1 << 20)[1]


@given(messages, st.integers(0, 9))
def test_what_was_written_is_taken_in(items: list[Message], limit: int) -> None:
    pair, records = Pair(), whole(items)
    end, end_id = FOREIGN + len(records), 5 + len(items)
    why, at, next_id, _ = pair.call("check", records, FOREIGN, end, 5, end_id, limit)
    assert (why, next_id) == (0, 5 + min(limit, len(items)))
    assert pair.call("check", records, at, end, next_id, end_id, 99) == (0, end, end_id, 0)
    assert pair.call("adopt", 4, len(items) + 2, 4_096) == len(items)
    assert [int(row["position"]) for row in pair.twin.rows[5:end_id]][:1] == [4_096]
    assert pair.call("adopt", 5, len(items), 4_096) == 0, "they are visible already"


@given(messages, st.data())
def test_damage_is_found(items: list[Message], data: st.DataObject) -> None:
    pair, records = Pair(), bytearray(whole(items))
    sizes = [padded(48 + len(m.key) + len(m.headers) + len(m.body)) for m in items]
    lengths = [48 + len(m.key) + len(m.headers) + len(m.body) for m in items]
    which = data.draw(st.integers(0, len(items) - 1))
    place = sum(sizes[:which]) + data.draw(st.integers(0, lengths[which] - 1))  # the padding says nothing
    records[place] ^= data.draw(st.integers(1, 255))
    end = FOREIGN + len(records)
    why, _, next_id, _ = pair.call("check", bytes(records), FOREIGN, end, 5, 5 + len(items), 99)
    assert (why, next_id) == (bulk.BAD_RECORD, 5 + which)


@given(st.binary(max_size=300), st.integers(0, 9), st.integers(0, 70))
def test_noise(noise: bytes, limit: int, end_id: int) -> None:
    pair = Pair()
    pair.call("check", noise, FOREIGN, FOREIGN + len(noise), 5, min(end_id, 60), limit)


def reason(message: Message, first_id: int = 5, pair: Pair | None = None) -> int:
    records = whole([message], first_id)
    found = (pair or Pair()).call("check", records, FOREIGN, FOREIGN + len(records), 5, 6, 1)
    return int(found[0])


def test_what_could_not_have_been_sent_is_refused() -> None:
    assert reason(Message(1, NOW_MS, 50)) == bulk.SOUND
    assert reason(Message(3, NOW_MS, 50)) == bulk.BAD_MESSAGE, "there is no such topic"
    assert reason(Message(1, -1, 50)) == bulk.BAD_MESSAGE
    assert reason(Message(1, 253_402_300_800_000, 50)) == bulk.BAD_MESSAGE
    assert reason(Message(1, NOW_MS, 50, key=bytes(256))) == bulk.BAD_MESSAGE
    assert reason(Message(1, NOW_MS, 50, headers=bytes(32_768))) == bulk.SOUND
    assert reason(Message(1, NOW_MS, 50, headers=bytes(32_769))) == bulk.BAD_MESSAGE
    assert reason(Message(1, NOW_MS, 50, order=b"o")) == bulk.SOUND
    assert reason(Message(1, NOW_MS, 51, order=b"o")) == bulk.BAD_MESSAGE
    assert reason(Message(1, NOW_MS, 50, body=bytes(401))) == bulk.BAD_MESSAGE
    assert reason(Message(1, NOW_MS, 50), first_id=6) == bulk.BAD_ID


def test_what_was_rejected_before_is_passed_over() -> None:
    pair = Pair()
    record = whole([Message(1, NOW_MS, 50, key=b"k")])
    fill = make_record(FILL_TYPE, 50, 1, record[16 : len(record)])
    pair.write_row(5, record_bytes=77, key_hash=9)
    assert pair.call("check", fill, FOREIGN, FOREIGN + len(fill), 5, 6, 1) == (0, FOREIGN + len(fill), 6, 1)
    assert not pair.twin.rows[5]["record_bytes"]
    assert pair.call("adopt", 5, 1, 0) == 0
