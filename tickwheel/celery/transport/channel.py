"""AMQP's verbs, as Kombu asks them of a channel."""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, Final

from amqp.protocol import queue_declare_ok_t
from celery import current_task
from kombu.exceptions import ChannelError
from kombu.transport import base
from kombu.utils.uuid import uuid

from tickwheel.celery.names import GROUP, is_reply_queue, queue_topic
from tickwheel.celery.transport.connection import Connection
from tickwheel.celery.transport.consumer import QueueConsumer, fault_of, is_stale
from tickwheel.celery.transport.envelope import REPLY_HEADER, decode
from tickwheel.celery.transport.late import LATE, Receipt
from tickwheel.celery.transport.message import Message
from tickwheel.celery.transport.sending import outgoing
from tickwheel.celery.transport.topology import Binding, Source, queue_of
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.message import BaseMessage
from tickwheel.protocol.errors import (
    ClientClosed,
    DiskFull,
    GroupInUse,
    NotConnected,
    TopicExists,
    TopicInUse,
    UnknownGroup,
    UnknownTopic,
)
from tickwheel.protocol.headers import readable_headers

logger = logging.getLogger("tickwheel.celery")

_DIRECT: Final = "amq.direct"
_READERS_REMEMBERED: Final = 10_000
_READERS_S: Final = 30.0
_NO_READERS_S: Final = 1.0
_PURGED_STATES: Final = ["scheduled", "ready", "waiting"]


