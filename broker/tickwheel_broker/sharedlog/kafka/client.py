"""What all of librdkafka's clients are told: how fast they connect again, and where their messages go."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tickwheel.protocol.errors import ConfigError
from tickwheel_broker.logs import get_logger

_log = get_logger("kafka")

_SAYS_AGAIN_S = 60.0

END_S = 3.0
"""So long the end of a thread is waited for: one that waits within librdkafka, which goes by the time of day, may take
longer after the clock was set back. It ends with the process."""

_LOST_S = 10.0
_FIND_S = 0.25
_LEAST_S = 0.5

Options = Mapping[str, Any]
"""Settings of librdkafka, by its own names."""

# Without these, a client finds a broker that was away again after up to 10 s.
_DEFAULTS: Options = {
    "client.id": "tickwheel",
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 250,
    "enable.metrics.push": False,
}


class _Logger:
    """Takes librdkafka's lines of one client. Of each kind, `FAIL` for example, one in a while: it says several times
    a second that a broker is away."""

    def __init__(self) -> None:
        self._said_s: dict[object, float] = {}

    def log(self, level: int, form: str, *words: object) -> None:
        """In the thread that polls. `words`: the kind, the client, and what it says."""
        now_s = time.monotonic()
        if now_s - self._said_s.get(words[0], -math.inf) > _SAYS_AGAIN_S:
            self._said_s[words[0]] = now_s
            _log.log(level, "librdkafka says", text=form % words)


class SetBack:
    """Whether the time of day was set back since it was looked at before. The threads of a client that was made before
    then may sleep for as long: they wait by the time of day."""

    def __init__(self) -> None:
        self._latest_s = _ahead_s()

    def look(self) -> None:
        """To be called often, also in another thread."""
        self._latest_s = max(self._latest_s, _ahead_s())

    @property
    def was(self) -> bool:
        """By more than is worth speaking of."""
        return _ahead_s() < self._latest_s - _LEAST_S


def _ahead_s() -> float:
    """By how much the time of day is ahead of the clock that cannot be set."""
    return time.time() - time.monotonic()


class LeaderSearch:
    """After a connection was lost the next leader of the partition is asked for again and again: librdkafka does that
    once a second, and nothing can be appended or read before. Used in the thread that polls."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._until_s = self._next_s = -math.inf

    def lost(self, _: KafkaError) -> None:
        """Of any broker: librdkafka does not say of which."""
        now_s = time.monotonic()
        if now_s >= self._until_s:
            self._next_s = now_s + _FIND_S
        self._until_s = now_s + _LOST_S

    def found(self) -> None:
        """Something came from the leader."""
        self._until_s = -math.inf

    def step(self, client: Consumer | Producer) -> None:
        """To be called as long as nothing comes."""
        now_s = time.monotonic()
        if self._next_s <= now_s < self._until_s:
            with suppress(KafkaException):
                client.list_topics(self._topic, timeout=_FIND_S)
            self._next_s = time.monotonic() + _FIND_S


def settings(servers: str, options: Options | None, **more: Any) -> dict[str, Any]:
    """For a client: our defaults, what the user says, and what must be, whose names have `_` for `.` here. None makes a
    topic by asking for it: a cluster's log is not what Kafka makes then."""
    must = {"allow.auto.create.topics": False} | {
        name.replace("_", "."): value for name, value in more.items()
    }
    return {**_DEFAULTS, "bootstrap.servers": servers, **(options or {}), **must, "logger": _Logger()}


def error_of(exception: KafkaException) -> KafkaError | None:
    """What Kafka or librdkafka says, if it is one of their errors."""
    found = exception.args[0] if exception.args else None
    return found if isinstance(found, KafkaError) else None


def refuse_bad_options(exception: KafkaException) -> None:
    """Where a client could not be made. Raises ConfigError."""
    error = error_of(exception)
    if error is not None and error.code() == KafkaError._INVALID_ARG:
        raise ConfigError(f"kafka_config: {error.str()}") from exception


def text_of(exception: KafkaException) -> str:
    """In words."""
    error = error_of(exception)
    return error.str() if error is not None else str(exception)
