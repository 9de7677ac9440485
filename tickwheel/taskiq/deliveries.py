"""What a worker of Taskiq holds: messages that were handed out, each with the way to settle it.

A subscription outlives `listen`: Taskiq stops listening first and finishes its tasks then. What they hold stays leased
until they are done; what was not handed out goes back at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, TaskiqMessage
from taskiq.abc.middleware import TaskiqMiddleware
from taskiq.exceptions import NoResultError, TaskRejectedError
from taskiq.result import TaskiqResult

from tickwheel.client.consumer.message import Batch, Message
from tickwheel.client.consumer.subscription import Subscription
from tickwheel.client.results import ReceiptResult
from tickwheel.errors import TickwheelError
from tickwheel.protocol.headers import readable_headers
from tickwheel.taskiq.cancelling import SLOT, TASK_ID, task_id_of

TASK_NAME: Final = "taskiq_name"
SCHEDULE_ID: Final = "taskiq_schedule"
_LAST_S: Final = 5.0

logger = logging.getLogger("tickwheel.taskiq")


class DeliveredMessage(AckableMessage):
    """As Taskiq takes it, and ``reject``, which makes it a dead letter, with a reason."""

    reject: Callable[[str], Awaitable[None]]


class Delivery:
    """A message in the hands of a task."""

    def __init__(self, message: Message, done: Callable[[Delivery], None]) -> None:
        self._message = message
        self._done = done
        self.rejected: str | None = None
        """Why it is no success, although Taskiq will ack it."""
        self.task_id = ""

    async def ack(self) -> None:
        """It is done, or a dead letter if it was rejected."""
        if self.rejected is not None:
            await self.reject(self.rejected)
            return
        await self._message.ack()
        self._done(self)

    async def reject(self, reason: str) -> None:
        """It becomes a dead letter."""
        message = self._message
        try:
            result = await message.nack(error=reason, give_up=True)
        finally:
            self._done(self)
        if result is not ReceiptResult.DEAD:
            logger.warning(
                "message %d of %r was rejected, and is no dead letter: %s", message.id, message.topic, result
            )


class Deliveries:
    """See the module."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._broker = broker
        self._open: list[Subscription[Message, Batch]] = []
        self._at_work: dict[str, Delivery] = {}
        """By the ids of their tasks."""

    async def listen(
        self, subscription: Subscription[Message, Batch]
    ) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Messages as they come, until it is closed."""
        await subscription.__aenter__()
        self._open.append(subscription)
        try:
            async for message in subscription:
                yield self._handed_out(message)
                del message  # or its lease would be renewed until the next one comes
        finally:
            await self._stop(subscription)

    async def _stop(self, subscription: Subscription[Message, Batch]) -> None:
        try:
            await subscription.stop()
            while (rest := await subscription.receive(_LAST_S)) is not None:
                await rest.nack(uncounted=True)
        except TickwheelError as error:
            logger.debug("%s", error)  # there is no connection: then leases end, or have ended

    async def leave(self) -> None:
        """Everything that is not settled goes to others."""
        subscriptions, self._open = self._open, []
        self._at_work.clear()
        for subscription in subscriptions:
            await subscription.__aexit__(None, None, None)

    def _handed_out(self, message: Message) -> DeliveredMessage:
        delivery = Delivery(message, self._settled)
        headers = readable_headers(message) or {}
        data, delivery.task_id = message.body, task_id_of(headers, message.id)
        if SLOT in headers and TASK_ID not in headers:
            data = self._of_slot(data, delivery.task_id)
        if delivery.task_id:
            self._at_work[delivery.task_id] = delivery
        return DeliveredMessage(data=data, ack=delivery.ack, reject=delivery.reject)

    def _of_slot(self, data: bytes, task_id: str) -> bytes:
        try:
            task = self._broker.formatter.loads(data)
        except Exception:  # Taskiq says what is wrong with it when it reads it
            return data
        task.task_id = task_id
        return self._broker.formatter.dumps(task).message

    def _settled(self, delivery: Delivery) -> None:
        if self._at_work.get(delivery.task_id) is delivery:
            del self._at_work[delivery.task_id]

    def reject(self, task_id: str, reason: str) -> None:
        """What holds this task will be a dead letter when Taskiq acks it."""
        delivery = self._at_work.get(task_id)
        if delivery is not None:
            delivery.rejected = reason


class Rejections(TaskiqMiddleware):
    """``context.reject()`` makes a message a dead letter; Taskiq would ack it."""

    def __init__(self, deliveries: Deliveries) -> None:
        super().__init__()
        self._deliveries = deliveries

    def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        """See ``TaskiqMiddleware``. A retry that was sent is no rejection."""
        if isinstance(exception, TaskRejectedError) and not isinstance(result.error, NoResultError):
            self._deliveries.reject(message.task_id, f"The task {message.task_name} rejected it.")
