"""The binary layouts, as numpy types and constants. What C knows of them is taken from ``native/store.h``.

docs/file-formats.md is the specification. To change a layout: raise ``FORMAT_VERSION``, say there what changed, and
keep reading the older version.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tickwheel_native import lib
from tickwheel_native.arrays import dtype_of

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
#: Of items of one of the types below.
Array: TypeAlias = npt.NDArray[Any]

FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 4096  # of every derived file, so that its array starts on a page
#: CRC-32C, record_bytes, type, flags, order_bytes, aux.
RECORD_HEAD_STRUCT: Final = struct.Struct("<IIBBHI")
RECORD_HEAD_BYTES: Final = RECORD_HEAD_STRUCT.size
SEGMENT_HEADER_BYTES: Final = 64
MAX_BATCH: Final = lib.TW_MAX_BATCH
MAX_KEY_BYTES: Final = lib.TW_MAX_KEY_BYTES
MAX_HEADERS_BYTES: Final = lib.TW_MAX_HEADERS_BYTES
ROWS_MAGIC: Final = b"TWMSGTAB"
ARRIVALS_MAGIC: Final = b"TWARRIVE"
DELIVERIES_MAGIC: Final = b"TWDELIVR"
KEYS_MAGIC: Final = b"TWKEYS01"
#: What the first page of a table begins with: magic, format, item_bytes, log_id.
TABLE_HEADER: Final = struct.Struct("<8sIIQ")
KEY_PARTITIONS: Final = lib.TW_KEY_PARTITIONS
HOLDERS: Final = 65_536
MOST_GAPS: Final = lib.TW_MOST_GAPS
MAX_TIME_MS: Final = lib.TW_MAX_TIME_MS


class RecordType(IntEnum):
    """What a CommitLog record says. ``aux`` in its head is the topic's or group's number."""

    MESSAGE = lib.TW_RECORD_MESSAGE  #: a message was sent
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
    TRANSACTION = lib.TW_RECORD_TRANSACTION  #: whole records that hold together or not at all
    MOVED = lib.TW_RECORD_MOVED  #: a message that purging moved here, with all that is known of it
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
    FILL = lib.TW_RECORD_FILL  #: bytes that mean nothing
    DROPPED = 26  #: messages that every group is done with, and that are kept elsewhere
    ANSWERED = (
        27  #: the answer to a request, or a part of it, so that a repetition is answered and not done again
    )
    TRIM = 28  #: of a replicated log: what lies before a position is not needed any more
    GROUP_CHANGED = 29  #: a group was deleted, or begins anew somewhere else
    GROUP_SEEN = 30  #: when a group had its first subscriber, or lost its last one
    GROUP_ORDER = 31  #: whether a group looks at ordering keys, from now on
    TIMELINE = (
        32  #: a part of the log may be lost, with what was given out there: what follows is another past
    )
    END = lib.TW_RECORD_END  #: the log goes on in the next segment


#: The type that was added last. A log with a newer one is a newer version's.
NEWEST_RECORD: Final = max(RecordType, key=lambda record: record if record is not RecordType.END else 0)


class MessageState(IntEnum):
    NONE = lib.TW_NONE
    SCHEDULED = lib.TW_SCHEDULED
    READY = lib.TW_READY  #: in its topic
    CANCELLED = lib.TW_CANCELLED
    DAMAGED = lib.TW_DAMAGED
    EXPIRED = lib.TW_EXPIRED
    DROPPED = lib.TW_DROPPED  #: no request sees it any more; it goes at the next purge


class DeliveryState(IntEnum):
    UNTOUCHED = lib.TW_UNTOUCHED
    LEASED = lib.TW_LEASED
    ACKED = lib.TW_ACKED
    WAITING = lib.TW_WAITING  #: given back with a delay, or called for again
    DEAD = lib.TW_DEAD


#: A flag of a message: it has an ordering key.
ORDERED: Final = lib.TW_ORDERED
#: A flag of a delivery: its lease or wait has ended, and it stands in the chain of those that wait for redelivery.
IN_RETRY: Final = lib.TW_IN_RETRY
#: The same, or in the chain of its ordering key: whoever held it holds it no more.
IN_A_CHAIN: Final = lib.TW_IN_RETRY | lib.TW_PARKED
#: Besides, it was given a time since it came there: its timer brings it.
POSTPONED: Final = lib.TW_POSTPONED
#: The group was done with it, and it is called for again.
CALLED: Final = lib.TW_CALLED
#: How messages are redelivered: their attempts count from 0 again; the group was done with them.
RESET_ATTEMPTS, WERE_DONE = lib.TW_RESET_ATTEMPTS, lib.TW_WERE_DONE

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
ROW = dtype_of("tw_row")
RUN = dtype_of("tw_run")
Runs: TypeAlias = Array  #: of RUN
ARRIVAL = dtype_of("tw_arrival")
DELIVERY = dtype_of("tw_delivery")
PUT_HEAD = np.dtype([("tick_ms", "<i8"), ("first_seq", "<u8"), ("runs", "<u8")])
TRANSACTION_ID_BYTES: Final = 16
MARK_BODY_BYTES: Final = 8  # the durable position
MESSAGE_HEAD_BYTES: Final = 48
assert (MESSAGE_HEAD.itemsize, RECORD_HEAD.itemsize) == (MESSAGE_HEAD_BYTES, RECORD_HEAD_BYTES)
assert [dtype.itemsize for dtype in (ROW, RUN, ARRIVAL, DELIVERY, PUT_HEAD)] == [48, 24, 16, 32, 24], (
    "what is in files has the sizes that docs/file-formats.md says"
)
assert all(len(kind) == len(kind.__members__) for kind in (RecordType, MessageState, DeliveryState)), (
    "each has a number of its own: enum takes a second one with a number for the first"
)
assert all(0 < record < 256 for record in RecordType), "a record's type is a byte, and never that of zeros"
