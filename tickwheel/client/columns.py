"""From what a user hands to ``send`` and ``send_many`` to checked columns, cut to frames."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from operator import add
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from tickwheel.client.checks import encoded, listed, shown, whole_or_none
from tickwheel.client.times import Delays, Milliseconds, Moments, many_times
from tickwheel.protocol.bodies.requests import HelloOk
from tickwheel.protocol.errors import (
    BadArgument,
    BadTime,
    BadTopicName,
    BodyTooLarge,
    HeadersTooLarge,
    KeyTooLong,
    OrderKeyTooLong,
    TickwheelError,
)
from tickwheel.protocol.frames import HEADER_BYTES
from tickwheel.protocol.limits import MAX_PRIORITY, is_valid_name
from tickwheel.protocol.messages import (
    SEND_COLUMN_BYTES_MAX,
    SEND_HEAD_BYTES,
    TOPIC_PRIORITY,
    SendColumns,
    encode_send,
)

Body: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Mapping[str, Any]
JSON_HEADERS: Final[Headers] = {"content-type": "application/json"}
"""By which a body of JSON is known: over HTTP, on the dashboard, and to who is sent it."""

FRAME_MESSAGES_MAX = 16_384
FRAME_BYTES_TARGET = 1024 * 1024
"""A larger batch goes as several frames of about this size: the broker can work while the next one is
encoded."""

AUTO_KEY_PREFIX = "~"


class Single(NamedTuple):
    """A message that has a body, perhaps a key and a time, and nothing else, as it is written."""

    body: bytes
    key: bytes
    """Empty: none."""
    time_ms: int
    is_relative: bool
    has_auto_key: bool


class KeyMaker:
    """Unique keys for messages without one: 96 random bits of this client, then a counter."""

    def __init__(self) -> None:
        self._prefix = (AUTO_KEY_PREFIX + secrets.token_urlsafe(12)).encode()
        self._numbers = count()

    def one(self) -> bytes:
        """A key that was never used before."""
        return b"%b%x" % (self._prefix, next(self._numbers))

    def fill(self, keys: Iterable[bytes]) -> list[bytes]:
        """The same keys, with a new one wherever there is none."""
        return [key or self.one() for key in keys]


def check_name(name: str, what: str = "topic") -> None:
    """Raises BadTopicName."""
    if not isinstance(name, str) or not is_valid_name(name):
        raise BadTopicName(f"{shown(name)} cannot be the name of a {what}.")


def encode_one_body(body: Body, limits: HelloOk) -> bytes:
    """Raises BodyTooLarge; BadArgument for what is not bytes."""
    encoded = body if type(body) is bytes else body_bytes(body)
    if len(encoded) > limits.max_body_bytes:
        raise body_too_large(len(encoded), limits)
    return encoded


def body_too_large(size_bytes: int, limits: HelloOk) -> BodyTooLarge:
    """The error for a body of this size."""
    return BodyTooLarge(f"The body has {size_bytes:,} bytes; this broker allows {limits.max_body_bytes:,}.")


def encode_one_key(key: str, limits: HelloOk) -> bytes:
    """Raises KeyTooLong; BadArgument for an empty key, and for what is no text."""
    if not isinstance(key, str) or not key:
        raise BadArgument(
            f"{shown(key)} cannot be a key.", advice="Use a text that is not empty, or None for no key."
        )
    in_utf8 = encoded(key, "key")
    if len(in_utf8) > limits.max_key_bytes:
        raise _beyond(KeyTooLong, "The key has", len(in_utf8), limits.max_key_bytes)
    return in_utf8


def encode_one_order_key(key: str, limits: HelloOk) -> bytes:
    """Raises OrderKeyTooLong; BadArgument for an empty key, and for what is no text."""
    if not isinstance(key, str) or not key:
        raise BadArgument(
            f"{shown(key)} cannot be an ordering key.", advice="Use a text that is not empty, or None."
        )
    in_utf8 = encoded(key, "order_key")
    if len(in_utf8) > limits.max_key_bytes:
        raise _beyond(OrderKeyTooLong, "The ordering key has", len(in_utf8), limits.max_key_bytes)
    return in_utf8


def _beyond(error: type[TickwheelError], what: str, size_bytes: int, limit_bytes: int) -> TickwheelError:
    return error(f"{what} {size_bytes:,} bytes; {limit_bytes:,} are allowed.")


def level_delay(delay_level: int, limits: HelloOk, *others: Any) -> int:
    """The delay in ms that a RocketMQ delay level stands for at this broker. ``others``: the other ways to give a time.
    Raises BadArgument, BadTime."""
    if any(other is not None for other in others):
        raise BadTime("A delay_level was given, and another time.", advice="Give one of them.")
    levels = limits.delay_levels_ms
    level = whole_or_none(delay_level)
    if level is None or not 1 <= level <= len(levels):
        raise BadArgument(f"There is no delay level {shown(delay_level)}.", advice=f"Use 1 to {len(levels)}.")
    return levels[level - 1]


def encode_one_headers(headers: Headers, limits: HelloOk) -> bytes:
    """Raises HeadersTooLarge; BadArgument for what MessagePack cannot express."""
    encoded = _encode_headers(headers)
    if len(encoded) > limits.max_headers_bytes:
        raise _beyond(HeadersTooLarge, "The headers have", len(encoded), limits.max_headers_bytes)
    return encoded


def check_priority(priority: int) -> int:
    """Raises BadArgument unless it is 0 to 255."""
    number = whole_or_none(priority)
    if number is None or not 0 <= number <= MAX_PRIORITY:
        raise BadArgument(f"The priority {shown(priority)} is not allowed.", advice=_PRIORITY_ADVICE)
    return number


_PRIORITY_ADVICE: Final = "Use 0 (first) to 255 (last); 50 is usual."


def json_bytes(value: object) -> bytes:
    """The body of a message that is JSON. Raises BadArgument."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(
            f"A {type(value).__name__} cannot be JSON: {error}.",
            advice="Use dicts with names, lists, texts, numbers, datetimes or structs of msgspec.",
        ) from None


