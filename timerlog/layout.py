"""The binary layouts, as numpy types and constants; the C side of them is ``native/store.h``.

docs/file-formats.md is the specification. To change a layout: raise ``FORMAT_VERSION``, say there what changed, and
keep reading the older version.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
#: Of items of one of the types below.
Array: TypeAlias = npt.NDArray[Any]

FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 4096  # of every derived file, so that its array starts on a page
RECORD_HEAD_BYTES: Final = 16
SEGMENT_HEADER_BYTES: Final = 64
MAX_BATCH: Final = 65_536
MAX_KEY_BYTES: Final = 255
MAX_HEADERS_BYTES: Final = 16_384
ROWS_MAGIC: Final = b"TWMSGTAB"
ARRIVALS_MAGIC: Final = b"TWARRIVE"
DELIVERIES_MAGIC: Final = b"TWDELIVR"
KEYS_MAGIC: Final = b"TWKEYS01"
#: What the first page of a table begins with: magic, format, item_bytes, log_id.
TABLE_HEADER: Final = struct.Struct("<8sIIQ")
KEY_PARTITIONS: Final = 1_024
HOLDERS: Final = 65_536
MAX_TIME_MS: Final = 253_402_300_799_999


class RecordType(IntEnum):
    """What a CommitLog record says. ``aux`` in its head is the topic's or group's number."""

    MESSAGE = 1  #: a message was sent
    PUT = 2  #: messages reached their topic
    LEASE = 3  #: messages were given to a subscriber of a group
    ACK = 4  #: a group acked messages
    RELEASE = 5  #: leases were given back
    CANCEL = 6
    RESCHEDULE = 7
    DAMAGED = 8  #: messages whose record no longer matches its checksum were set aside
    NACK = 9  #: messages were given back, to go on at a time
    TOPIC = 10  #: a topic, as it is from now on
    GROUP = 11
    TRANSACTION = 12  #: whole records that hold together or not at all
    MOVED = 13  #: a message that purging moved here, with all that is known of it
    DOCUMENT = 14  #: a named document of the broker's, as it is from now on
    REDELIVER = 15  #: messages are to go on at a time, whatever became of them
    BASE = 16  #: the first record of a segment: everything small that holds at this point
    PURGED = 17  #: what a part of a segment held is gone, or was moved
    DEAD = 18  #: messages that a group will not be given again
    EXPIRED = 19  #: messages that were kept for as long as their topic keeps them
    MARK = 20  #: the log was on disk up to a position
    STORED = 21  #: inside a transaction: the first id and the count of each of its sends
    RETURNED = 22  #: messages were given back that no handler had looked at: that delivery was no attempt
    RESERVED = 23  #: message numbers below this one are given already
    ADOPTED = 24  #: the next segments were written by others, and belong to the log from here on
    FILL = 25  #: bytes that mean nothing
    DROPPED = 26  #: messages that every group is done with, and that are kept elsewhere
    ANSWERED = (
        27  #: the answer to a request, or a part of it, so that a repetition is answered and not done again
    )
    GROUP_CHANGED = 29  #: a group was deleted, or begins anew somewhere else
    GROUP_SEEN = 30  #: when a group had its first subscriber, or lost its last one
    END = 255  #: the log goes on in the next segment


class MessageState(IntEnum):
    NONE = 0
    SCHEDULED = 1
    READY = 2  #: in its topic
    CANCELLED = 3
    DAMAGED = 4
    EXPIRED = 5
    DROPPED = 6  #: no request sees it any more; it goes at the next purge


class DeliveryState(IntEnum):
    UNTOUCHED = 0
    LEASED = 1
    ACKED = 2
    WAITING = 3  #: given back with a delay, or called for again
    DEAD = 4


#: A flag of a delivery: its lease or wait has ended, and it stands in the chain of those that wait for redelivery.
IN_RETRY: Final = 1
#: Besides, it was given a time since it came there: its timer brings it.
POSTPONED: Final = 16
#: The group was done with it, and it is called for again.
CALLED: Final = 32
#: How messages are redelivered: their attempts count from 0 again; the group was done with them.
RESET_ATTEMPTS, WERE_DONE = 1, 2

#: What a MESSAGE record begins with: the head of every record, and all that stands before the key.
MESSAGE_HEAD = np.dtype(
    [
        ("crc", "<u4"),
        ("record_bytes", "<u4"),
        ("type", "u1"),
        ("flags", "u1"),
        ("order_bytes", "<u2"),
        ("topic_id", "<u4"),
        ("id", "<u8"),
        ("deliver_at_ms", "<i8"),
        ("created_ms", "<i8"),
        ("key_bytes", "<u2"),
        ("headers_bytes", "<u2"),
        ("body_bytes", "<u4"),
    ]
)
RECORD_HEAD = np.dtype([*MESSAGE_HEAD.descr[:5], ("aux", "<u4")])
ROW = np.dtype(
    [
        ("position", "<u8"),
        ("deliver_at_ms", "<i8"),
        ("created_ms", "<i8"),
        ("topic_seq", "<u8"),
        ("topic_id", "<u2"),
        ("flags", "<u2"),
        ("key_hash", "<u4"),
        ("record_bytes", "<u4"),
        ("version", "<u2"),
        ("state", "u1"),
        ("priority", "u1"),
    ]
)
RUN = np.dtype([("first", "<u8"), ("count", "<u4"), ("epoch", "<u4"), ("time_ms", "<i8")])
Runs: TypeAlias = Array  #: of RUN
ARRIVAL = np.dtype([("id", "<u8"), ("next", "<u8")])
DELIVERY = np.dtype(
    [
        ("time_ms", "<i8"),
        ("retry_next", "<u8"),
        ("epoch", "<u4"),
        ("base_epoch", "<u4"),
        ("order_hash", "<u4"),
        ("holder", "<u2"),
        ("state", "u1"),
        ("flags", "u1"),
    ]
)
PUT_HEAD = np.dtype([("tick_ms", "<i8"), ("first_seq", "<u8"), ("runs", "<u8")])
TRANSACTION_ID_BYTES: Final = 16
MARK_BODY_BYTES: Final = 8  # the durable position
MESSAGE_HEAD_BYTES: Final = 48
assert (MESSAGE_HEAD.itemsize, RECORD_HEAD.itemsize) == (MESSAGE_HEAD_BYTES, RECORD_HEAD_BYTES)
