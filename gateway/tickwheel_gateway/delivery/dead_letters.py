"""Dead letters as RocketMQ has them: messages that a group has given up are in a topic of its own, `%DLQ%<group>`.

A message goes there and is acked in one transaction, so that it is in one place at any time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickwheel import Client, ReceiptResult, TransactionRefused
from tickwheel.errors import TopicExists, UnknownTopic
from tickwheel_gateway.wire.messages import Held, dead_headers
from tickwheel_gateway.wire.names import DEAD, topic_of

_DUPLICATE: Final = "duplicate"
_REFUSALS: Final = frozenset(map(str, ReceiptResult))


class Dying(NamedTuple):
    """A message that a group gives up."""

    group: str
    """As RocketMQ has the name."""
    topic: str
    """As RocketMQ has the name."""
    group_id: int
    epoch: int
    """With the id of the message: the receipt that it is given up by."""
    held: Held
    priority: int


class DeadLetters:
    """Sends messages to where those are that were given up."""

    async def forward(self, client: Client, dying: Dying) -> ReceiptResult:
        """ACKED when it is there, also when it was before; else why the receipt does not count, and nothing is done.

        Raises Refused when the group's name is too long to have dead letters, and what the broker refuses.
        """
        topic = topic_of(DEAD + dying.group)
        try:
            return await _commit(client, topic, dying)
        except UnknownTopic:
            await _make(client, topic)
            return await _commit(client, topic, dying)


async def _make(client: Client, topic: str) -> None:
    """RocketMQ makes these topics itself, whatever its setting for others is."""
    try:
        await client.create_topic(topic)
    except TopicExists:
        return


async def _commit(client: Client, topic: str, dying: Dying) -> ReceiptResult:
    held = dying.held
    receipt = (held.id, dying.epoch)
    # A client that asks again, because an answer was lost, has the first one's result.
    name = f"rocketmq-dead-letter:{dying.group_id}:{held.id}:{dying.epoch}"
    transaction = client.transaction(id=name)
    transaction.ack_receipts(dying.group_id, [receipt])
    transaction.send(
        topic,
        held.body,
        key=f"{dying.topic}:{held.id}",
        priority=dying.priority,
        order_key=held.order_key,
        headers=dead_headers(held, dying.topic),
    )
    try:
        await transaction.commit()
    except TransactionRefused as refused:
        if refused.part == "ack" and refused.reason in _REFUSALS:
            return ReceiptResult(refused.reason)
        if refused.reason != _DUPLICATE:
            raise
        # It was there before the group was set back to it.
        (result,) = await client.ack(dying.group_id, [receipt])
        return result
    return ReceiptResult.ACKED
