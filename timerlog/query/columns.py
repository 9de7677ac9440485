"""The columns of a message table, as Arrow arrays, from chunks of a ``Snapshot``.

The tables hold rows, Arrow wants columns, so a column is one copy of eight bytes a message; nothing is made that a
query does not use. What lies in the log (key, headers, body) is read by id, for the messages that are left after
filtering: see ``LogColumns``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerlog.commitlog.records import TopicRecord
from timerlog.commitlog.view import Records
from timerlog.layout import IN_A_CHAIN, MESSAGE_HEAD_BYTES, DeliveryState, Int64Array, MessageState
from timerlog.names import DEAD_HEADER, shard_name
from timerlog.readers.snapshot import Chunk, Snapshot

_TIME: Final = pa.timestamp("ms", "UTC")
_STATES: Final = (
    "scheduled",
    "ready",
    "leased",
    "waiting",
    "acked",
    "dead",
    "cancelled",
    "expired",
    "damaged",
)
_CODE: Final = {name: code for code, name in enumerate(_STATES)}
_OF_MESSAGE: Final = {
    MessageState.SCHEDULED: "scheduled",
    MessageState.READY: "ready",
    MessageState.CANCELLED: "cancelled",
    MessageState.DAMAGED: "damaged",
    MessageState.EXPIRED: "expired",
}
_MESSAGE_CODES: Final = np.full(256, _CODE["damaged"], np.int8)
assert _OF_MESSAGE.keys() == set(MessageState) - {MessageState.NONE, MessageState.DROPPED}, (
    "each state that is shown has a name"
)
for _state, _name in _OF_MESSAGE.items():
    _MESSAGE_CODES[_state] = _CODE[_name]

#: The columns that come from the tables, in the order in which ``select *`` shows them among the others.
TABLE_COLUMNS: Final[dict[str, Any]] = {
    "id": pa.int64(),
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "group": pa.dictionary(pa.int32(), pa.string()),
    "priority": pa.int32(),
    "epoch": pa.int64(),
    "attempts": pa.int64(),
    "state": pa.dictionary(pa.int8(), pa.string()),
    "time_next": _TIME,
    "time_acked": _TIME,
    "time_created": _TIME,
    "deliver_at": _TIME,
    "shard": pa.dictionary(pa.int32(), pa.string()),
}
_NOTED: Final = 1_000
_WITHOUT_DELIVERIES: Final = {"id", "topic", "group", "priority", "time_created", "deliver_at", "shard"}


def needs_deliveries(names: list[str]) -> bool:
    """Whether any of these columns says what a group did with a message."""
    return not _WITHOUT_DELIVERIES.issuperset(names)


def state_codes(chunk: Chunk, now_ms: int) -> npt.NDArray[np.int8]:
    """The state of each row, as an index into the names of states.

    What a group has done with a message for good counts for that group, whatever became of the message later.
    """
    assert len(chunk.rows) == len(chunk.deliveries), "each message has a delivery, if an empty one"
    codes: npt.NDArray[np.int8] = _MESSAGE_CODES[chunk.rows["state"]]
    is_ready = codes == _CODE["ready"]
    delivery = chunk.deliveries["state"]
    is_leased = is_ready & (delivery == DeliveryState.LEASED)
    has_ended = (chunk.deliveries["time_ms"] <= now_ms) | (chunk.deliveries["flags"] & IN_A_CHAIN != 0)
    codes[is_leased] = _CODE["leased"]
    codes[(is_leased & has_ended) | (is_ready & (delivery == DeliveryState.WAITING))] = _CODE["waiting"]
    codes[delivery == DeliveryState.ACKED] = _CODE["acked"]
    codes[delivery == DeliveryState.DEAD] = _CODE["dead"]
    return codes


class TableColumns:
    """Makes the columns of ``TABLE_COLUMNS`` for one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        description = snapshot.description
        self._now_ms = description.now_ms
        self._topics, self._topic_index = _names(
            [(topic.topic_id, topic.name) for topic in description.topics]
        )
        self._shards = pa.array(shard_names(description.topics), pa.string())
        self._groups, self._group_index = _names(
            [(group.group_id, group.name) for group in description.groups]
        )
        self._make: dict[str, Callable[[Chunk], Any]] = {
            "id": lambda chunk: pa.array(chunk.ids),
            "topic": self._topic,
            "group": self._group,
            "priority": lambda chunk: pa.array(chunk.rows["priority"].astype(np.int32)),
            "epoch": lambda chunk: pa.array(snapshot.times_delivered(chunk.groups, chunk.deliveries)),
            "attempts": _attempts,
            "state": self._state,
            "time_next": self._time_next,
            "time_acked": _time_acked,
            "time_created": lambda chunk: _times(chunk.rows["created_ms"]),
            "deliver_at": lambda chunk: _times(chunk.rows["deliver_at_ms"]),
            "shard": self._shard,
        }
        assert self._make.keys() == TABLE_COLUMNS.keys(), "each column can be made"
        assert len(self._shards) == len(self._topics), "a topic has one place in both"

    def table(self, chunk: Chunk, names: list[str]) -> Any:
        """An Arrow table of these columns."""
        schema = pa.schema([pa.field(name, TABLE_COLUMNS[name]) for name in names])
        return pa.Table.from_arrays([self._make[name](chunk) for name in names], schema=schema)

    def _topic(self, chunk: Chunk) -> Any:
        return pa.DictionaryArray.from_arrays(
            pa.array(self._topic_index[chunk.rows["topic_id"]]), self._topics
        )

    def _shard(self, chunk: Chunk) -> Any:
        index = pa.array(self._topic_index[chunk.rows["topic_id"]])
        return pa.DictionaryArray.from_arrays(index, self._shards)

    def _group(self, chunk: Chunk) -> Any:
        index = pa.array(self._group_index[chunk.groups], mask=chunk.groups == 0)
        return pa.DictionaryArray.from_arrays(index, self._groups)

    def _state(self, chunk: Chunk) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(state_codes(chunk, self._now_ms)), list(_STATES))

    def _time_next(self, chunk: Chunk) -> Any:
        codes = state_codes(chunk, self._now_ms)
        by_message = (codes == _CODE["scheduled"]) | (codes == _CODE["ready"])
        by_delivery = (codes == _CODE["leased"]) | (codes == _CODE["waiting"])
        times = np.where(by_delivery, chunk.deliveries["time_ms"], chunk.rows["deliver_at_ms"])
        return _times(times, ~(by_message | by_delivery))


