"""What the broker remembers of a relay's batches: a marker, stored in the same transaction as the batch's messages.

A marker is a message of a topic of its own that becomes due in the year 9999, so that nothing purges it. The next batch
cancels it. Its key has the number of the batch, so a batch can be stored once only, by any relay. The marker
of a batch that the database does not know as sent tells what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tickwheel.client.times import EpochMs
from tickwheel.outbox.relay.rows import Marked, Outgoing, pack_id, unpack_id
from tickwheel.protocol.errors import UnknownTopic
from tickwheel.protocol.limits import HARD_MAX_BODY_BYTES, MAX_TIME_MS

if TYPE_CHECKING:
    from tickwheel.client.client import Client

TOPIC: Final = "tickwheel.relay"
_PAGE: Final = 1_000


class Marker(msgspec.Struct, array_like=True, frozen=True):
    """What a batch was: its topic, the shape of its rows, and (id, ms, priority, fingerprint, key) of each message."""

    topic: str
    shape: int
    rows: list[tuple[Any, int, int, int, str]]

    def sent(self) -> list[Marked]:
        """The messages of the batch."""
        return [Marked(unpack_id(row[0]), *row[1:]) for row in self.rows]


class Markers:
    """The markers of one relay."""

    def __init__(self, client: Client, relay_id: str) -> None:
        self._client = client
        self._relay_id = relay_id

    async def live(self) -> dict[int, int]:
        """The numbers of the batches that have a marker, each with the marker's message id."""
        found: dict[int, int] = {}
        after_id = 0
        while True:
            try:
                page = await self._client.browse(
                    TOPIC, states="scheduled", after_id=after_id, limit=_PAGE, max_body_bytes=0
                )
            except UnknownTopic:
                return {}
            for message in page:
                relay_id, _, number = message.key.partition("/")
                if relay_id == self._relay_id and number.isdecimal():
                    found[int(number)] = message.id
            if len(page) < _PAGE:
                return found
            after_id = page[-1].id

    async def read(self, message_id: int) -> Marker:
        """The content of a marker."""
        (message,) = await self._client.browse(
            TOPIC, after_id=message_id - 1, limit=1, max_body_bytes=HARD_MAX_BODY_BYTES
        )
        assert message.id == message_id
        return msgspec.msgpack.decode(message.body, type=Marker)

    async def send(
        self, number: int, topic: str, shape: int, messages: Sequence[Outgoing], outdated: Iterable[int]
    ) -> None:
        """Stores a batch with its marker, and cancels markers that are of no use any more: all of it or nothing.

        Raises TransactionRefused, TransactionTooLarge, BodyTooLarge.
        """
        rows = [(pack_id(m.id), m.deliver_at_ms, m.priority, m.fingerprint, m.key) for m in messages]
        marker = msgspec.msgpack.encode(Marker(topic, shape, rows))
        transaction = self._client.transaction()
        transaction.send(TOPIC, marker, key=self._key(number), deliver_at=MAX_TIME_MS)
        if keys := [self._key(one) for one in outdated]:
            transaction.cancel(TOPIC, keys=keys)
        has_headers = any(message.headers for message in messages)
        has_order = any(message.order_key is not None for message in messages)
        transaction.send_many(
            topic,
            [message.body for message in messages],
            keys=[message.key for message in messages],
            deliver_at=[EpochMs(message.deliver_at_ms) for message in messages],
            priority=[message.priority for message in messages],
            headers=[message.headers for message in messages] if has_headers else None,
            order_keys=[message.order_key for message in messages] if has_order else None,
        )
        await transaction.commit()

    def _key(self, number: int) -> str:
        return f"{self._relay_id}/{number}"
