"""What records say, outside the hot paths: control records and their payloads, messages one by one, SEND payloads.

docs/file-formats.md has the bytes. A control record sets absolute values, so that applying it again changes nothing;
``timerlog.tables.apply`` says what each does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from tickwheel_native import Buffer, store
from timerlog.layout import (
    MESSAGE_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    RESET_ATTEMPTS,
    RUN,
    TRANSACTION_ID_BYTES,
    WERE_DONE,
    RecordType,
    Runs,
)
from timerlog.settings import TopicSettings

#: A record holds at most so many runs, so that it always fits into a segment.
RUNS_A_RECORD: Final = 4096
#: A control record that is to be written: its type, aux, and payload.
Control: TypeAlias = tuple[RecordType, int, bytes]
AS_IT_IS: Final = 256  #: a priority that changes nothing
NACK_HEAD: Final = struct.Struct("<Q")  # how many runs
#: Of a GROUP_SEEN record: when, in epoch ms, and whether the group has subscribers from then on.
GROUP_SEEN: Final = struct.Struct("<q?")
#: Of a GROUP_ORDER record: whether the group ignores ordering keys from then on.
GROUP_ORDER: Final = struct.Struct("<?")
_PUT_HEAD: Final = struct.Struct("<qQQ")  # `PUT_HEAD` of the layout
_LEASE_TAIL: Final = struct.Struct("<q")  # when the leases were given
_SEND_HEAD: Final = struct.Struct("<IIIIq")
_KEYS, _HEADERS, _PRIORITIES, _ORDERS = 4, 8, 2, 32
_MESSAGE: Final = struct.Struct("<IIBBHIQqqHHI")


# -- what control records hold --


class TopicRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """TOPIC: a topic, as it is from now on."""

    topic_id: int
    name: str
    created_ms: int
    settings: TopicSettings = TopicSettings()
    paused: bool = False
    deleted: bool = False
    shards: int = 0  #: this topic's messages lie in so many others
    parent: int = 0  #: of a shard: the topic that it is a part of
    shard: int = 0  #: of a shard: which one
    maker: str = ""  #: the token that made it, if its topics are counted


class AdoptedRecord(msgspec.Struct, frozen=True, array_like=True):
    """ADOPTED: the next segments are a bulk job's."""

    job: bytes  #: 16 bytes
    segments: int
    messages: int
    rejected: int


class DocumentRecord(msgspec.Struct, frozen=True):
    """DOCUMENT: a named document of the broker's, as it is from now on."""

    name: str
    content: bytes | None  #: None: it is deleted


class GroupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """GROUP and GROUP_CHANGED: a group, as it is from now on."""

    group_id: int
    topic_id: int
    name: str
    start_seq: int  #: it has nothing to do with what lies before
    created_ms: int
    deleted: bool = False
    ephemeral_ms: int = 0  #: it ends so long after its last subscriber has left; 0: it stays
    first_row: int | None = None  #: of a group that was moved: the lowest number at which it ever began
    #: Receipts with its number and an epoch up to this one are of groups that are gone. Of a deleted one: no receipt
    #: with its number has a higher epoch; None in logs from before numbers were used again.
    fence: int | None = None
    ignores_order: bool = False  #: messages with an ordering key are given to it as those without

    @property
    def rows_from(self) -> int:
        """It may have been given messages from this number on."""
        return self.start_seq if self.first_row is None else self.first_row


class TimelineRecord(msgspec.Struct, frozen=True, array_like=True):
    """TIMELINE: what the log told after its last record is lost. What follows is another timeline, in which nothing is
    given out again that may have been given out before."""

    timeline: int
    position: int  #: of this record, where the timeline begins
    gap_start: int  #: message ids from here on, to below ``next_id``, may have been given out
    next_id: int
    epoch_floor: int  #: receipts with epochs up to this one may have been given out, by any group
    #: (number, deliveries so far) of the groups: what they give out is counted from ``epoch_floor`` on.
    deliveries: list[tuple[int, int]]


class AnsweredRecord(msgspec.Struct, frozen=True, array_like=True):
    """An ANSWERED record: an answer, or a part of one that is made in steps."""

    session: int
    number: int
    unanswered_from: int  #: the lowest number whose answer the session still waits for
    at: int  #: the log's end before this record
    frame_type: int
    part: int
    content: bytes
    is_packed: bool


class Purged(msgspec.Struct, frozen=True, array_like=True):
    """A PURGED record: what lay between two positions is gone or was moved. The counters of the topics (number,
    messages, cancelled) and groups (number, acked, dead, deliveries) that this has changed, as they are from now on."""

    start: int
    end: int
    topics: list[tuple[int, int, int]]
    groups: list[tuple[int, int, int, int]]


# -- runs of messages, and payloads with them --


def reschedule_aux(priority: int) -> int:
    """How a RESCHEDULE record tells a new priority; 0, as in logs of version 1: as it is."""
    assert 0 <= priority <= AS_IT_IS, "there are 256 priorities"
    return 0 if priority == AS_IT_IS else priority + 1


def reschedule_priority(aux: int) -> int:
    """The priority that a RESCHEDULE record tells."""
    return aux - 1 if aux else AS_IT_IS


def pack_nack(runs: Runs, error: str) -> bytes:
    return NACK_HEAD.pack(len(runs)) + runs.tobytes() + error.encode()


