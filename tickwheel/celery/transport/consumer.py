"""A consumer of a queue: the feeds of all that the queue is, and what becomes of each message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from tickwheel.celery.transport.connection import Connection
from tickwheel.celery.transport.envelope import decode
from tickwheel.celery.transport.feed import Feed
from tickwheel.celery.transport.message import CHECKS
from tickwheel.celery.transport.topology import Queue, Source
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.message import BaseMessage
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.headers import readable_headers

logger = logging.getLogger("tickwheel.celery")


class Holder(Protocol):
    """A channel: what it handed out, it settles."""

    def hand_out(
        self, raw: Mapping[str, Any], acks: AckQueue, message: BaseMessage, *, consumer_tag: str
    ) -> Any:
        """A message for the program, un-acked from now on."""


def is_stale(raw: Mapping[str, Any], message: BaseMessage, queue: Queue) -> bool:
    """Whether a message has waited for longer than it is good, counted from when it was due."""
    limits_ms = [] if queue.ttl_ms is None else [queue.ttl_ms]
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        limits_ms.append(int(raw["properties"]["expiration"]))
    since_ms = max(message.deliver_at_ms, message.created_ms)
    return bool(limits_ms) and time.time() * 1_000 > since_ms + min(limits_ms)


def fault_of(raw: Mapping[str, Any], message: BaseMessage) -> str:
    """Why a message must not be handed to a worker of Celery; empty: it may."""
    for check in CHECKS:
        if fault := check.of_message(raw):
            logger.error("message %d becomes a dead letter: %s", message.id, fault)
            return fault
    return ""


class QueueConsumer:
    """See the module, and ``connection.Consumer``."""

    def __init__(
        self,
        *,
        connection: Connection,
        holder: Holder,
        queue: Queue,
        tag: str,
        callback: Callable[[Any], Any],
        no_ack: bool,
    ) -> None:
        self.queue = queue
        self.is_urgent = queue.is_transient  # commands for a worker, replies
        self.tag = tag
        self.feeds: dict[Feed, Source] = {}
        self._connection = connection
        self._holder = holder
        self._callback = callback
        self._no_ack = no_ack

    def open(self, sources: list[Source], credit: int) -> None:
        """Subscribes to these. Raises TickwheelError; then it subscribes to none."""
        try:
            for source in sources:
                feed = self._connection.open_feed(
                    self,
                    source.topic,
                    source.group,
                    credit,
                    start="latest" if source.is_shared else "earliest",
                    ephemeral_ms=self.queue.expires_ms if source.is_shared else 0,
                )
                self.feeds[feed] = source
        except TickwheelError:
            self.stop()
            for feed in self.feeds:
                self._connection.leave_feed(feed)
            raise

    def set_credit(self, credit: int) -> None:
        """Hold so many un-acked messages of each source; 0: no limit."""
        for feed in self.feeds:
            self._connection.change(lambda feed=feed: feed.set_credit(credit))  # type: ignore[misc]

    def stop(self) -> None:
        """Wants no more."""
        for feed in self.feeds:
            self._connection.stop_feed(feed)

    def take(self, feed: Feed, message: BaseMessage) -> bool:
        """See ``connection.Consumer``."""
        raw = decode(message.body, readable_headers(message))
        source = self.feeds.get(feed)
        routing_key = raw["properties"]["delivery_info"].get("routing_key") or ""
        if (source is not None and not source.wants(routing_key)) or is_stale(raw, message, self.queue):
            self._connection.ack(feed.acks, message.id)
            return False
        if fault := fault_of(raw, message):
            self._connection.give_up(feed.acks, message.id, fault)
            return False
        handed = self._holder.hand_out(raw, feed.acks, message, consumer_tag=self.tag)
        if self._no_ack:
            handed.channel.basic_ack(handed.delivery_tag)
        elif (count := self._connection.leases.count) > 1:
            feed.holds(count)
        self._callback(handed)
        return True
