"""What a client says of itself, and the settings that it is answered: its own, and those of the gateway."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from tickwheel_gateway.clients.registry import Declared
from tickwheel_gateway.config import Config
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.names import group_of, topic_of

PRODUCER_ATTEMPTS: Final = 3
PRODUCER_FIRST_WAIT_MS: Final = 10
PRODUCER_LONGEST_WAIT_MS: Final = 1_000
PRODUCER_MULTIPLIER: Final = 2.0

CONSUMERS: Final = frozenset({schema.PUSH_CONSUMER, schema.SIMPLE_CONSUMER})
CLIENT_TYPES: Final = CONSUMERS | {schema.PRODUCER}
"""Those that are served."""
_UNSUPPORTED: Final = {
    schema.PULL_CONSUMER: "pull consumers",
    schema.LITE_PUSH_CONSUMER: "lite topics",
    schema.LITE_SIMPLE_CONSUMER: "lite topics",
}
_ECHOED: Final = ("access_point", "request_timeout", "user_agent")
_DEFAULT_REQUEST_TIMEOUT_MS: Final = 3_000
_MOST_REMEMBERED: Final = 1_024
_FEW_TOPICS: Final = 8
_MOST_TOPICS: Final = 4_096
"""What has more is not remembered."""


class BadSettings(Exception):
    """Settings that no client should send: gRPC's INVALID_ARGUMENT, with this text."""


def declared(settings: Any) -> Declared:
    """What is remembered of a client. Raises BadSettings; and Refused, where it is told so in an answer."""
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise BadSettings("the settings have neither publishing nor subscription")
    client_type = settings.client_type
    if client_type in _UNSUPPORTED:
        raise Refused(Code.NOT_IMPLEMENTED, f"{_UNSUPPORTED[client_type]} are not supported")
    if client_type not in CLIENT_TYPES:
        raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, f"the type of client {client_type} is not known")
    if (kind == "subscription") != (client_type in CONSUMERS):
        raise BadSettings(f"the type of client {client_type} has no {kind}")
    try:
        group, topics = _names(settings, kind)
    except Refused as refused:  # as RocketMQ answers it in this stream
        raise BadSettings(refused.text) from None
    timeout_ms = schema.milliseconds(settings.request_timeout)
    found = _declared if len(topics) <= _FEW_TOPICS else _declared.__wrapped__
    return found(client_type, group, topics, timeout_ms if timeout_ms > 0 else _DEFAULT_REQUEST_TIMEOUT_MS)


@lru_cache(_MOST_REMEMBERED)
def _declared(client_type: int, group: str, topics: frozenset[str], request_timeout_ms: int) -> Declared:
    """One for all clients that say the same, as those of a group do."""
    sends_to = frozenset(map(topic_of, topics)) if client_type == schema.PRODUCER else frozenset()
    return Declared(client_type, group, topics, request_timeout_ms, sends_to)


def _names(settings: Any, kind: str) -> tuple[str, frozenset[str]]:
    """The group of a consumer, and the topics. Raises Refused."""
    if kind == "publishing":
        _check_topics(len(settings.publishing.topics))
        topics = frozenset(topic.name for topic in settings.publishing.topics)
        group = ""
    else:
        _check_topics(len(settings.subscription.subscriptions))
        topics = frozenset(entry.topic.name for entry in settings.subscription.subscriptions)
        group = settings.subscription.group.name
        group_of(group)
    for topic in topics:
        topic_of(topic)
    return group, topics


def _check_topics(count: int) -> None:
    if count > _MOST_TOPICS:
        raise Refused(Code.BAD_REQUEST, f"{count} topics are more than {_MOST_TOPICS} of a client")


def merge(settings: Any, into: Any, config: Config) -> None:
    """Writes the Settings that answer those of a client, of which `declared` has approved."""
    into.client_type = settings.client_type
    for name in _ECHOED:
        if settings.HasField(name):
            getattr(into, name).CopyFrom(getattr(settings, name))
    into.metric.on = False
    if settings.client_type == schema.PRODUCER:
        _merge_producer(settings, into, config)
    else:
        _merge_consumer(settings, into, config)


def _merge_producer(settings: Any, into: Any, config: Config) -> None:
    into.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
    backoff = into.backoff_policy.exponential_backoff
    schema.set_milliseconds(backoff.initial, PRODUCER_FIRST_WAIT_MS)
    schema.set_milliseconds(backoff.max, PRODUCER_LONGEST_WAIT_MS)
    backoff.multiplier = PRODUCER_MULTIPLIER
    into.publishing.topics.extend(settings.publishing.topics)
    into.publishing.max_body_size = config.max_body_bytes
    into.publishing.validate_message_type = True


def _merge_consumer(settings: Any, into: Any, config: Config) -> None:
    asked, ours = settings.subscription, into.subscription
    group = asked.group.name
    into.backoff_policy.max_attempts = config.attempts_of(group)
    for delay_ms in config.retries_of(group):
        schema.set_milliseconds(into.backoff_policy.customized_backoff.next.add(), delay_ms)
    ours.group.CopyFrom(asked.group)
    ours.subscriptions.extend(asked.subscriptions)
    ours.fifo = config.is_fifo(group)
    ours.receive_batch_size = config.receive_batch_size
    schema.set_milliseconds(ours.long_polling_timeout, config.long_polling_max_ms)
