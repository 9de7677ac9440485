"""What the client answers to sends, cancels and reschedules."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, overload

from tickwheel.protocol.errors import (
    BadFrame,
    BadTime,
    BodyTooLarge,
    HeadersTooLarge,
    KeyTooLong,
    OrderKeyTooLong,
    ServerError,
    TickwheelError,
)
from tickwheel.protocol.messages import SendCode, SendOk


class SendResult(NamedTuple):
    """A stored message.

    ``duplicate``: its topic and key were sent before, and ``id`` is that first message's. ``differs``: besides, that
    one has another body, other headers, another ordering key, or another time than was given as ``deliver_at``.
    """

    id: int
    duplicate: bool = False
    differs: bool = False


class CancelResult(StrEnum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """It had been delivered, and will not be delivered again."""
    ALREADY_DELIVERED = "already_delivered"
    ALREADY_ACKED = "already_acked"
    ALREADY_CANCELLED = "already_cancelled"
    EXPIRED = "expired"
    NOT_FOUND = "not_found"


class RescheduleResult(StrEnum):
    """What became of a reschedule."""

    RESCHEDULED = "rescheduled"
    ALREADY_DELIVERED = "already_delivered"
    ALREADY_ACKED = "already_acked"
    ALREADY_CANCELLED = "already_cancelled"
    EXPIRED = "expired"
    NOT_FOUND = "not_found"


class RedeliverResult(StrEnum):
    """What became of a redelivery."""

    REDELIVERED = "redelivered"
    WAITING = "waiting"
    """It is to be delivered anyway."""
    ALREADY_ACKED = "already_acked"
    ALREADY_CANCELLED = "already_cancelled"
    EXPIRED = "expired"
    NOT_FOUND = "not_found"


class ReceiptResult(StrEnum):
    """What became of an ack, a nack, an extension, or what was given back."""

    ACKED = "acked"
    NACKED = "nacked"
    DEAD = "dead"
    """It was the last attempt, or given up: the message is a dead letter now."""
    EXTENDED = "extended"
    RETURNED = "returned"
    """It was given back as not looked at."""
    LEASE_ENDED = "lease_ended"
    ALREADY_ACKED = "already_acked"
    STALE_RECEIPT = "stale_receipt"
    NOT_FOUND = "not_found"
    NEVER_DELIVERED = "never_delivered"
    CANCELLED = "cancelled"


class ChangeResult(NamedTuple):
    """What a change by filter did: how many messages were meant, and how often each result came."""

    matched: int
    results: dict[str, int]


_ERROR_OF_CODE: dict[int, type[TickwheelError]] = {
    SendCode.BODY_TOO_LARGE: BodyTooLarge,
    SendCode.BAD_TIME: BadTime,
    SendCode.KEY_TOO_LONG: KeyTooLong,
    SendCode.HEADERS_TOO_LARGE: HeadersTooLarge,
    SendCode.ORDER_KEY_TOO_LONG: OrderKeyTooLong,
}

Item = SendResult | TickwheelError


def item_of_exception(code: int, message_id: int, *, auto_key: bool) -> Item:
    """The result of a message that SEND_OK lists as an exception.

    The duplicate of an automatic key is our own retry of a message that had arrived: for the user, no
    duplicate.
    """
    if code in (SendCode.DUPLICATE, SendCode.DUPLICATE_DIFFERS):
        differs = code == SendCode.DUPLICATE_DIFFERS and not auto_key
        return SendResult(message_id, duplicate=not auto_key, differs=differs)
    cls = _ERROR_OF_CODE.get(code)
    return cls() if cls is not None else ServerError(f"The broker refused the message with code {code}.")


def check_send_ok(answer: SendOk, count: int) -> None:
    """Raises BadFrame if the answer cannot be that to a SEND of ``count`` messages."""
    exceptions = answer.exceptions
    if answer.stored + len(exceptions) != count or (exceptions and exceptions[-1].position >= count):
        raise BadFrame(f"A SEND_OK does not account for the {count:,} messages that were sent.")


class SendResults(Sequence[Item]):
    """The result of each message of a ``send_many``, in order: a SendResult, or the error that refused it.

    It is kept by runs of consecutive ids, so a million results take no more room than a few: an object is
    made only for an item that is looked at.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # Runs of stored messages: [_starts[i], _stops[i]) have ids from _first_ids[i]; in order of index.
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._first_ids: list[int] = []
        self._others: dict[int, Item] = {}

    def add_answer(self, indexes: Sequence[int], answer: SendOk, *, auto_key: bool) -> None:
        """Enters the answer to the frame that carried the messages ``indexes``. Frames come in order."""
        next_id, position = answer.first_id, 0
        for exception in answer.exceptions:
            next_id += self._add_run(indexes, position, exception.position, next_id)
            item = item_of_exception(exception.code, exception.id, auto_key=auto_key)
            self._others[indexes[exception.position]] = item
            position = exception.position + 1
        self._add_run(indexes, position, len(indexes), next_id)

    def add_error(self, indexes: Sequence[int], error: TickwheelError) -> None:
        """Enters one error for all the messages ``indexes``."""
        self._others.update(dict.fromkeys(indexes, error))

    def _add_run(self, indexes: Sequence[int], start: int, stop: int, first_id: int) -> int:
        if start == stop:
            return 0
        if isinstance(indexes, range):
            self._starts.append(indexes[start])
            self._stops.append(indexes[stop - 1] + 1)
            self._first_ids.append(first_id)
        else:
            for offset, index in enumerate(indexes[start:stop]):
                self._others[index] = SendResult(first_id + offset)
        return stop - start

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(self._count))]
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(index)
        return self._item(position)

    def _item(self, index: int) -> Item:
        other = self._others.get(index)
        if other is not None:
            return other
        run = bisect_right(self._starts, index) - 1
        return SendResult(self._first_ids[run] + index - self._starts[run])

    @property
    def first_id(self) -> int:
        """The id of the first message that has one; 0 when none was stored."""
        return next((item.id for item in self if isinstance(item, SendResult)), 0)

    def ids(self) -> array[int]:
        """The id of each message, as an array of u64; 0 for one that was refused."""
        ids = array("Q", bytes(8 * self._count))
        for start, stop, first_id in zip(self._starts, self._stops, self._first_ids, strict=True):
            ids[start:stop] = array("Q", range(first_id, first_id + stop - start))
        for index, item in self._others.items():
            ids[index] = item.id if isinstance(item, SendResult) else 0
        return ids

    @property
    def errors(self) -> dict[int, TickwheelError]:
        """The messages that were refused: index in the batch to error."""
        refused = {i: item for i, item in self._others.items() if isinstance(item, TickwheelError)}
        return dict(sorted(refused.items()))

    def raise_for_errors(self) -> None:
        """Raises the first error, if any message was refused."""
        for error in self.errors.values():
            raise error.copy()

    def __repr__(self) -> str:
        return f"<SendResults of {self._count:,} messages, {len(self.errors):,} refused>"
