"""Sends messages: confirmed one by one, or *pipelined*, when confirmations are awaited for many together.

Each message has a key, so it is safe to send it again when a connection breaks. That of a task that waits for its time
is known to others, who cancel by it; when it is taken by another message, this message has another key that they know.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from tickwheel import sync
from tickwheel.celery.eta import ETA_HEADER, held_back, refuse_other_names, refuse_protocol_1
from tickwheel.celery.keys import eta_key, other_keys
from tickwheel.celery.transport.envelope import broker_headers, encode
from tickwheel.celery.transport.options import Options
from tickwheel.client.calls import FlightKey, SendFlight
from tickwheel.client.columns import (
    KeyMaker,
    encode_one_body,
    encode_one_headers,
    encode_one_key,
)
from tickwheel.client.times import EpochMs
from tickwheel.protocol.errors import BadArgument, NotConnected, TickwheelError

logger = logging.getLogger("tickwheel.celery")

OPEN_MAX: Final = 1_000
"""So many pipelined messages may be unconfirmed; then all of them are waited for."""

_HIGHEST: Final = 50
_PRIORITIES: Final = 9
_TRANSIENT: Final = 1
"""The delivery mode of what need not survive: nothing waits for its confirmation."""


_RECENT_S: Final = 1.0
_RECENT_MAX: Final = 1_000
_sent_at: Final[OrderedDict[tuple[str, str], float]] = OrderedDict()
"""When this process sent to a topic last, by the broker's URL and the topic."""


def note_sent(url: str, topic: str) -> None:
    """A message was sent to a topic."""
    _sent_at[url, topic] = time.monotonic()
    _sent_at.move_to_end((url, topic))
    while len(_sent_at) > _RECENT_MAX:
        _sent_at.popitem(last=False)


def was_sent_recently(url: str, topic: str) -> bool:
    """Whether this process sent something there just now. It is given out when the broker's clock has ticked, so who
    asks for it at once waits for that."""
    return time.monotonic() - _sent_at.get((url, topic), -_RECENT_S) < _RECENT_S


class Outgoing(NamedTuple):
    """A message as it goes to the broker, to one topic or several."""

    body: bytes
    key: str | None
    """None: any unique one."""
    headers: dict[str, str] | None
    deliver_at_ms: EpochMs | None
    priority: int
    is_event: bool
    """Transient, and to a topic exchange: nothing waits until it is stored."""


def outgoing(
    message: Mapping[str, Any],
    exchange: str,
    routing_key: str,
    options: Options,
    *,
    is_to_topics: bool = False,
) -> Outgoing:
    """From what ``Channel.prepare_message`` made; ``is_to_topics``: to an exchange of type topic. Raises BadArgument,
    and what JSON raises."""
    headers: dict[str, Any] = message.get("headers") or {}
    due_ms, key = None, None
    refuse_other_names(message)
    if options.eta == "broker":
        refuse_protocol_1(message)
        headers, due_ms = held_back(headers, options.timezone)
    elif ETA_HEADER in headers:
        headers = {name: value for name, value in headers.items() if name != ETA_HEADER}
    _check_names(headers)
    properties = message["properties"]
    is_event = is_to_topics and properties.get("delivery_mode") == _TRANSIENT and due_ms is None
    # By its key a task is found again, also to say that a worker was given it. What is confirmed with others has any
    # key, so that it need not be looked at whether that is taken.
    if due_ms is not None or (options.publish == "confirmed" and not is_event):
        key = eta_key(headers)
    return Outgoing(
        body=encode({**message, "headers": headers}, exchange, routing_key),
        key=key,
        headers=broker_headers(headers),
        deliver_at_ms=None if due_ms is None else EpochMs(due_ms),
        priority=broker_priority(properties.get("priority")),
        is_event=is_event,
    )


def _check_names(headers: Mapping[str, Any]) -> None:
    """Of a task, which is found by them. Raises BadArgument."""
    if not isinstance(headers.get("task"), str):
        return
    for name, value in (("id", headers.get("id")), ("name", headers["task"])):
        if not isinstance(value, str):
            raise BadArgument(
                f"The {name} of the task {headers['task']!r} is {value!r}, and not text.",
                advice="Give task_id as text, or leave it to Celery.",
            )
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadArgument(
                f"The {name} of a task, {value!r}, has a lone surrogate at {error.start}, which is no character.",
                advice="Decode what it was made of with its right encoding, or errors='replace'.",
            ) from None


def broker_priority(priority: Any) -> int:
    """The broker's priority, where the smaller goes first, of AMQP's, where the larger does: 0 to 9."""
    try:
        level = min(max(int(priority), 0), _PRIORITIES)
    except (TypeError, ValueError):
        level = 0
    return _HIGHEST - 5 * level


class _Open(NamedTuple):
    """A pipelined message that is not confirmed."""

    flight: SendFlight
    place: int
    topic: str
    message: Outgoing


