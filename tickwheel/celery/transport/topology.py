"""Exchanges, queues and bindings, as one connection knows them, and what they are at the broker.

There is no table of bindings that processes share. A queue is a topic, which all its consumers read in one group. What
is bound to a *fanout* or *topic* exchange, and to a direct one that is not durable, is a group of its own on the topic
of the exchange, so that a sender need not know it; patterns are matched by the consumer. To a durable direct exchange
senders know the bindings as a rule, because they declare the queues that they send to; what a sender does not know
goes to a topic of exchange and routing key, where the bound queues are groups, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tickwheel.celery.names import GROUP, exchange_topic, queue_group, queue_topic, route_topic

_DIRECT: Final = "direct"
_WORDS: Final = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}
"""One word, or any number of them, each behind a dot."""


class Exchange(NamedTuple):
    """As it was declared."""

    kind: str
    is_durable: bool


class Queue(NamedTuple):
    """As it was declared."""

    name: str
    expires_ms: int = 0
    """How long it stays without a consumer; 0: for good."""
    is_auto_deleted: bool = False
    ttl_ms: int | None = None
    """How long its messages are good."""

    @property
    def is_transient(self) -> bool:
        """Whether it ends by itself."""
        return self.expires_ms > 0


class Binding(NamedTuple):
    """Of a queue."""

    exchange: str
    routing_key: str


class Source(NamedTuple):
    """What a consumer of a queue reads."""

    topic: str
    group: str
    patterns: tuple[re.Pattern[str], ...] = ()
    """Of routing keys behind a dot; those that none matches are not for this queue. Empty: all are."""
    is_shared: bool = False
    """Whether the topic is of an exchange, and the queue only a group there."""

    def wants(self, routing_key: str) -> bool:
        """Whether a message is for the queue."""
        return not self.patterns or any(one.fullmatch(f".{routing_key}") for one in self.patterns)


class Topology:
    """See the module."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self._queues: dict[str, Queue] = {}
        self._bindings: dict[str, dict[Binding, None]] = {}

    # -- what is declared --

    def declare_exchange(self, name: str, kind: str, *, is_durable: bool) -> None:
        """An exchange is there, of this kind."""
        self.exchanges[name] = Exchange(kind or _DIRECT, is_durable)

    def delete_exchange(self, name: str) -> None:
        """It is gone, with its bindings."""
        self.exchanges.pop(name, None)
        for bindings in self._bindings.values():
            for binding in [one for one in bindings if one.exchange == name]:
                del bindings[binding]

    def declare_queue(self, queue: Queue) -> None:
        """A queue is there."""
        self._queues[queue.name] = queue

    def queue(self, name: str) -> Queue:
        """A queue; what was not declared here is one that stays."""
        return self._queues.get(name) or Queue(name)

    def knows(self, name: str) -> bool:
        """Whether the queue was declared here."""
        return name in self._queues

    def forget_queue(self, name: str) -> None:
        """It is gone, with its bindings."""
        self._queues.pop(name, None)
        self._bindings.pop(name, None)

    def bind(self, queue: str, binding: Binding) -> None:
        """The queue gets what goes to the exchange under this key."""
        self._bindings.setdefault(queue, {})[binding] = None

    def unbind(self, queue: str, binding: Binding) -> None:
        """It gets it no more."""
        self._bindings.get(queue, {}).pop(binding, None)

    def bindings(self) -> list[tuple[str, str, str]]:
        """Queue, exchange and routing key of each."""
        return [
            (queue, one.exchange, one.routing_key) for queue, held in self._bindings.items() for one in held
        ]

    # -- what it is at the broker --

    def _is_shared(self, exchange: str) -> bool:
        """Whether each bound queue is a group of the exchange's topic."""
        declared = self.exchanges.get(exchange)
        return declared is not None and (declared.kind != _DIRECT or not declared.is_durable)

    def _is_self_named(self, exchange: str, routing_key: str) -> bool:
        """Whether a message goes to the queue that is named as its exchange and routing key are: Celery's queues are,
        unless they are configured otherwise. It needs no binding that the sender knows."""
        return exchange == routing_key and self._is_direct(exchange)

    def binding_source(self, queue: str, binding: Binding) -> Source | None:
        """The group that a binding is. None: it needs none, because what is sent there goes to the queue's topic."""
        if not binding.exchange or self._is_self_named(*binding):
            return None
        if self._is_shared(binding.exchange):
            declared = self.exchanges[binding.exchange]
            patterns = () if declared.kind == "fanout" else (_pattern(declared.kind, binding.routing_key),)
            return Source(exchange_topic(binding.exchange), queue_group(queue), patterns, True)
        return Source(route_topic(binding.exchange, binding.routing_key), queue_group(queue), (), True)

    def sources(self, queue: str) -> list[Source]:
        """All that a consumer of the queue reads."""
        bindings = self._bindings.get(queue, {})
        found: dict[str, Source] = {}
        has_own = not self.queue(queue).is_transient or not bindings
        for binding in bindings:
            source = self.binding_source(queue, binding)
            if source is None:
                has_own = True
                continue
            before = found.get(source.topic)
            if before is not None and before.patterns and source.patterns:
                source = source._replace(patterns=before.patterns + source.patterns)
            elif before is not None:
                source = source._replace(patterns=())
            found[source.topic] = source
        own = [Source(queue_topic(queue), GROUP)] if has_own else []
        return own + list(found.values())

    def targets(self, exchange: str, routing_key: str) -> list[str]:
        """The topics that a message goes to."""
        if not exchange:
            return [queue_topic(routing_key)]
        if self._is_self_named(exchange, routing_key):
            known = self._bound(exchange, routing_key)
            return list(dict.fromkeys([queue_topic(exchange), *map(queue_topic, known)]))
        if self._is_shared(exchange):
            return [exchange_topic(exchange)]
        known = self._bound(exchange, routing_key)
        found = [queue_topic(queue) for queue in known if not self.queue(queue).is_transient]
        if len(found) < len(known) or not known:
            found.append(route_topic(exchange, routing_key))
        return found

    def _is_direct(self, exchange: str) -> bool:
        declared = self.exchanges.get(exchange)
        return declared is None or declared.kind == _DIRECT

    def _bound(self, exchange: str, routing_key: str) -> list[str]:
        wanted = Binding(exchange, routing_key)
        return [queue for queue, bindings in self._bindings.items() if wanted in bindings]

    def needs_readers(self, topic: str, exchange: str, routing_key: str) -> bool:
        """Whether a message to this topic reaches a queue only if the topic has groups: without one it has no route."""
        if not exchange:
            return False
        own = {queue_topic(queue) for queue in self._bound(exchange, routing_key)}
        if self._is_self_named(exchange, routing_key):
            own.add(queue_topic(exchange))
        return topic not in own


def queue_of(name: str, options: Mapping[str, Any], transient_expires_ms: int) -> Queue:
    """From the arguments of ``queue_declare``. A queue that is deleted with its last consumer must end by itself, too,
    should that be killed."""
    arguments: Mapping[str, Any] = options.get("arguments") or {}
    expires_ms = int(arguments.get("x-expires") or 0)
    is_auto_deleted = bool(options.get("auto_delete") or options.get("exclusive"))
    if is_auto_deleted and not expires_ms:
        expires_ms = transient_expires_ms
    ttl_ms = arguments.get("x-message-ttl")
    return Queue(name, expires_ms, is_auto_deleted, None if ttl_ms is None else int(ttl_ms))


def _pattern(kind: str, routing_key: str) -> re.Pattern[str]:
    if kind != "topic":
        return re.compile(re.escape(f".{routing_key}"), re.DOTALL)
    words = (_WORDS.get(word, re.escape(f".{word}")) for word in routing_key.split("."))
    return re.compile("".join(words), re.DOTALL)
