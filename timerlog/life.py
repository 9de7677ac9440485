"""The life of a message, and of its delivery to a group, as data: which record moves which states to which.

A message has one state. Each group of its topic has a delivery of the message, with a state of its own. The engine
judges before it writes a record, and decides the moves that stand here and no others. A replay may pass through others:
it applies records to tables that may hold already what came later. docs/life-of-a-message.md draws both tables.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from timerlog.layout import DeliveryState, MessageState, RecordType


class Move(NamedTuple):
    """A record of one of these types moves a message, or a delivery, from one of the states ``before`` to ``after``."""

    records: tuple[RecordType, ...]
    before: tuple[IntEnum, ...]
    after: IntEnum
    why: str


ENDS: Final = {
    RecordType.CANCEL: MessageState.CANCELLED,
    RecordType.EXPIRED: MessageState.EXPIRED,
    RecordType.DROPPED: MessageState.DROPPED,
    RecordType.DAMAGED: MessageState.DAMAGED,
}
"""Records that end messages, and the state in which a message stays until it is purged."""

_ALIVE: Final = (MessageState.SCHEDULED, MessageState.READY)
_HELD: Final = (DeliveryState.LEASED, DeliveryState.WAITING)
_DONE: Final = (DeliveryState.ACKED, DeliveryState.DEAD)

MESSAGES: Final = (
    Move(
        (RecordType.MESSAGE, RecordType.ADOPTED),
        (MessageState.NONE,),
        MessageState.SCHEDULED,
        "a producer sends it, or a bulk job brings it",
    ),
    Move((RecordType.PUT,), (MessageState.SCHEDULED,), MessageState.READY, "its time has come"),
    Move((RecordType.RESCHEDULE,), _ALIVE, MessageState.SCHEDULED, "it gets another time or priority"),
    Move(
        (RecordType.CANCEL,),
        _ALIVE,
        MessageState.CANCELLED,
        "it is cancelled or stopped; it was prepared, and is rolled back; or its dead letter is replayed",
    ),
    Move(
        (RecordType.EXPIRED,),
        _ALIVE,
        MessageState.EXPIRED,
        "its topic kept it for as long as it keeps what is not acked, or it was prepared and is committed",
    ),
    Move(
        (RecordType.DROPPED,),
        (MessageState.READY,),
        MessageState.DROPPED,
        "every group is done with it, and an archive has it",
    ),
    Move((RecordType.DAMAGED,), _ALIVE, MessageState.DAMAGED, "its record no longer matches its checksum"),
    Move(
        (RecordType.PURGED,),
        (MessageState.READY, *ENDS.values()),
        MessageState.NONE,
        "every group has been done with it for long enough, or it had ended, or its topic was deleted",
    ),
    Move((RecordType.PURGED,), (MessageState.SCHEDULED,), MessageState.NONE, "its topic was deleted"),
)
"""Moves of a message."""

DELIVERIES: Final = (
    Move(
        (RecordType.LEASE,),
        (DeliveryState.UNTOUCHED, *_HELD),
        DeliveryState.LEASED,
        "it is given to a subscriber; again when a lease or a wait has ended",
    ),
    Move((RecordType.ACK,), (DeliveryState.LEASED,), DeliveryState.ACKED, "the subscriber acks it"),
    Move(
        (RecordType.NACK,),
        _HELD,
        DeliveryState.WAITING,
        "the subscriber gives it back; or the clock was set back, and with it the end of a wait",
    ),
    Move(
        (RecordType.RELEASE, RecordType.RETURNED),
        (DeliveryState.LEASED,),
        DeliveryState.LEASED,
        "its lease ends at another time: it is extended, or given back at once",
    ),
    Move(
        (RecordType.DEAD,), _HELD, DeliveryState.DEAD, "its last attempt has failed, or a handler gives it up"
    ),
    Move(
        (RecordType.REDELIVER,),
        (*_HELD, *_DONE),
        DeliveryState.WAITING,
        "it is called for again, or waits until another time",
    ),
    Move(
        (RecordType.CANCEL, RecordType.EXPIRED, RecordType.DAMAGED),
        (DeliveryState.LEASED,),
        DeliveryState.WAITING,
        "its message has ended: who holds it loses it, and nobody is given it",
    ),
    Move(
        (RecordType.GROUP_CHANGED,), _HELD, DeliveryState.UNTOUCHED, "the group begins anew, wherever that is"
    ),
    Move(
        (RecordType.GROUP_CHANGED,),
        _DONE,
        DeliveryState.UNTOUCHED,
        "the group begins anew at this message, or before it",
    ),
    Move(
        (RecordType.PURGED,),
        (DeliveryState.WAITING, *_DONE),
        DeliveryState.UNTOUCHED,
        "its message is gone",
    ),
)
"""Moves of a delivery of a message to a group."""


def _are_clear(moves: tuple[Move, ...]) -> bool:
    """Whether a record moves a state to one other, and never to one of two."""
    steps = [(record, before) for move in moves for record in move.records for before in move.before]
    return len(set(steps)) == len(steps)


assert _are_clear(MESSAGES), "what becomes of a message follows from its state and the record"
assert _are_clear(DELIVERIES), "what becomes of a delivery follows from its state and the record"
assert all(
    move.after is MessageState.NONE for move in MESSAGES if not set(ENDS.values()).isdisjoint(move.before)
), "a message that has ended only goes"
assert {type(state) for move in DELIVERIES for state in (*move.before, move.after)} == {DeliveryState}, (
    "a delivery has no state of a message, which may have the same number"
)