class Channel(base.StdChannel):  # type: ignore[misc]
    """A channel of a connection; any number of them share it."""

    _ids = count(1)

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.channel_id = next(self._ids)
        self.closed = False
        self.events: defaultdict[str, set[Callable[..., Any]]] = defaultdict(set)
        self.no_ack_consumers: set[str] | None = set()
        self._consumers: dict[str, QueueConsumer] = {}
        self._cancelled: list[QueueConsumer] = []
        self._unacked: dict[str, tuple[AckQueue, int]] = {}
        """By delivery tag, in the order in which they were handed out."""
        self._url = connection.url
        self._left: dict[str, Receipt] = {}
        """What was un-acked when this was closed, because the connection was lost, by delivery tag."""
        self._timelines = 0
        """How many logs the broker had before this one, since the channel was opened."""
        self._prefetch = 0
        connection.channels.append(self)

    @property
    def _open(self) -> Connection:
        if self.connection is None or self.closed:
            raise ClientClosed("The channel was closed.", advice="Open another one: connection.channel().")
        return self.connection

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -- exchanges --

    def exchange_declare(
        self,
        exchange: str = "",
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """An exchange is known to its connection only. Raises ChannelError for one that is not, if ``passive``."""
        topology = self._open.topology
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        if passive:
            if name not in topology.exchanges:
                raise _not_found("exchange", name, "Channel.exchange_declare", (40, 10))
            return
        if kind not in ("direct", "topic", "fanout"):
            raise ChannelError(
                f"Tickwheel has no exchanges of type {kind!r}; use direct, topic or fanout.",
                (40, 10),
                "Channel.exchange_declare",
                "503",
            )
        topology.declare_exchange(name, kind, is_durable=durable)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Forgets an exchange and its bindings."""
        self._open.topology.delete_exchange(exchange)

    def exchange_bind(self, *_: Any, **__: Any) -> None:
        """Raises NotImplementedError: exchanges are not bound to exchanges."""
        raise NotImplementedError("Tickwheel does not bind exchanges to exchanges")

    exchange_unbind = exchange_bind

    # -- queues --

    def queue_declare(self, queue: str = "", passive: bool = False, **options: Any) -> queue_declare_ok_t:
        """Makes a queue; how many messages are ready in it. Raises ChannelError for one that is not there, if
        ``passive``."""
        connection = self._open
        name = queue or f"amq.gen-{uuid()}"
        topology = connection.topology
        if passive:
            if not topology.knows(name) and not self._is_there(name):
                raise _not_found("queue", name, "Channel.queue_declare", (50, 10))
            return queue_declare_ok_t(name, self._size(name), 0)
        if not topology.knows(name):
            expires_ms = int(connection.options.transient_expires * 1_000)
            topology.declare_queue(queue_of(name, options, expires_ms))
        declared = topology.queue(name)
        if declared.is_auto_deleted:
            self._open.own_queues.names.add(name)
        return queue_declare_ok_t(name, 0 if declared.is_transient else self._size(name), 0)

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """See ``kombu.Queue``: expires, message_ttl and others by their names in AMQP."""
        return base.to_rabbitmq_queue_arguments(arguments or {}, **options)

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """From now on the queue gets what is sent to the exchange. Raises TickwheelError."""
        connection, binding = self._open, Binding(exchange or _DIRECT, routing_key or "")
        connection.topology.bind(queue, binding)
        source = connection.topology.binding_source(queue, binding)
        if source is not None:
            expires_ms = connection.topology.queue(queue).expires_ms
            self._make_group(source, expires_ms)

    def _make_group(self, source: Source, expires_ms: int) -> None:
        broker = self._open.broker
        ephemeral = timedelta(milliseconds=expires_ms) if expires_ms else None
        while True:
            try:
                broker.create_group(source.topic, source.group, start="latest", ephemeral=ephemeral)
            except UnknownTopic:
                with suppress(TopicExists):  # another process was first, and gave it settings
                    broker.create_topic(source.topic)
                continue
            break

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """It gets it no more."""
        connection, binding = self._open, Binding(exchange or _DIRECT, routing_key or "")
        connection.topology.unbind(queue, binding)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        """Queue, exchange and routing key of each binding that this connection knows."""
        return self._open.topology.bindings()

    get_bindings = list_bindings

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Cancels what no consumer has, tasks that wait for their time among them; how many. Raises TickwheelError."""
        purged = 0
        connection = self._open
        broker = connection.broker
        for source in connection.topology.sources(queue):
            connection.settle(source.topic)
            purged += connection.drop_waiting(source.topic, source.group)
            try:
                if source.is_shared:
                    purged += _backlog(broker.group(source.topic, source.group))
                    broker.seek_group(source.topic, source.group, to="latest")
                else:
                    done = broker.cancel_where(source.topic, states=_PURGED_STATES, stop=True)
                    purged += sum(done.results.get(name, 0) for name in ("cancelled", "stopped"))
            except (UnknownTopic, UnknownGroup):
                continue
        return purged

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> int:
        """Deletes a queue with its messages, and ends its consumers here; how many messages were ready. One that others
        read is emptied and stays. Raises TickwheelError."""
        connection = self._open
        size = self._size(queue)
        if if_empty and size:
            return 0
        sources = connection.topology.sources(queue)
        if not if_unused:
            for channel in list(connection.channels):
                channel.end_consumers(queue)
        for channel in list(connection.channels):
            channel.let_go(queue)
        own = Source(queue_topic(queue), GROUP)
        for source in {*sources, *([own] if not connection.topology.queue(queue).is_transient else [])}:
            try:
                if source.is_shared:
                    connection.broker.delete_group(source.topic, source.group)
                else:
                    connection.broker.delete_topic(source.topic)
            except (UnknownTopic, UnknownGroup):
                continue
            except (TopicInUse, GroupInUse):
                if not if_unused:
                    self.queue_purge(queue)
        connection.topology.forget_queue(queue)
        connection.own_queues.names.discard(queue)
        connection.own_queues.deleted(queue)
        return size

    def end_consumers(self, queue: str) -> None:
        """The queue is being deleted: it has no consumers any more."""
        for tag in [tag for tag, one in self._consumers.items() if one.queue.name == queue]:
            self._stop_consumer(tag)

    def timeline_lost(self) -> None:
        """The broker's log is another one: what was handed out before is settled by nothing that is said here."""
        self._timelines += 1
        self._unacked = {}

    def let_go(self, queue: str) -> None:
        """What consumers that were cancelled still have of a queue is theirs no more."""
        for consumer in [one for one in self._cancelled if one.queue.name == queue]:
            gone = {feed.acks for feed in consumer.feeds}
            self._unacked = {tag: held for tag, held in self._unacked.items() if held[0] not in gone}
            self._leave(consumer)

    def _is_there(self, queue: str) -> bool:
        try:
            self._open.broker.topic(queue_topic(queue))
        except UnknownTopic:
            return False
        return True

    def _size(self, queue: str) -> int:
        """How many messages are ready for consumers of the queue."""
        return sum(map(self._size_of, self._open.topology.sources(queue)))

    def _size_of(self, source: Source) -> int:
        self._open.settle(source.topic)
        broker = self._open.broker
        try:
            return _backlog(broker.group(source.topic, source.group))
        except UnknownTopic:
            return 0
        except UnknownGroup:
            if source.is_shared:
                return 0
            try:
                return broker.topic(source.topic).ready
            except UnknownTopic:
                return 0

    # -- sending --

    def prepare_message(
        self,
        body: Any,
        priority: Any = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """See ``kombu.Producer``."""
        ours = dict(properties or {})
        ours.setdefault("delivery_info", {})
        ours.setdefault("priority", priority or 0)
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": dict(headers or {}),
            "properties": ours,
        }

    def basic_publish(
        self,
        message: Mapping[str, Any],
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> None:
        """Sends a message. Raises TickwheelError; BadArgument for a task of protocol 1 with an ETA."""
        connection = self._open
        exchange, routing_key = exchange or "", routing_key or ""
        declared = connection.topology.exchanges.get(exchange)
        is_to_topics = declared is not None and declared.kind == "topic"
        if not exchange and self._is_reply_for_none(message, routing_key):
            logger.debug("a reply to %r was dropped: its queue is gone", routing_key)
            return
        reply_to = message["properties"].get("reply_to")
        if (
            "task" in message["headers"]
            and isinstance(reply_to, str)
            and (connection.offers(reply_to) or self._has_no_queue_yet(reply_to))
        ):
            message = {**message, "headers": {**message["headers"], REPLY_HEADER: reply_to}}
        ours = outgoing(message, exchange, routing_key, connection.options, is_to_topics=is_to_topics)
        has_route = False
        for topic in connection.topology.targets(exchange, routing_key):
            needs_readers = connection.topology.needs_readers(topic, exchange, routing_key)
            if needs_readers and not self._has_readers(topic, is_to_topics=is_to_topics):
                continue
            has_route = True
            try:
                connection.sender.send(topic, ours)
            except DiskFull as error:
                if declared is None or declared.is_durable:
                    raise
                # A command or a reply: a worker that could not start would work off nothing of what is stored.
                logger.warning("a message to %r was dropped: %s", exchange, error)
        if mandatory and not has_route:
            self._returned(message, exchange, routing_key)

    def _has_no_queue_yet(self, reply_to: str) -> bool:
        """Whether the queue for a reply is there only once this process waits for one. As in AMQP, a reply that comes
        when there is no queue is dropped. A task that hands the caller's queue on says of it what the caller said."""
        if reply_to in self._open.own_queues.names:
            return False  # this client may not make it: who replies does
        request = _running_request()
        if reply_to == getattr(request, "reply_to", None):
            return getattr(request, REPLY_HEADER, None) == reply_to
        return is_reply_queue(reply_to)

    def _is_reply_for_none(self, message: Mapping[str, Any], queue: str) -> bool:
        """Whether this is the reply of the task that runs to a queue that its sender had made, and that is gone. AMQP
        forgets such a reply."""
        if "task" in message["headers"] or getattr(_running_request(), REPLY_HEADER, None) != queue:
            return False
        return not self._is_there(queue)

    def _has_readers(self, topic: str, *, is_to_topics: bool) -> bool:
        """Whether a queue is bound there. Without one a message has no route, and AMQP forgets it. That there is none
        is believed for a second where events go, which are many, and else looked at each time."""
        connection = self._open
        now = connection.broker.session.waits.now()
        known = connection.readers.get(topic)
        if known is not None and now < known[1]:
            return known[0]
        try:
            has_readers = bool(connection.broker.groups(topic))
        except UnknownTopic:
            has_readers = False
        if len(connection.readers) >= _READERS_REMEMBERED:
            connection.readers.clear()
        believed_s = _READERS_S if has_readers else _NO_READERS_S if is_to_topics else 0.0
        connection.readers[topic] = has_readers, now + believed_s
        return has_readers

    def _returned(self, message: Mapping[str, Any], exchange: str, routing_key: str) -> None:
        error = ChannelError("NO_ROUTE", (60, 40), "Channel.basic_publish", "312")
        callbacks = list(self.events["basic_return"])
        for callback in callbacks:
            callback(error, exchange, routing_key, message)
        if not callbacks:
            warnings.warn(f"a message to {exchange!r} ({routing_key!r}) has no route", stacklevel=3)

    def confirm_select(self, nowait: bool = False) -> None:
        """Nothing: messages are confirmed, see ``transport_options['publish']``."""

    # -- receiving --

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Any], Any] | None = None,
        consumer_tag: str = "",
        **_: Any,
    ) -> str:
        """Calls ``callback`` with each message of a queue. Raises TickwheelError."""
        connection = self._open
        tag = consumer_tag or uuid()
        declared = connection.topology.queue(queue)
        consumer = QueueConsumer(
            connection=connection,
            holder=self,
            queue=declared,
            tag=tag,
            callback=callback or (lambda message: None),
            no_ack=no_ack,
        )
        if no_ack and self.no_ack_consumers is not None:
            self.no_ack_consumers.add(tag)
        consumer.open(connection.topology.sources(queue), 0 if no_ack else self._prefetch)
        self._consumers[tag] = consumer
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """No more messages for this consumer. Those that it has un-acked stay its own. Raises TickwheelError."""
        consumer = self._stop_consumer(consumer_tag)
        if consumer is None:
            return
        self._leave_what_is_settled()
        name = consumer.queue.name
        if name in self._open.own_queues.names and not self._has_unacked_of(consumer):
            self._delete_own_topic(name)

    def _delete_own_topic(self, queue: str) -> None:
        """The queue deletes itself. What is a group of an exchange ends by itself, or with the connection: so a
        consumer that soon comes back, as that of a worker's commands does after an error, has missed nothing."""
        self._open.own_queues.deleted(queue)
        for source in self._open.topology.sources(queue):
            if not source.is_shared:
                with suppress(UnknownTopic, TopicInUse):
                    self._open.broker.delete_topic(source.topic)

    def _stop_consumer(self, consumer_tag: str) -> QueueConsumer | None:
        consumer = self._consumers.pop(consumer_tag, None)
        if consumer is None:
            return None
        if self.no_ack_consumers is not None:
            self.no_ack_consumers.discard(consumer_tag)
        consumer.stop()
        self._cancelled.append(consumer)
        return consumer

    def _has_unacked_of(self, consumer: QueueConsumer) -> bool:
        queues = {feed.acks for feed in consumer.feeds}
        return any(acks in queues for acks, _ in self._unacked.values())

    def _leave_what_is_settled(self) -> None:
        for consumer in [one for one in self._cancelled if not self._has_unacked_of(one)]:
            self._leave(consumer)

    def _leave(self, consumer: QueueConsumer) -> None:
        if consumer in self._cancelled:
            self._cancelled.remove(consumer)
        for feed in consumer.feeds:
            self._open.leave_feed(feed)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Message | None:
        """One message of a queue, first of those that came for a consumer here; None: there is none. Raises
        TickwheelError."""
        connection = self._open
        declared = connection.topology.queue(queue)
        for source in connection.topology.sources(queue):
            while (found := self._get_from(source)) is not None:
                raw = decode(found.body, readable_headers(found))
                acks = connection.acks_of(source.topic, source.group)
                routing_key = raw["properties"]["delivery_info"].get("routing_key") or ""
                if not source.wants(routing_key) or is_stale(raw, found, declared):
                    connection.ack(acks, found.id)
                    continue
                if fault := fault_of(raw, found):
                    connection.give_up(acks, found.id, fault)
                    continue
                message = self.hand_out(raw, acks, found, consumer_tag="")
                if no_ack:
                    self.basic_ack(message.delivery_tag)
                return message
        return None

    def _get_from(self, source: Source) -> BaseMessage | None:
        connection = self._open
        waiting = connection.take_waiting(source.topic, source.group)
        if waiting is None:
            waiting = connection.fetch(source.topic, source.group)
        # What was on its way to a consumer here is not given to a fetch.
        return waiting or connection.take_waiting(source.topic, source.group)

    def hand_out(
        self, raw: Mapping[str, Any], acks: AckQueue, message: BaseMessage, *, consumer_tag: str
    ) -> Message:
        """See ``consumer.Holder``."""
        tag = f"{acks.group_id}-{message.id}-{message.epoch}"
        if self._timelines:  # another log may give out the same ids and epochs
            tag = f"{self._timelines}:{tag}"
        self._unacked[tag] = acks, message.id
        info = raw["properties"]["delivery_info"]
        info.update(
            redelivered=message.attempt > 1,
            priority=raw["properties"].get("priority", 0),
            consumer_tag=consumer_tag,
        )
        return Message(raw, self, tag)

    def message_to_python(self, message: Any) -> Any:
        """See ``kombu.Consumer``."""
        return message

    def still_has(self, delivery_tag: str) -> bool:
        """Whether what was handed out with this tag is un-acked and leased to this process; see
        `Connection.still_has`. What is not is forgotten."""
        held = self._unacked.get(delivery_tag)
        if held is None or self.connection is None:
            return False
        if self.connection.still_has(*held, int(delivery_tag.rpartition("-")[2])):
            return True
        self._unacked.pop(delivery_tag, None)
        self._settled()
        return False

    # -- settling: nothing here waits for the broker --

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """The message is done; ``multiple``: and those that were handed out before it. What came over a connection that
        was lost since is acked over another one. Raises ClientClosed."""
        if delivery_tag in self._left and LATE.ack(self._url, self._left[delivery_tag]):
            del self._left[delivery_tag]
            return
        connection = self._open
        for tag in self._up_to(delivery_tag) if multiple else [delivery_tag]:
            held = self._unacked.pop(tag, None)
            if held is not None:
                connection.ack(*held)
        self._settled()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """The message comes again at once; or, without ``requeue``, it becomes a dead letter. Raises ClientClosed."""
        if requeue:
            self._give_back(delivery_tag, 0)
        else:
            self.give_up(delivery_tag)

    def give_up(self, delivery_tag: str, error: str = "") -> None:
        """The message becomes a dead letter, because of ``error``. Raises ClientClosed."""
        connection = self._open
        held = self._unacked.pop(delivery_tag, None)
        if held is not None:
            connection.give_up(*held, error)
            self._settled()

    def requeue_later(self, delivery_tag: str, delay_ms: int) -> None:
        """The message comes again after a delay, and this delivery was no attempt. Raises ClientClosed."""
        self._give_back(delivery_tag, delay_ms)

    def _give_back(self, delivery_tag: str, delay_ms: int) -> None:
        connection = self._open
        held = self._unacked.pop(delivery_tag, None)
        if held is not None:
            connection.give_back(held[0], [held[1]], seen=True, delay_ms=delay_ms)
            self._settled()

    def basic_recover(self, requeue: bool = True) -> None:
        """Gives back all that is un-acked here. Raises ClientClosed."""
        if not requeue:
            raise NotImplementedError("Tickwheel recovers by giving back: use requeue=True")
        self._give_back_all()

    def _settled(self) -> None:
        if self._cancelled:
            self._leave_what_is_settled()

    def _up_to(self, delivery_tag: str) -> list[str]:
        tags = list(self._unacked)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self._unacked else []

    def _give_back_all(self) -> None:
        held, self._unacked = self._unacked, {}
        ids: defaultdict[AckQueue, list[int]] = defaultdict(list)
        for acks, message_id in held.values():
            ids[acks].append(message_id)
        for acks, some in ids.items():
            self._open.give_back(acks, some, seen=True)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """So many messages may be un-acked at each consumer; 0: any number. Raises ClientClosed."""
        self._prefetch = prefetch_count
        for consumer in self._consumers.values():
            consumer.set_credit(prefetch_count)

    def flow(self, active: bool = True) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("Tickwheel has no flow control by channel: cancel the consumer")

    # -- the end --

    def close(self) -> None:
        """Cancels its consumers, and gives back what is un-acked. Raises TickwheelError."""
        connection = self.connection
        if self.closed or connection is None:
            return
        try:
            if connection.is_usable:
                self._close_in_order(connection)
            else:
                self._leave_unacked(connection)
        except (NotConnected, ClientClosed):
            pass  # then all that is left to do is done when leases and groups end
        finally:
            self.closed = True
            if self in connection.channels:
                connection.channels.remove(self)
            self.connection = None

    def _leave_unacked(self, connection: Connection) -> None:
        for tag, held in self._unacked.items():
            receipt = connection.receipt_of(*held)
            if receipt is not None:
                self._left[tag] = receipt
        self._unacked = {}

    def _close_in_order(self, connection: Connection) -> None:
        ended = [*self._consumers.values(), *self._cancelled]
        for tag in list(self._consumers):
            self.basic_cancel(tag)
        self._give_back_all()
        for consumer in list(self._cancelled):
            self._leave(consumer)
        for queue in connection.own_queues.names & {one.queue.name for one in ended}:
            self._delete_own_topic(queue)


def _backlog(group: Any) -> int:
    return max(0, int(group.backlog) - int(group.leased))


def _not_found(what: str, name: str, method: str, ids: tuple[int, int]) -> ChannelError:
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", ids, method, "404")


def _running_request() -> Any:
    """Of the task that runs here; None: none does."""
    task: Any = current_task
    return getattr(task, "request", None)