def shard_names(topics: list[TopicRecord]) -> list[str | None]:
    """The key range of each topic that is a shard, None for one that is not."""
    counts = {topic.topic_id: topic.shards for topic in topics}
    return [
        shard_name(topic.shard, counts[topic.parent]) if counts.get(topic.parent) else None
        for topic in topics
    ]


def _names(named: list[tuple[int, str]]) -> tuple[Any, npt.NDArray[np.int32]]:
    """The names as a dictionary, and by number the place of its name there."""
    index = np.zeros(max((number for number, _ in named), default=0) + 1, np.int32)
    for place, (number, _) in enumerate(named):
        index[number] = place
    return pa.array([name for _, name in named], pa.string()), index


def _times(values: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_] | None = None) -> Any:
    return pa.array(np.ascontiguousarray(values), pa.int64(), mask=is_null).view(_TIME)


def _attempts(chunk: Chunk) -> Any:
    return pa.array(chunk.deliveries["epoch"].astype(np.int64) - chunk.deliveries["base_epoch"])


def _time_acked(chunk: Chunk) -> Any:
    return _times(chunk.deliveries["time_ms"], chunk.deliveries["state"] != DeliveryState.ACKED)


class LogColumns:
    """The columns that lie in the log, by message id; NULL where the record is no longer there, or damaged."""

    def __init__(self, snapshot: Snapshot) -> None:
        #: Messages that are there, and whose records are damaged: some of them, if there are very many.
        self.damaged: set[int] = set()
        self._snapshot = snapshot
        self._last_ids: Int64Array = np.empty(0, np.int64)
        self._last_records: Records | None = None

    def key(self, ids: Any) -> Any:
        """VARCHAR; NULL for a message without a key. Bytes that are no UTF-8 show as replacement characters."""
        return _texts(self._pieces(ids, Records.keys, empty_is_null=True))

    def order_key(self, ids: Any) -> Any:
        """VARCHAR; NULL for a message without an ordering key."""
        return _texts(self._pieces(ids, Records.order_keys, empty_is_null=True))

    def packed_headers(self, ids: Any) -> Any:
        """BLOB: the headers as they were sent; NULL for a message without headers."""
        return self._pieces(ids, Records.headers, empty_is_null=True)

    def are_right(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether the record of each message is there and matches its checksum."""
        found = self._records(ids)
        sizes = found.key_bytes + found.headers_bytes + found.order_bytes + found.body_bytes
        right = np.zeros(len(ids), bool)
        kept = np.flatnonzero(found.is_whole)
        right[kept] = self._snapshot.log.are_right(found.positions[kept], sizes[kept] + MESSAGE_HEAD_BYTES)
        self._note_damaged(ids, right)
        return right

    def _note_damaged(self, ids: Int64Array, is_right: npt.NDArray[np.bool_]) -> None:
        if is_right.all() or len(self.damaged) >= _NOTED:
            return
        messages = self._snapshot.messages
        wrong = ids[~is_right]
        wrong = wrong[(wrong > 0) & (wrong < len(messages))]
        is_there = np.isin(messages.take(wrong, "state"), (MessageState.SCHEDULED, MessageState.READY))
        self.damaged.update(wrong[is_there][:_NOTED].tolist())

    def headers(self, ids: Any) -> Any:
        """VARCHAR with a JSON object; NULL for a message without headers."""
        return self._of_headers(ids, headers_as_json)

    def dead_reason(self, ids: Any) -> Any:
        """VARCHAR: of a dead letter, the last error that its group gave (it may be empty); otherwise NULL."""
        return self._of_headers(ids, _dead_reason)

    def body(self, ids: Any) -> Any:
        """BLOB."""
        return self._pieces(ids, Records.bodies, empty_is_null=False)

    def body_bytes(self, ids: Any) -> Any:
        """BIGINT: the size of the body."""
        records = self._records(_numbers(ids))
        return pa.array(records.body_bytes, pa.int64(), mask=~records.is_whole)

    def _of_headers(self, ids: Any, convert: Callable[[bytes], str | None]) -> Any:
        """Each different header is looked at once."""
        packed = self._pieces(ids, Records.headers, empty_is_null=True).dictionary_encode()
        texts = pa.array([convert(piece) for piece in packed.dictionary.to_pylist()], pa.string())
        return texts.take(packed.indices)

    def _pieces(
        self,
        ids: Any,
        part: Callable[[Records], tuple[Int64Array, Int64Array]],
        *,
        empty_is_null: bool,
    ) -> Any:
        """A binary array of one part of each record, copied out of the log in one go."""
        numbers = _numbers(ids)
        records, is_right = self._records(numbers), self.are_right(numbers)
        starts, sizes = part(records)
        sizes = np.where(is_right, sizes, 0)
        is_there = is_right & (sizes > 0) if empty_is_null else is_right
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        gathered = self._snapshot.log.gather(np.where(is_right, starts, 0), sizes)
        found = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(sizes), [_bitmap(is_there), pa.py_buffer(ends), pa.py_buffer(gathered)]
        )
        return found.cast(pa.binary())  # raises ArrowInvalid beyond 2 GiB: chunks are much smaller

    def _records(self, ids: Int64Array) -> Records:
        # Several columns of the same messages are asked for one after the other.
        if self._last_records is None or not np.array_equal(ids, self._last_ids):
            self._last_ids, self._last_records = ids, self._snapshot.records(ids)
            self._note_damaged(ids, self._last_records.is_whole)
        return self._last_records


def _bitmap(is_set: npt.NDArray[np.bool_]) -> Any:
    """Which values are there, as Arrow has it; None: all of them."""
    return None if is_set.all() else pa.py_buffer(np.packbits(is_set, bitorder="little"))


def _texts(pieces: Any) -> Any:
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid:
        texts = (None if piece is None else piece.decode(errors="replace") for piece in pieces.to_pylist())
        return pa.array(texts, pa.string())


def _numbers(ids: Any) -> Int64Array:
    if isinstance(ids, np.ndarray):
        return ids
    found: Int64Array = ids.fill_null(0).to_numpy()
    return found


def headers_as_json(packed: bytes | None) -> str | None:
    """Headers are whatever a client has sent: what is no MessagePack, or cannot be JSON, is NULL."""
    if not packed:
        return None
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(packed)).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError, RecursionError):
        return None


class _Story(msgspec.Struct):
    """What the header of a dead letter says, as far as it is wanted here."""

    error: str = ""


class _DeadHeaders(msgspec.Struct, rename={"story": DEAD_HEADER}):
    story: _Story


_READ_DEAD: Final = msgspec.msgpack.Decoder(_DeadHeaders).decode


def _dead_reason(packed: bytes | None) -> str | None:
    if not packed or DEAD_HEADER.encode() not in packed:
        return None
    try:
        return _READ_DEAD(packed).story.error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
