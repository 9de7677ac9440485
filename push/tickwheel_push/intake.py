"""The messages of one group that are due, and what becomes of them: a narrow view of a client.

Messages are fetched, not subscribed to: each one has a lease of its own length, knows which attempt it is, and is
settled by its receipt over whatever connection there is then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

from tickwheel import Client, Message, ReceiptResult
from tickwheel.protocol.headers import readable_headers
from tickwheel.protocol.receipts import Receipt
from tickwheel_push.acks import Acks
from tickwheel_push.http.request import Due

_log = logging.getLogger("tickwheel.push")

START: Final = "latest"


class Queue(Protocol):
    """A group, as ``Target`` and ``Tasks`` see it. All raise TickwheelError."""

    async def take(self, count: int, wait_s: float, lease_s: float) -> Sequence[Due]:
        """Up to so many that are due, or what gets due first; none if nothing does within ``wait_s``."""

    async def ack(self, due: Due) -> ReceiptResult:
        """It is done."""

    async def retry(self, due: Due, delay_ms: int, error: str) -> ReceiptResult:
        """It comes again after so long."""

    async def postpone(self, due: Due, delay_ms: int) -> ReceiptResult:
        """It comes again after so long, and this was no attempt."""

    async def give_up(self, due: Due, error: str) -> ReceiptResult:
        """It is a dead letter."""

    async def hold(self, due: Due, duration_ms: int) -> ReceiptResult:
        """It stays ours for so long from now on."""

    async def give_back(self, dues: Sequence[Due]) -> None:
        """These were no attempts, and come again at once."""


class Intake:
    """A group of the broker."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._acks = Acks(client.ack)

    async def take(self, count: int, wait_s: float, lease_s: float) -> Sequence[Due]:
        """As ``Queue`` has it."""
        fetched = await self._client.fetch(
            self._topic,
            self._group,
            count=count,
            wait=timedelta(seconds=wait_s),
            lease=timedelta(seconds=lease_s),
            start=START,
        )
        return [
            self._due(message, attempt, fetched.group_id)
            for message, attempt in zip(fetched, fetched.attempts, strict=True)
        ]

    def _due(self, message: Message, attempt: int, group_id: int) -> Due:
        return Due(
            receipt=Receipt(group_id, message.id, message.epoch),
            topic=self._topic,
            group=self._group,
            body=message.body,
            headers=_headers(message),
            key=message.key,
            deliver_at_ms=message.deliver_at_ms,
            created_ms=message.created_ms,
            attempt=attempt,
        )

    async def ack(self, due: Due) -> ReceiptResult:
        """As ``Queue`` has it."""
        group_id, message_id, epoch = due.receipt
        return await self._acks.ack(group_id, (message_id, epoch))

    async def retry(self, due: Due, delay_ms: int, error: str) -> ReceiptResult:
        """As ``Queue`` has it."""
        return (await self._client.nack(*_receipts(due), delay_ms=delay_ms, error=error))[0]

    async def postpone(self, due: Due, delay_ms: int) -> ReceiptResult:
        """As ``Queue`` has it."""
        return (await self._client.nack(*_receipts(due), delay_ms=delay_ms, uncounted=True))[0]

    async def give_up(self, due: Due, error: str) -> ReceiptResult:
        """As ``Queue`` has it."""
        return (await self._client.nack(*_receipts(due), error=error, give_up=True))[0]

    async def hold(self, due: Due, duration_ms: int) -> ReceiptResult:
        """As ``Queue`` has it."""
        lease = timedelta(milliseconds=duration_ms)
        return (await self._client.extend(*_receipts(due), lease))[0]

    async def give_back(self, dues: Sequence[Due]) -> None:
        """As ``Queue`` has it."""
        if dues:
            await self._client.give_back(*_receipts(*dues))


def _headers(message: Message) -> dict[str, Any]:
    """Those that another client wrote wrongly are none."""
    headers = readable_headers(message)
    if headers is None:
        _log.warning(
            "message %d of %r is sent without its headers, which cannot be read", message.id, message.topic
        )
    return headers or {}


def _receipts(*dues: Due) -> tuple[int, list[tuple[int, int]]]:
    """The group of these deliveries, and each as the client names it."""
    return dues[0].receipt.group_id, [(due.receipt.id, due.receipt.epoch) for due in dues]