def unpack_nack(payload: Buffer) -> tuple[Runs, str]:
    view = memoryview(payload)
    (count,) = NACK_HEAD.unpack_from(view)
    end = NACK_HEAD.size + count * RUN.itemsize
    return np.frombuffer(view, RUN, count, NACK_HEAD.size), bytes(view[end:]).decode()


def pack_put(tick_ms: int, first_seq: int, runs: Runs) -> bytes:
    assert 0 < len(runs) <= RUNS_A_RECORD, "a record has runs, and fits into a segment"
    return _PUT_HEAD.pack(tick_ms, first_seq, len(runs)) + runs.tobytes()


def pack_lease(runs: Runs, now_ms: int) -> bytes:
    return runs.tobytes() + _LEASE_TAIL.pack(now_ms)


def unpack_lease(payload: Buffer) -> tuple[Runs, int]:
    """The runs, and when the leases were given; 0 where an older version did not say it."""
    view = memoryview(payload)
    count, rest = divmod(len(view), RUN.itemsize)
    given_ms = _LEASE_TAIL.unpack_from(view, count * RUN.itemsize)[0] if rest else 0
    return np.frombuffer(view, RUN, count), given_ms


def pack_returned(runs: Runs, time_ms: int) -> bytes:
    return time_ms.to_bytes(8, "little") + runs.tobytes()


def pack_redeliver(runs: Runs, how: int) -> bytes:
    assert 0 <= how <= RESET_ATTEMPTS | WERE_DONE, (
        "a record says nothing else of how messages are redelivered"
    )
    return how.to_bytes(8, "little") + runs.tobytes()


def unpack_numbered(payload: Buffer) -> tuple[Runs, int]:
    """The runs of a RETURNED or REDELIVER record, and the number before them: a time, or how."""
    view = memoryview(payload)
    return np.frombuffer(view, RUN, offset=8), int.from_bytes(view[:8], "little")


def in_records(
    record: RecordType, aux: int, runs: Runs, pack: Callable[[Runs], bytes] = lambda runs: runs.tobytes()
) -> list[Control]:
    """Runs as control records, each of which fits into a segment; ``pack`` makes the payload of one."""
    assert np.count_nonzero(runs["count"]) == len(runs), "a run that is logged names messages"
    assert aux or record is RecordType.RESCHEDULE, "what is logged of deliveries names their group"
    return [
        (record, aux, pack(runs[start : start + RUNS_A_RECORD]))
        for start in range(0, len(runs), RUNS_A_RECORD)
    ]


def room_for_runs(runs: int, head_bytes: int = 0) -> int:
    """The log bytes that records with so many runs take at most."""
    records = -(-runs // RUNS_A_RECORD)
    return runs * RUN.itemsize + records * (RECORD_HEAD_BYTES + head_bytes + 8)


def group_room_bytes(controls: Sequence[Control]) -> int:
    """The log bytes that a group of control records takes at most."""
    inside = sum(len(payload) + RECORD_HEAD_BYTES + 8 for _, _, payload in controls)
    return RECORD_HEAD_BYTES + TRANSACTION_ID_BYTES + inside


# -- messages one by one --


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message that the store itself sends."""

    body: bytes
    key: bytes = b""
    headers: bytes = b""
    order: bytes = b""
    priority: int = 50


@dataclass(frozen=True, slots=True)
class MessageView:
    """What the log holds of a message."""

    topic_id: int
    key: bytes
    headers: bytes
    order: bytes
    body: bytes
    priority: int
    deliver_at_ms: int
    created_ms: int

    @classmethod
    def read(cls, native: Any, message_id: int) -> MessageView:
        """Reads a message that the table has, whatever its state."""
        assert message_id > 0, "0 is no message"
        assert native.rows_start <= message_id < native.next_id, "a message that is read has a row"
        row = native.rows[message_id]
        record = store.record(native, message_id)
        _, _, _, _, order_bytes, _, _, _, _, key_bytes, headers_bytes, _ = _MESSAGE.unpack_from(record)
        key_end = MESSAGE_HEAD_BYTES + key_bytes
        headers_end = key_end + headers_bytes
        order_end = headers_end + order_bytes
        return cls(
            topic_id=int(row.topic_id),
            key=record[MESSAGE_HEAD_BYTES:key_end],
            headers=record[key_end:headers_end],
            order=record[headers_end:order_end],
            body=record[order_end:],
            priority=int(row.priority),
            deliver_at_ms=int(row.deliver_at_ms),
            created_ms=int(row.created_ms),
        )


def send_payload(topic_id: int, messages: Sequence[Outbound], time_ms: int = 0) -> bytes:
    """The payload of a SEND; docs/protocol.md has its layout."""
    count = len(messages)
    columns = _KEYS | _HEADERS | _PRIORITIES | _ORDERS
    parts = [
        _SEND_HEAD.pack(topic_id, count, columns, 0, time_ms),
        struct.pack(f"<{count}I", *(len(message.body) for message in messages)),
        struct.pack(f"<{count}H", *(len(message.key) for message in messages)),
        struct.pack(f"<{count}H", *(len(message.headers) for message in messages)),
        struct.pack(f"<{count}H", *(len(message.order) for message in messages)),
        bytes(message.priority for message in messages),
        *(message.key for message in messages),
        *(message.headers for message in messages),
        *(message.order for message in messages),
        *(message.body for message in messages),
    ]
    return b"".join(parts)
