"""The bodies for what becomes of messages after their delivery, and for changing many at once."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from tickwheel.protocol.bodies.base import (
    U32,
    Answer,
    Epochs,
    Id,
    Ids,
    Name,
    Priority,
    Request,
    Targeted,
    Timed,
    TimeMs,
    check_one_time,
)
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST, MAX_PARTS_A_TRANSACTION
from tickwheel.protocol.message_states import State

_Error: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
_SomeIds: TypeAlias = Annotated[list[Id], msgspec.Meta(max_length=MAX_IDS_A_REQUEST)]
_SomeEpochs: TypeAlias = Annotated[list[U32], msgspec.Meta(max_length=MAX_IDS_A_REQUEST)]
_Bytes: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=1 << 26)]
_TransactionId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


def _check_receipts(ids: list[int], epochs: list[int]) -> None:
    if len(ids) != len(epochs):
        raise ValueError("Expected as many `epochs` as `ids`")


class Nack(Request, frozen=True):
    """NACK: messages are given back. ``delay_ms`` None: the backoff of their attempt. ``give_up``: they become dead
    letters now. ``uncounted``: their delivery was no attempt, and without ``delay_ms`` they come again at once."""

    group_id: U32
    ids: Ids
    epochs: Epochs
    delay_ms: TimeMs | None = None
    error: _Error = ""
    give_up: bool = False
    uncounted: bool = False

    def __post_init__(self) -> None:
        _check_receipts(self.ids, self.epochs)
        if self.give_up and (self.uncounted or self.delay_ms is not None):
            raise ValueError("Expected neither `uncounted` nor `delay_ms` with `give_up`")
        if self.uncounted and self.error:
            raise ValueError("Expected no `error` with `uncounted`: what is no attempt has none")


class Return(Request, frozen=True, kw_only=True):
    """RETURN: these messages were not looked at: they are given back, and their delivery is no attempt. They are of a
    ``subscription``, to which nothing more is delivered, or of a group: then their receipts are enough."""

    subscription: U32 | None = None
    group_id: U32 | None = None
    ids: _SomeIds
    epochs: _SomeEpochs

    def __post_init__(self) -> None:
        _check_receipts(self.ids, self.epochs)
        if (self.subscription is None) == (self.group_id is None):
            raise ValueError("Expected either `subscription` or `group_id`")


class Extend(Request, frozen=True):
    """EXTEND: leases end ``for_ms`` from now. ``only_longer``: those that end later anyway stay as they are."""

    group_id: U32
    ids: Ids
    epochs: Epochs
    for_ms: TimeMs
    only_longer: bool = False

    def __post_init__(self) -> None:
        _check_receipts(self.ids, self.epochs)


class Redeliver(Targeted, frozen=True):
    """REDELIVER: the target as in CANCEL; without a time: at once. ``postpone``: to a later time also what could be
    delivered again by now."""

    group: Name | None = None
    deliver_at_ms: TimeMs | None = None
    delay_ms: TimeMs | None = None
    acked: bool = False
    postpone: bool = False
    keep_attempts: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_time(self.deliver_at_ms, self.delay_ms, needed=False)


class MessageFilter(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Which messages of a topic are meant. A bound that is None does not bind; ``_until`` bounds are exclusive."""

    states: list[State] | None = None
    due_from_ms: TimeMs | None = None
    due_until_ms: TimeMs | None = None
    created_from_ms: TimeMs | None = None
    created_until_ms: TimeMs | None = None
    priority_min: Priority = 0
    priority_max: Priority = 255
    epoch_min: U32 = 0
    group: Name | None = None
    done_from_ms: TimeMs | None = None  #: acked by, or dead in, a group then
    done_until_ms: TimeMs | None = None


class Change(Request, frozen=True):
    """CHANGE: the same change to all messages of a topic that a filter means."""

    action: Literal["cancel", "reschedule", "redeliver"]
    topic: Name
    filter: MessageFilter = MessageFilter()
    stop: bool = False
    deliver_at_ms: TimeMs | None = None
    delay_ms: TimeMs | None = None
    priority: Priority | None = None
    acked: bool = False
    keep_attempts: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        needed = self.action == "reschedule" and self.priority is None
        check_one_time(self.deliver_at_ms, self.delay_ms, needed=needed)


class TransactionAck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Acks inside a transaction."""

    group_id: U32
    ids: Ids
    epochs: Epochs

    def __post_init__(self) -> None:
        _check_receipts(self.ids, self.epochs)


class TransactionChange(Timed, frozen=True):
    """Inside a transaction: a cancel, or with a time or a priority a reschedule. The target as in CANCEL."""

    priority: Priority | None = None


class Transaction(Request, frozen=True):
    """TRANSACTION: all of it or nothing. ``sends`` are payloads of SEND. Repeating an ``id`` does nothing twice."""

    id: _TransactionId
    sends: list[_Bytes] = msgspec.field(default_factory=list)
    acks: list[TransactionAck] = msgspec.field(default_factory=list)
    changes: list[TransactionChange] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if not (self.sends or self.acks or self.changes):
            raise ValueError("Expected at least one of `sends`, `acks` and `changes`")
        if len(self.sends) + len(self.acks) + len(self.changes) > MAX_PARTS_A_TRANSACTION:
            raise ValueError(
                f"Expected at most {MAX_PARTS_A_TRANSACTION} parts: put several messages into one of `sends`"
            )
        named = sum(len(ack.ids) for ack in self.acks)
        named += sum(len(change.ids or change.keys or ()) for change in self.changes)
        if named > MAX_IDS_A_REQUEST:
            raise ValueError(
                f"Expected at most {MAX_IDS_A_REQUEST} ids and keys in `acks` and `changes` together"
            )


class NackOk(Answer, frozen=True):
    """NACK_OK: one result for each message, in order."""

    results: list[str]


class ReturnOk(Answer, frozen=True, omit_defaults=True):
    """RETURN_OK: how many were given back; by receipts also one result for each message, in order."""

    returned: int
    results: list[str] = msgspec.field(default_factory=list)


class ExtendOk(Answer, frozen=True):
    """EXTEND_OK: one result for each message, in order, and when the extended leases end."""

    results: list[str]
    until_ms: int


class RedeliverOk(Answer, frozen=True):
    """REDELIVER_OK: one result for each id or key, in order."""

    results: list[str]


class ChangeOk(Answer, frozen=True):
    """CHANGE_OK: how many messages the filter meant, and how often each result came."""

    matched: int
    results: dict[str, int]


class TransactionOk(Answer, frozen=True):
    """TRANSACTION_OK: first id and count of each send. ``repeated``: it had been committed before."""

    sends: list[tuple[int, int]]
    repeated: bool = False


class Revoke(Answer, frozen=True):
    """REVOKE, from the broker: messages that a subscription holds are no longer its own."""

    subscription: U32
    ids: list[int]
    epochs: list[int]


class LeaseTime(Answer, frozen=True):
    """LEASE, from the broker: the leases of what is delivered to a subscription from now on last so long at least."""

    subscription: U32
    ack_wait_ms: int


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.NACK: Nack,
    FrameType.EXTEND: Extend,
    FrameType.RETURN: Return,
    FrameType.REDELIVER: Redeliver,
    FrameType.CHANGE: Change,
    FrameType.TRANSACTION: Transaction,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.NACK_OK: NackOk,
    FrameType.EXTEND_OK: ExtendOk,
    FrameType.RETURN_OK: ReturnOk,
    FrameType.REDELIVER_OK: RedeliverOk,
    FrameType.CHANGE_OK: ChangeOk,
    FrameType.TRANSACTION_OK: TransactionOk,
}
