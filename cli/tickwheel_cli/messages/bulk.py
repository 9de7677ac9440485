"""Bulk input: one JSON object a line becomes messages in batches; a bad line is named by its number."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from tickwheel.client.times import AT_ONCE, EpochMs
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel_cli.shared.times import moment_to_ms, parse_duration, parse_moment

BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 << 20
_DURATION_0 = timedelta(0)
_USUAL = 50


class BulkLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line as it is written; all but the body is optional."""

    body: str | None = None
    body_base64: str | None = None
    topic: str | None = None
    key: str | None = None
    at: str | None = None
    delay: str | None = msgspec.field(default=None, name="in")
    deliver_at_ms: int | None = None
    delay_level: int | None = None
    order_key: str | None = None
    priority: int = _USUAL
    headers: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BulkMessage:
    """A valid line, and what it means. One of `delay`, `written.delay_level` and `deliver_at_ms` (0 = now) counts."""

    number: int
    written: BulkLine
    topic: str
    body: bytes
    deliver_at_ms: int
    delay: timedelta | None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is refused: its number from 1, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class Batch:
    """Messages that can go in one `send_many`: one topic, and all with a delay, one delay level, or a time."""

    topic: str
    is_delay: bool
    delay_level: int | None = None
    messages: list[BulkMessage] = field(default_factory=list)
    body_bytes: int = 0

    def add(self, message: BulkMessage) -> bool:
        """Take one more message; True when the batch is full."""
        self.messages.append(message)
        self.body_bytes += len(message.body)
        return len(self.messages) >= BATCH_MESSAGES or self.body_bytes >= BATCH_BYTES


_decoder = msgspec.json.Decoder(BulkLine)


def parse_line(number: int, raw: bytes, default_topic: str | None) -> BulkMessage | BadLine | None:
    """One line to a message, or to the reason why it is none; None for an empty line."""
    if not raw.strip():
        return None
    try:
        return _message(number, _decoder.decode(raw), default_topic)
    except (msgspec.MsgspecError, ValueError) as error:
        return BadLine(number, str(error))


def _message(number: int, line: BulkLine, default_topic: str | None) -> BulkMessage:
    topic = line.topic or default_topic
    if not topic:
        raise ValueError('no topic: name one on the command line, or "topic" in the line')
    if not 0 <= line.priority <= 255:
        raise ValueError(f"priority {line.priority} is not within 0 (first) to 255 (last)")
    deliver_at_ms, delay = _due(line)
    return BulkMessage(number, line, topic, _body(line), deliver_at_ms, delay)


def _body(line: BulkLine) -> bytes:
    if (line.body is None) == (line.body_base64 is None):
        raise ValueError('exactly one of "body" and "body_base64" is needed')
    if line.body is not None:
        return line.body.encode()
    try:
        return b64decode(line.body_base64 or "", validate=True)
    except binascii.Error as error:
        raise ValueError(f"body_base64 is not base64: {error}") from None


def _due(line: BulkLine) -> tuple[int, timedelta | None]:
    times = ("at", "delay", "delay_level", "deliver_at_ms")
    if sum(getattr(line, name) is not None for name in times) > 1:
        raise ValueError('at most one of "at", "in", "delay_level" and "deliver_at_ms" can be given')
    if line.delay_level is not None and not 1 <= line.delay_level <= 255:
        raise ValueError(f"delay_level {line.delay_level} is not within 1 and 255")
    if line.delay is not None:
        return 0, parse_duration(line.delay)
    if line.at is not None:
        return EpochMs(moment_to_ms(parse_moment(line.at))), None
    if line.deliver_at_ms is None:
        return AT_ONCE, None
    time_ms = line.deliver_at_ms
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ValueError(f"deliver_at_ms {time_ms} is not within 0 and {MAX_TIME_MS} (the year 9999)")
    return time_ms, None


def parse_lines(
    lines: Iterable[bytes], default_topic: str | None
) -> Iterator[tuple[int, BulkMessage | BadLine | None]]:
    """Each line as (bytes read for it, message, bad line, or None for an empty line)."""
    for number, raw in enumerate(lines, start=1):
        yield len(raw), parse_line(number, raw, default_topic)


def batches(messages: Iterable[BulkMessage]) -> Iterator[Batch]:
    """Group messages for `send_many`; those of one kind and topic keep their order."""
    open_batches: dict[tuple[str, bool, int | None], Batch] = {}
    for message in messages:
        kind = (message.topic, message.delay is not None, message.written.delay_level)
        batch = open_batches.setdefault(kind, Batch(*kind))
        if batch.add(message):
            yield open_batches.pop(kind)
    yield from open_batches.values()


def send_many_arguments(batch: Batch) -> dict[str, Any]:
    """The batch's messages as the keyword arguments of `Client.send_many`."""
    messages, lines = batch.messages, [message.written for message in batch.messages]
    arguments: dict[str, Any] = {"bodies": [m.body for m in messages]}
    if any(line.key for line in lines):
        arguments["keys"] = [line.key or None for line in lines]
    if any(line.order_key for line in lines):
        arguments["order_keys"] = [line.order_key or None for line in lines]
    if any(line.headers for line in lines):
        arguments["headers"] = [line.headers for line in lines]
    if any(line.priority != _USUAL for line in lines):
        arguments["priority"] = [line.priority for line in lines]
    if batch.delay_level is not None:
        arguments["delay_level"] = batch.delay_level
    elif batch.is_delay:
        arguments["delay"] = [m.delay or _DURATION_0 for m in messages]
    else:
        arguments["deliver_at"] = [m.deliver_at_ms for m in messages]
    return arguments
