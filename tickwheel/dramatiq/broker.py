"""The broker as Dramatiq sees it: queues are topics, and a delay is the time at which a message is due."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Unpack

import dramatiq
from dramatiq.common import q_name
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Retries

from tickwheel.client.columns import check_name
from tickwheel.client.consumer.subscription import SubscribeOptions
from tickwheel.client.options import ClientOptions
from tickwheel.client.results import CancelResult
from tickwheel.client.url import Urls
from tickwheel.dramatiq.connection import Connection
from tickwheel.dramatiq.consumer import QueueConsumer
from tickwheel.dramatiq.retries import BrokerRetries
from tickwheel.errors import BadArgument, TickwheelError, UnknownTopic
from tickwheel.protocol.limits import MAX_CREDIT, MAX_PRIORITY
from tickwheel.sharing.copy_keys import answer_for_all

GROUP: Final = "dramatiq"
MAX_HOLD: Final = timedelta(days=7)
_USUAL_PRIORITY: Final = 50
"""Of topics, where Dramatiq's is 0."""
_IDS: Final = "tickwheel_ids"
_NO_OPTIONS: Final = frozenset({"deliver_at", "delay_ms"})
"""How a client of Tickwheel is told a time."""


class TickwheelBroker(dramatiq.Broker):
    """Tickwheel as the broker of Dramatiq::

        dramatiq.set_broker(TickwheelBroker("tickwheel://127.0.0.1:7411"))

    A message that is enqueued is on the broker's disk. One with a ``delay`` waits there, for as long as it is told, in
    its own queue: there are no delay queues, and workers hold only what they can begin with. A message that a worker
    holds is leased, and the lease is renewed until its actor ends, for up to ``max_hold``; if the worker dies, others
    get it when the lease ends (the topic's ``ack_wait``). What fails for good is a dead letter of its topic.

    ``prefix``: before the names of queues, to be those of topics. ``group``: of the consumers. An actor's ``priority``
    counts in the broker, too: it is added to 50, the usual one of messages. ``options`` are those of
    ``tickwheel.Client``; the connection is made when it is first needed, in each process its own.
    Raises BadArgument, BadTopicName, ConfigError.
    """

    def __init__(
        self,
        url: Urls | None = None,
        *,
        middleware: list[dramatiq.Middleware] | None = None,
        prefix: str = "",
        group: str = GROUP,
        max_hold: timedelta | float = MAX_HOLD,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(middleware=middleware)
        check_name(group, "group")
        if prefix:
            check_name(prefix)
        self.queues: dict[str, None] = {}
        self._prefix = prefix
        self._group = group
        self._max_hold = max_hold
        self._connection = Connection(url, options)

    def close(self) -> None:
        """Writes what is on its way, and closes the connection of this process."""
        self._connection.close()

    def add_middleware(
        self,
        middleware: dramatiq.Middleware,
        *,
        before: type[dramatiq.Middleware] | None = None,
        after: type[dramatiq.Middleware] | None = None,
    ) -> None:
        """See ``Broker.add_middleware``. Raises BadArgument for BrokerRetries beside Retries: each failure would be
        retried twice."""
        retries = [type(one) for one in (*self.middleware, middleware) if isinstance(one, Retries)]
        if BrokerRetries in retries and len(retries) > 1:
            raise BadArgument(
                "BrokerRetries is to take the place of Retries, and both are there.",
                advice="Give TickwheelBroker(middleware=[…]) all of Dramatiq's but Retries, and BrokerRetries.",
            )
        super().add_middleware(middleware, before=before, after=after)

    def topic_of(self, queue_name: str) -> str:
        """The name of the topic that a queue is."""
        return self._prefix + q_name(queue_name)

    def declare_queue(self, queue_name: str) -> None:
        """See ``Broker.declare_queue``. The broker is not asked: a topic is made with its first message or consumer."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> QueueConsumer:
        """See ``Broker.consume``; ``timeout`` in ms. Raises QueueNotFound, ConnectionFailed, ConnectionClosed."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        credit = max(1, min(prefetch, MAX_CREDIT))
        asked = SubscribeOptions(credit, credit, max_hold=self._max_hold, attempts=True)
        with self._connection.used() as client:
            return QueueConsumer(client.subscribe_as(self.topic_of(queue_name), self._group, asked), timeout)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Stores a message, due now or in ``delay`` ms, and returns when it is on the broker's disk.

        One that waited with another broker (``eta``) is due as it was there. Raises ConnectionFailed,
        ConnectionClosed (then it is not known whether it is stored), and what ``tickwheel.Client.send`` raises.
        """
        message, due_ms = self._due(message)
        self.emit_before("enqueue", message, delay)
        with self._connection.used() as client:
            sent = client.send(
                self.topic_of(message.queue_name),
                message.encode(),
                delay_ms=None if delay is None else max(0, _whole_ms(delay)),
                deliver_at=due_ms if delay is None else None,
                priority=self._priority_of(message.actor_name),
            )
        _sent_as(message, sent.id)
        self.emit_after("enqueue", message, delay)
        return message

    def enqueue_many(
        self, messages: Iterable[dramatiq.Message[Any]], *, delay: int | None = None
    ) -> list[dramatiq.Message[Any]]:
        """As ``enqueue`` of each, in far less time: they go together, and share the wait for the disk. What is stored
        when one of them is refused stays. Raises what `enqueue` raises."""
        by_topic: dict[str, list[tuple[dramatiq.Message[Any], int | None]]] = {}
        sent: list[dramatiq.Message[Any]] = []
        for one in messages:
            message, due_ms = self._due(one)
            sent.append(message)
            self.emit_before("enqueue", message, delay)
            by_topic.setdefault(self.topic_of(message.queue_name), []).append((message, due_ms))
        for topic, some in by_topic.items():
            self._send_together(topic, some, delay)
        return sent

    def _send_together(
        self, topic: str, some: list[tuple[dramatiq.Message[Any], int | None]], delay: int | None
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        priorities = [self._priority_of(message.actor_name) for message, _ in some]
        times: dict[str, Any] = {} if delay is None else {"delay_ms": max(0, _whole_ms(delay))}
        if delay is None and any(due_ms is not None for _, due_ms in some):
            times = {"deliver_at": [now_ms if due_ms is None else due_ms for _, due_ms in some]}
        # A priority cannot be left out for some of them: those that have one go by themselves.
        for priority in dict.fromkeys(priorities):
            chosen = [place for place, one in enumerate(priorities) if one == priority]
            at: dict[str, Any] = {
                name: [value[place] for place in chosen] if isinstance(value, list) else value
                for name, value in times.items()
            }
            with self._connection.used() as client:
                results = client.send_many(
                    topic,
                    [some[place][0].encode() for place in chosen],
                    priority=priority,
                    auto_key=True,
                    **at,
                )
            for place, result in zip(chosen, results, strict=True):
                if isinstance(result, TickwheelError):
                    raise result
                _sent_as(some[place][0], result.id)
                self.emit_after("enqueue", some[place][0], delay)

    def _due(self, message: dramatiq.Message[Any]) -> tuple[dramatiq.Message[Any], int | None]:
        """As it is sent, and when it was to be due with another broker; its queue is declared. Raises BadArgument."""
        due_ms: int | None = None
        # Dramatiq keeps what it does not know, and sends the message now.
        for name in sorted(_NO_OPTIONS & message.options.keys()):
            raise BadArgument(
                f"{name} is no option of Dramatiq's: it would be passed over.",
                advice="Use delay=, a timedelta or milliseconds.",
            )
        if "eta" in message.options:
            due_ms = _whole_ms(message.options["eta"])
            options = {name: value for name, value in message.options.items() if name != "eta"}
            message = message._replace(queue_name=q_name(message.queue_name), options=options)
        self.declare_queue(q_name(message.queue_name))
        return message, due_ms

    def _priority_of(self, actor_name: str) -> int | None:
        """None: the topic's."""
        actor = self.actors.get(actor_name)
        if actor is None or not actor.priority:
            return None
        return min(max(0, _USUAL_PRIORITY + actor.priority), MAX_PRIORITY)

    def cancel(self, message: dramatiq.Message[Any]) -> CancelResult:
        """Takes a message back that this broker returned, of ``send_with_options`` for example, and that no worker was
        given yet; the result says truthfully whether it came in time. One that was enqueued several times is taken back
        each time: after CANCELLED it is not delivered again. Raises BadArgument, ConnectionClosed."""
        ids: tuple[int, ...] = getattr(message, _IDS, ())
        if not ids:
            raise BadArgument(
                f"Message {message.message_id} was not enqueued here.",
                advice="Cancel what send(), send_with_options() or enqueue() has returned.",
            )
        with self._connection.used() as client:
            results = client.cancel(ids=ids)
            given = [
                one
                for one, result in zip(ids, results, strict=True)
                if result is CancelResult.ALREADY_DELIVERED
            ]
            if given and CancelResult.CANCELLED in results:
                client.cancel(ids=given, stop=True)
        return answer_for_all(results)

    def flush(self, queue_name: str) -> None:
        """Drops all messages of a queue that no worker has, those that wait for their time, too. Raises
        QueueNotFound, ConnectionClosed."""
        self._check_declared(queue_name)
        with self._connection.used() as client:
            try:
                client.cancel_where(
                    self.topic_of(queue_name), states=["scheduled", "ready", "waiting"], stop=True
                )
            except UnknownTopic:
                return  # nothing was ever sent

    def flush_all(self) -> None:
        """Flushes each declared queue."""
        for queue_name in list(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Waits until a queue has nothing left to do, also not later; for tests. It looks every ``interval`` ms, for at
        most ``timeout`` ms. Raises QueueJoinTimeout, QueueNotFound, ConnectionClosed."""
        self._check_declared(queue_name)
        ends = None if timeout is None else time.monotonic() + timeout / 1_000
        while self.unfinished(queue_name):
            if ends is not None and time.monotonic() >= ends:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1_000)

    def unfinished(self, queue_name: str) -> int:
        """How many messages of a queue are not done: they wait for their time, or for a worker, or have one. Raises
        ConnectionClosed."""
        topic = self.topic_of(queue_name)
        with self._connection.used() as client:
            found = next((one for one in client.topics() if one.name == topic), None)
        if found is None:
            return 0
        backlog = next((one.backlog for one in found.groups if one.name == self._group), found.ready)
        return found.scheduled + backlog

    def _check_declared(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)


def _whole_ms(value: Any) -> Any:
    """Milliseconds that are a float, as they may be with other brokers, rounded up; the client judges all else."""
    return math.ceil(value) if isinstance(value, float) and math.isfinite(value) else value


def _sent_as(message: dramatiq.Message[Any], message_id: int) -> None:
    """Adds the broker's id to those of the message: they are no field, so they are neither compared nor sent."""
    if isinstance(message, dramatiq.Message):
        object.__setattr__(message, _IDS, (*getattr(message, _IDS, ()), message_id))
