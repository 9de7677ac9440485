"""The broker as Taskiq sees it: tasks are messages of one topic, and their labels say when they are due."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from secrets import token_hex
from typing import Any, Final, Unpack

from taskiq import AckableMessage, AsyncBroker, AsyncTaskiqTask, BrokerMessage

from tickwheel.client.checks import whole
from tickwheel.client.client import Client
from tickwheel.client.columns import check_name
from tickwheel.client.options import ClientOptions
from tickwheel.client.results import CancelResult
from tickwheel.client.url import Urls
from tickwheel.protocol.limits import MAX_CREDIT
from tickwheel.sharing.copy_keys import copy_keys_to_try
from tickwheel.taskiq.cancelling import REPEATS_ASKED, TASK_ID, Cancelling, repeat_key
from tickwheel.taskiq.connection import Connection
from tickwheel.taskiq.deliveries import SCHEDULE_ID, TASK_NAME, Deliveries, Rejections
from tickwheel.taskiq.labels import SCHEDULE, Wishes, wishes_of

TOPIC: Final = "taskiq"
GROUP: Final = "taskiq"
MAX_HOLD: Final = timedelta(days=7)
CREDIT: Final = 200
_KICK: Final = "taskiq-kick"
"""A header that tells a task that is sent twice from one send whose answer was lost."""


class TickwheelBroker(AsyncBroker):
    """Tickwheel as the broker of Taskiq::

        broker = TickwheelBroker("tickwheel://127.0.0.1:7411")

        @broker.task
        async def remind(name: str) -> None: ...

        await remind.kicker().with_labels(delay=3_600).kiq("ada")

    A task that was kicked is on the broker's disk. Labels: ``delay`` (seconds), ``deliver_at`` (a datetime; without a
    zone it is in UTC), ``priority`` (0 first, 255 last), ``key`` (the same task is stored once under it). A task that a
    worker has is leased, and the lease is renewed while it runs, for up to ``max_hold``; if the worker dies, others
    get it when the lease ends (the topic's ``ack_wait``). ``context.reject()`` makes it a dead letter.

    ``credit``: the most tasks that a worker's process has at a time, those that run included, however large Taskiq's
    ``max_async_tasks`` and ``max_prefetch`` are. ``options`` are those of ``tickwheel.Client``.
    Raises BadArgument, BadTopicName, ConfigError.
    """

    def __init__(
        self,
        url: Urls | None = None,
        *,
        topic: str = TOPIC,
        group: str = GROUP,
        credit: int = CREDIT,
        max_hold: timedelta | float = MAX_HOLD,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__()
        check_name(topic)
        check_name(group, "group")
        self.topic = topic
        self.group = group
        self._credit = whole(credit, "credit", 1, MAX_CREDIT)
        self._max_hold = max_hold
        self._connection = Connection(url, options)
        self._deliveries = Deliveries(self)
        self.add_middlewares(Rejections(self._deliveries))

    @property
    def client(self) -> Client:
        """The client, once the broker was started. Raises ClientClosed."""
        return self._connection.client

    async def startup(self) -> None:
        """Connects. Raises NotConnected."""
        await self._connection.open()
        await super().startup()

    async def shutdown(self) -> None:
        """Gives back what is not done, and closes the connection."""
        try:
            await super().shutdown()
        finally:
            try:
                await self._deliveries.leave()
            finally:
                await self._connection.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Stores a task, and returns when it is on the broker's disk. Raises ClientClosed, BadTime, BadArgument, and
        what ``tickwheel.Client.send`` raises."""
        wishes = wishes_of(message.labels)
        if not await self._send(message, key_of(message.task_id, wishes), wishes) or wishes.key is not None:
            return
        # Somebody sends a task twice under one id, and means it.
        for key in copy_keys_to_try(message.task_id):
            if not await self._send(message, key, wishes):
                return

    async def _send(self, message: BrokerMessage, key: str, wishes: Wishes) -> bool:
        """Whether it was there already."""
        headers = {TASK_ID: message.task_id, TASK_NAME: message.task_name, _KICK: token_hex(8)}
        if SCHEDULE in message.labels:
            headers[SCHEDULE_ID] = str(message.labels[SCHEDULE])
        async with self._connection.used() as client:
            sent = await client.send(
                self.topic,
                message.message,
                key=key,
                delay_ms=wishes.delay_ms,
                deliver_at=wishes.deliver_at,
                priority=wishes.priority,
                headers=headers,
            )
        # What is there and is this very message was sent by this call, before the connection broke.
        return sent.duplicate and sent.differs

    def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Tasks that are due, one after the other. Raises ClientClosed, and what subscribing raises."""
        return self._deliveries.listen(
            self.client.subscribe(self.topic, self.group, credit=self._credit, max_hold=self._max_hold)
        )

    async def cancel(self, task: AsyncTaskiqTask[Any] | str) -> CancelResult:
        """Takes a task back that no worker was given yet, a retry of it, too: what ``kiq`` has returned, or its id (or
        its ``key``, if it had one). The result says truthfully whether it came in time: after CANCELLED no message of
        the id is delivered again. What is not found by its key is searched for among all that wait, if the token has
        the right to. Raises ClientClosed, NotConnected, Forbidden."""
        name = task if isinstance(task, str) else task.task_id
        async with self._connection.used() as client:
            return await Cancelling(client, self.topic).cancel(name)


def key_of(task_id: str, wishes: Wishes) -> str:
    """A retry is another message, so it has another key: one that `Cancelling` asks for."""
    if wishes.key is None and wishes.repeats >= REPEATS_ASKED:
        return next(copy_keys_to_try(task_id))
    return repeat_key(wishes.key or task_id, wishes.repeats)