class Sender:
    """Of one connection."""

    def __init__(self, client: sync.Client, options: Options) -> None:
        self._client = client
        self._is_pipelined = options.publish == "pipelined"
        self._keys = KeyMaker()
        self._open: deque[_Open] = deque()
        self._unawaited: deque[_Open] = deque()

    def send(self, topic: str, message: Outgoing) -> None:
        """Sends a message, and returns when it is on the broker's disk, unless it is pipelined or an event. Raises
        TickwheelError, of an earlier pipelined one too."""
        note_sent(self._client.url, topic)
        if message.is_event:
            self._unawaited.append(self._begin(topic, message))
            if len(self._unawaited) > OPEN_MAX or self._unawaited[0].flight.done.is_set():
                self._look_at_unawaited()
        elif self._is_pipelined:
            if len(self._open) >= OPEN_MAX:
                # Before this message is sent: who tries again after an error sends it once.
                self._confirm(OPEN_MAX // 2)
            self._open.append(self._begin(topic, message))
        elif message.key is not None:
            self._send_once(topic, message, chain((message.key,), other_keys(message.key)))
        else:
            self._client.send(
                topic,
                message.body,
                headers=message.headers,
                deliver_at=message.deliver_at_ms,
                priority=message.priority,
            )

    def _send_once(self, topic: str, message: Outgoing, keys: Iterable[str]) -> None:
        """Under the first of these keys that no other message has."""
        for key in keys:
            result = self._client.send(
                topic,
                message.body,
                key=key,
                headers=message.headers,
                deliver_at=message.deliver_at_ms,
                priority=message.priority,
            )
            # What is there and is this very message was sent by this call, before the connection broke.
            if not (result.duplicate and result.differs):
                return

    def _begin(self, topic: str, message: Outgoing) -> _Open:
        session = self._client.session

        async def begun() -> _Open:
            limits = session.limits
            body = encode_one_body(message.body, limits)
            key = self._keys.one() if message.key is None else encode_one_key(message.key, limits)
            headers = b"" if message.headers is None else encode_one_headers(message.headers, limits)
            size_bytes = len(body) + len(key) + len(headers)
            flight = session.flight(FlightKey(topic, False, True, False, True), size_bytes)
            index = flight.add(
                body,
                key,
                headers,
                b"",
                message.deliver_at_ms or 0,
                message.priority,
                auto_key=message.key is None,
            )
            session.charge(flight, size_bytes)
            session.depart()
            return _Open(flight, index, topic, message)

        one = session.run(begun())
        if not session.knows_topic(topic):
            # Nothing is written before the broker has told the topic's number, and the answer must be read here.
            self._land(one)
        return one

    def _land(self, one: _Open) -> None:
        async def landed() -> None:
            await one.flight.done.wait()

        if not one.flight.done.is_set():
            self._client.session.run(landed())

    def confirm(self, within_s: float | None = None) -> None:
        """Waits until all pipelined messages are on the broker's disk. Raises the first error of a message that is not,
        when all have been answered, and logs how many are not; NotConnected where some have no answer after
        `within_s`."""
        if within_s is not None:
            self._land_all(within_s)
        self._confirm(0)

    def _land_all(self, within_s: float) -> None:
        session = self._client.session

        flying = [one.flight for one in tuple(self._open) if not one.flight.done.is_set()]

        async def landed() -> None:
            with session.waits.within(within_s):
                for flight in flying:
                    await flight.done.wait()

        if flying:
            session.run(landed())
        if missing := sum(not flight.done.is_set() for flight in flying):
            raise NotConnected(
                f"The broker has not confirmed {missing} pipelined messages within {within_s:.3g} s."
            )

    def _confirm(self, most: int) -> None:
        """As `confirm`, but so many may stay open, unless a message was not confirmed: who is told of it may drop this
        connection."""
        errors: list[tuple[str, TickwheelError]] = []
        while self._open and (errors or len(self._open) > most):
            one = self._open.popleft()
            try:
                self._await(one)
            except TickwheelError as error:
                errors.append((one.topic, error))
        if errors:
            topic, first = errors[0]
            logger.error(
                "pipelined messages were not confirmed: %d, the first to %r: %s", len(errors), topic, first
            )
            raise first

    def settle(self) -> None:
        """Waits until what was sent so far is at the broker, events too."""
        self._look_at_unawaited(0)

    def _look_at_unawaited(self, most: int = OPEN_MAX) -> None:
        while self._unawaited and (len(self._unawaited) > most or self._unawaited[0].flight.done.is_set()):
            one = self._unawaited.popleft()
            try:
                self._await(one)
            except TickwheelError as error:
                logger.warning("an event to %r was lost: %s", one.topic, error)

    def _await(self, one: _Open) -> None:
        self._land(one)
        result = one.flight.result(one.place)
        if isinstance(result, TickwheelError):
            raise result
        if one.message.key is not None and result.duplicate and result.differs:
            self._send_once(one.topic, one.message, other_keys(one.message.key))
