"""Check-backs: prepared messages without a decision, delivered to a service that knows what became of their
transaction."""

from __future__ import annotations

from typing import Any, Final

from tickwheel.client.columns import check_name
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.consumer.subscription import SubscribeOptions, Subscription
from tickwheel.client.requests import Requests
from tickwheel.protocol.bodies.admin import Decide, DecideOk
from tickwheel.protocol.errors import TransactionRefused
from tickwheel.protocol.limits import PREPARED_SUFFIX

CHECKS_GROUP: Final = "checks"


def decided(message_id: int, result: str, made_id: int, *, commit: bool) -> int:
    """The id of the message that a prepared one has become. Raises TransactionRefused if it was decided otherwise."""
    verb, done = ("committed", "committed") if commit else ("rolled back", "rolled_back")
    if result in (done, f"already_{done}"):
        return made_id
    advice = {
        "already_committed": "It was committed before: whoever did that knows why.",
        "already_rolled_back": "It was rolled back before; send the message anew if it is wanted.",
        "refused": "Its topic was deleted, or its time or size is not allowed any more: send the message anew.",
    }.get(result, "It was never there, or is a dead letter since the last check-back; send the message anew.")
    raise TransactionRefused(f"Prepared message {message_id} cannot be {verb}: {result}.", advice=advice)


class CheckedMessage(BaseMessage):
    """A prepared message without a decision. If it gets none, it is asked after again."""

    __slots__ = ()
    _batch: CheckedBatch

    async def commit(self) -> int:
        """Lets it be delivered at its time; the id of the message that it becomes. Raises TransactionRefused when it
        was rolled back meanwhile."""
        return await self._decide(commit=True)

    async def rollback(self) -> None:
        """Drops it. Raises TransactionRefused when it was committed meanwhile."""
        await self._decide(commit=False)

    async def _decide(self, *, commit: bool) -> int:
        self._batch.acks.let_go((self.id,), (self.epoch,))
        body = await self._batch.acks.request(Decide(commit=commit, ids=[self.id]))
        assert isinstance(body, DecideOk)
        return decided(self.id, body.results[0], body.ids[0], commit=commit)


class CheckedBatch(BaseBatch[CheckedMessage]):
    """Prepared messages that arrived together."""

    message_class = CheckedMessage


class CheckRequests(Requests):
    """Subscribing to check-backs."""

    def check_prepared(
        self, topic: str, *, credit: int = 100, batch: int = 10
    ) -> Subscription[CheckedMessage, CheckedBatch]:
        """Prepared messages of ``topic`` without a decision, as ``subscribe`` gives messages::

        async with client.check_prepared("orders") as checks:
            async for message in checks:
                await (message.commit() if was_paid(message.body) else message.rollback())
        """
        check_name(topic)
        options = SubscribeOptions(
            credit=credit, batch=batch, max_hold=0
        )  # not decided: it is asked after again
        name: Any = topic + PREPARED_SUFFIX
        return Subscription(self._session, name, CHECKS_GROUP, options, CheckedBatch)