def body_bytes(body: Any) -> bytes:
    """A body as bytes. Raises BadArgument."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    advice = "A body is bytes: encode text first, body.encode()."
    raise BadArgument(f"The body is a {type(body).__name__}.", advice=advice)


def checked_headers(headers: Headers) -> dict[str, Any]:
    """Headers that MessagePack can express. Raises BadArgument."""
    _encode_headers(headers)
    return dict(headers)


class EncodedHeaders(list[bytes]):
    """Those of each message of a batch, encoded before the rest of it."""

    def add(self, headers: Iterable[Headers | None]) -> None:
        """Those of some more messages. Raises BadArgument."""
        self.extend(map(_encode_headers, headers))


def _encode_headers(headers: Headers | None) -> bytes:
    if headers is None:
        return b""
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise BadArgument("Headers are not a mapping of text to values.", advice="Use a dict with str keys.")
    if not headers:
        return b""
    try:
        return msgspec.msgpack.encode(dict(headers))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadArgument(
            f"The headers cannot be written as MessagePack: {error}.",
            advice="Use None, bool, int, float, str, bytes, lists and dicts.",
        ) from None


@dataclass(frozen=True, slots=True)
class Part:
    """The messages of one frame; ``indexes`` says which of the batch they are."""

    columns: SendColumns
    indexes: Sequence[int]


class SendBatch:
    """A checked batch: what can be sent, as parts that each fit a frame, and what was refused."""

    def __init__(
        self,
        *,
        bodies: list[bytes],
        keys: Sequence[str | None] | None,
        deliver_at: Moments | None,
        delay: Delays | None,
        delay_ms: Milliseconds | None,
        priority: int | Sequence[int] | None,
        headers: Headers | Sequence[Headers | None] | EncodedHeaders | None,
        order_keys: Sequence[str | None] | str | None,
        limits: HelloOk,
        key_maker: KeyMaker | None = None,
    ) -> None:
        """``bodies``: as ``checked_bodies`` gives them. ``key_maker``: gives keys to messages without one."""
        self._limits = limits
        self.count = len(bodies)
        times = many_times(deliver_at, delay, delay_ms, self.count)
        encoded_keys = None if keys is None else _encode_keys(keys, self.count)
        if key_maker is not None:
            encoded_keys = key_maker.fill(encoded_keys or [b""] * self.count)
        self._columns = SendColumns(
            bodies=bodies,
            deliver_at_ms=times.time_ms,
            relative=times.relative,
            priority=_encode_priority(priority, self.count),
            keys=encoded_keys,
            headers=_encode_many_headers(headers, self.count),
            order_keys=_encode_order_keys(order_keys, self.count),
        )
        self._indexes: Sequence[int] = range(self.count)
        self.refused = self._check_sizes(times.refused)
        if self.refused:
            self._indexes = [index for index in range(self.count) if index not in self.refused]
            self._columns = _select(self._columns, self._indexes)

    def _check_sizes(self, bad_times: Mapping[int, BadTime]) -> dict[int, TickwheelError]:
        """Each message is judged by itself, as in the broker.

        Only a batch that has a bad one is looked at one by one.
        """
        columns = self._columns
        return too_large(
            self._limits,
            headers=columns.headers,
            keys=columns.keys,
            order_keys=columns.order_keys,
            bodies=columns.bodies,
            times=bad_times,
        )

    def payloads(self) -> list[bytes]:
        """All frames, for a topic that is named later. Raises the error of the first message that was refused."""
        for refused in self.refused.values():
            raise refused
        return [encode_send(0, part.columns) for part in self.parts()]

    def parts(self) -> Iterator[Part]:
        """The frames, in order. They are cut one at a time: a huge batch is never encoded as a whole."""
        columns, total = self._columns, len(self._indexes)
        ends = list(accumulate(_message_bytes(columns))) if self._needs_cutting() else None
        if ends is None:
            if total:
                yield Part(columns, self._indexes)
            return
        start = sent_bytes = 0
        room = min(FRAME_BYTES_TARGET, self._limits.max_frame_bytes - HEADER_BYTES - SEND_HEAD_BYTES)
        for stop in range(1, total + 1):
            full = stop - start == FRAME_MESSAGES_MAX
            if stop == total or full or ends[stop] - sent_bytes > room:
                yield Part(_slice(columns, start, stop), self._indexes[start:stop])
                start, sent_bytes = stop, ends[stop - 1]

    def _needs_cutting(self) -> bool:
        columns = self._columns
        size = sum(map(len, columns.bodies)) + SEND_COLUMN_BYTES_MAX * len(columns.bodies)
        size += sum(map(len, columns.keys or ())) + sum(map(len, columns.headers or ()))
        size += sum(map(len, columns.order_keys or ()))
        room = min(FRAME_BYTES_TARGET, self._limits.max_frame_bytes - HEADER_BYTES - SEND_HEAD_BYTES)
        return size > room or len(columns.bodies) > FRAME_MESSAGES_MAX


def too_large(
    limits: HelloOk,
    *,
    headers: Sequence[bytes] | None,
    keys: Sequence[bytes] | None,
    order_keys: Sequence[bytes] | None,
    bodies: Sequence[Body],
    times: Mapping[int, BadTime] | None = None,
) -> dict[int, TickwheelError]:
    """The messages that are beyond a limit, and why. ``times``: those whose time is wrong."""
    refused: dict[int, TickwheelError] = {}
    for error, what, column, limit in (
        (HeadersTooLarge, "The headers have", headers, limits.max_headers_bytes),
        (KeyTooLong, "The key has", keys, limits.max_key_bytes),
        (OrderKeyTooLong, "The ordering key has", order_keys, limits.max_key_bytes),
    ):
        for index, size in _too_large(column or (), limit):
            refused[index] = _beyond(error, what, size, limit)
    refused.update(times or {})
    for index, size in _too_large(bodies, limits.max_body_bytes):
        refused[index] = body_too_large(size, limits)
    return refused


def _too_large(values: Sequence[Body], limit_bytes: int) -> Iterator[tuple[int, int]]:
    if max(map(len, values), default=0) > limit_bytes:
        for index, value in enumerate(values):
            if len(value) > limit_bytes:
                yield index, len(value)


def _message_bytes(columns: SendColumns) -> Iterable[int]:
    sizes: Iterable[int] = (len(body) + SEND_COLUMN_BYTES_MAX for body in columns.bodies)
    for column in (columns.keys, columns.headers, columns.order_keys):
        if column is not None:
            sizes = map(add, sizes, map(len, column))
    return sizes


def _slice(columns: SendColumns, start: int, stop: int) -> SendColumns:
    return _part_of(columns, lambda column: column[start:stop], lambda times: times[8 * start : 8 * stop])


def _select(columns: SendColumns, indexes: Sequence[int]) -> SendColumns:
    return _part_of(
        columns,
        lambda column: [column[i] for i in indexes],
        lambda times: b"".join(times[8 * i : 8 * i + 8] for i in indexes),
    )


def _part_of(
    columns: SendColumns,
    take: Callable[[Sequence[Any]], Sequence[Any]],
    take_times: Callable[[bytes], bytes],
) -> SendColumns:
    times, priority = columns.deliver_at_ms, columns.priority
    return SendColumns(
        bodies=take(columns.bodies),
        deliver_at_ms=take_times(times) if isinstance(times, bytes) else times,
        relative=columns.relative,
        priority=bytes(take(priority)) if isinstance(priority, bytes) else priority,
        keys=None if columns.keys is None else take(columns.keys),
        headers=None if columns.headers is None else take(columns.headers),
        order_keys=None if columns.order_keys is None else take(columns.order_keys),
    )


def checked_bodies(bodies: Iterable[Body]) -> list[bytes]:
    """Many bodies as bytes. Raises BadArgument."""
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        raise BadArgument("send_many was given one body.", advice="Give a list of bodies, or use send.")
    values = bodies if isinstance(bodies, list) else listed(bodies, "bodies", '[b"one", b"two"]')
    if set(map(type, values)) <= {bytes}:
        return cast("list[bytes]", values)
    return [body if type(body) is bytes else body_bytes(body) for body in values]


def _of_each(values: Any, what: str, name: str, example: str, total: int) -> list[Any]:
    """The values of an option, one for each body. Raises BadArgument."""
    found = values if isinstance(values, list) else listed(values, name, example)
    if len(found) != total:
        raise BadArgument(f"There are {len(found):,} {what} for {total:,} bodies.")
    return found


def _encode_keys(keys: Sequence[str | None], total: int) -> list[bytes]:
    return _encode_texts(_of_each(keys, "keys", "keys", '["a", "b"]', total), "a key", "keys")


def _encode_order_keys(keys: Sequence[str | None] | str | None, total: int) -> list[bytes] | None:
    if keys is None:
        return None
    if isinstance(keys, str):
        return _encode_texts([keys], "an ordering key", "order_keys") * total
    values = _of_each(keys, "ordering keys", "order_keys", '["a", "b"]', total)
    return _encode_texts(values, "an ordering key", "order_keys")


def _encode_texts(values: list[Any], what: str, name: str) -> list[bytes]:
    try:
        if set(map(type, values)) <= _TEXTS and "" not in values:
            return [b"" if value is None else value.encode() for value in values]
    except UnicodeEncodeError:
        pass
    return [_encode_text(value, what, f"{name}[{index}]") for index, value in enumerate(values)]


_TEXTS: Final = frozenset({str, type(None)})


def _encode_text(value: Any, what: str, name: str) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str):
        raise BadArgument(f"{name} is {shown(value)}, which cannot be {what}.", advice="Use a text, or None.")
    if not value:
        raise BadArgument(f"An empty text cannot be {what}.", advice="Use None for none.")
    return encoded(value, name)


def _encode_priority(priority: int | Sequence[int] | None, total: int) -> int | bytes:
    if priority is None:
        return TOPIC_PRIORITY
    if isinstance(priority, int) or whole_or_none(priority) is not None:
        return check_priority(cast("int", priority))
    if not isinstance(priority, str | Mapping) and not hasattr(priority, "__len__"):
        return check_priority(cast("int", priority))  # neither one nor many
    given = list(priority) if isinstance(priority, bytes) else priority
    values = _of_each(given, "priorities", "priority", "[10, 50]", total)
    if set(map(type, values)) <= {int} and values and min(values) >= 0 and max(values) <= MAX_PRIORITY:
        return bytes(values)
    return bytes(check_priority(one) for one in values)


def _encode_many_headers(
    headers: Headers | Sequence[Headers | None] | EncodedHeaders | None, total: int
) -> list[bytes] | None:
    if headers is None:
        return None
    if isinstance(headers, EncodedHeaders):
        return headers
    if isinstance(headers, Mapping):
        return [_encode_headers(headers)] * total if headers else None
    values = headers if isinstance(headers, list) else listed(headers, "headers", "[{}, {}]")
    return (
        [_encode_headers(item) for item in _of_each(values, "headers", "headers", "", total)]
        if values
        else None
    )
