"""Messages many at a time, by the C code. It does what is usual; what it calls unusual goes by `wire.messages`, one by
one, which means the same and alone decides what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from tickwheel.protocol.limits import MAX_ID, MAX_TIME_MS
from tickwheel_gateway._wire import ffi, lib
from tickwheel_gateway.wire.handles import numbers as handle_numbers
from tickwheel_gateway.wire.messages import Limits, Sender, mark_of
from tickwheel_gateway.wire.properties import (
    MAX_GROUP_BYTES,
    MAX_ID_BYTES,
    MAX_PROPERTIES_BYTES,
    RESERVED,
)

_RESERVED: Final = b"".join(name.encode() + b"\0" for name in sorted(RESERVED))
_MORE_BYTES: Final = 512
"""Of an answer or of headers, beside the texts in them."""
_HANDLE_BYTES: Final = 700
"""The longest recall handle: of a name of 127 characters and an id of 246 bytes."""

_unwritten: Final = ffi.new_allocator(should_clear_after_alloc=False)
"""Room that is written before it is read: to clear it would cost more than to fill it."""


class Column(NamedTuple):
    """Texts of requests: where each begins and ends."""

    starts: list[int]
    ends: list[int]

    def of(self, data: bytes) -> list[bytes]:
        """The texts."""
        return [data[start:end] for start, end in zip(self.starts, self.ends, strict=True)]


class Sends:
    """Requests of SendMessage by one client."""

    def __init__(self, requests: Sequence[bytes], sender: Sender, limits: Limits, now_ms: int) -> None:
        count = len(requests)
        self._data = b"".join(requests)
        client, host, mark = _sender(sender)
        latest_ms = MAX_TIME_MS
        if limits.max_delay_ms is not None:
            latest_ms = min(latest_ms, now_ms + limits.max_delay_ms)
        pointers = [ffi.from_buffer(text) for text in (client, host, mark, _RESERVED)]
        words = ffi.new("tw_sender *")
        words.client, words.host, words.mark, words.reserved = pointers
        words.client_bytes, words.host_bytes, words.reserved_bytes = len(client), len(host), len(_RESERVED)
        words.max_id_bytes, words.max_group_bytes = MAX_ID_BYTES, MAX_GROUP_BYTES
        words.max_properties_bytes, words.max_body_bytes = MAX_PROPERTIES_BYTES, limits.max_body_bytes
        words.now_ms, words.max_deliver_at_ms = now_ms, latest_ms
        self._numbers = ffi.new("int64_t[]", max(1, count * lib.TW_SENT_NUMBERS))
        # Of a request, the body is not in the headers, and the id is twice there, and in its key.
        capacity = min(len(self._data), count * 65_536) + count * (_MORE_BYTES + len(client) + len(host))
        out = _unwritten("uint8_t[]", capacity)
        used = lib.tw_wire_sends(
            ffi.from_buffer(self._data),
            ffi.new("uint64_t[]", list(accumulate(map(len, requests)))),
            count,
            words,
            self._numbers,
            out,
            capacity,
        )
        self._out = ffi.buffer(out, used)[:]
        self._flat: list[int] = ffi.unpack(self._numbers, count * lib.TW_SENT_NUMBERS)
        self.are_usual = self._column(lib.TW_SENT_IS_USUAL, 0, count)
        """0: it is left to others."""

    def _column(self, number: int, start: int, stop: int) -> list[int]:
        width: int = lib.TW_SENT_NUMBERS
        return self._flat[start * width + number : stop * width : width]

    def _texts(self, number: int, start: int, stop: int, data: bytes) -> list[bytes]:
        return Column(self._column(number, start, stop), self._column(number + 1, start, stop)).of(data)

    def topics(self, start: int, stop: int) -> list[bytes]:
        """As RocketMQ has the names; of usual ones from ``start`` on, as all that follows."""
        return self._texts(lib.TW_SENT_TOPIC, start, stop, self._data)

    def bodies(self, start: int, stop: int) -> list[bytes]:
        """What is sent."""
        return self._texts(lib.TW_SENT_BODY, start, stop, self._data)

    def order_keys(self, start: int, stop: int) -> list[bytes]:
        """Empty where there is none."""
        return self._texts(lib.TW_SENT_ORDER, start, stop, self._data)

    def keys(self, start: int, stop: int) -> list[bytes]:
        """In Tickwheel."""
        return self._texts(lib.TW_SENT_KEY, start, stop, self._out)

    def headers(self, start: int, stop: int) -> list[bytes]:
        """As the broker keeps them."""
        return self._texts(lib.TW_SENT_HEADERS, start, stop, self._out)

    def deliver_at_ms(self, start: int, stop: int) -> list[int]:
        """0: at once."""
        found = self._column(lib.TW_SENT_DELIVER_AT, start, stop)
        return [max(0, one) for one in found] if any(found) else found

    def priorities(self, start: int, stop: int) -> list[int]:
        """In Tickwheel; -1: none is given."""
        return self._column(lib.TW_SENT_PRIORITY, start, stop)

    def answers(self, places: Sequence[int], ids: Sequence[int], now_ms: int) -> list[bytes]:
        """What is answered to those that were stored under these ids."""
        count, width = len(places), lib.TW_SENT_NUMBERS
        if places[-1] - places[0] == count - 1:  # they are in order, so none is missing between
            numbers = self._numbers + places[0] * width
        else:
            chosen = [
                number for place in places for number in self._flat[place * width : (place + 1) * width]
            ]
            numbers = ffi.new("int64_t[]", chosen)
        capacity = count * (_MORE_BYTES + 2 * MAX_ID_BYTES + _HANDLE_BYTES)
        out, ends = _unwritten("uint8_t[]", capacity), ffi.new("uint64_t[]", count)
        done = lib.tw_wire_stored(
            ffi.from_buffer(self._data),
            numbers,
            ffi.new("uint64_t[]", list(ids)),
            count,
            now_ms,
            out,
            capacity,
            ends,
        )
        assert done == count
        return _cut(out, ends, count)


@lru_cache(maxsize=4_096)
def _sender(sender: Sender) -> tuple[bytes, bytes, bytes]:
    return sender.client_id.encode(), sender.host.encode(), mark_of(sender.client_id).encode()


class Acks:
    """Requests of AckMessage."""

    def __init__(self, requests: Sequence[bytes], now_ms: int) -> None:
        count = len(requests)
        self._data = b"".join(requests)
        self._numbers = ffi.new("int64_t[]", max(1, count * lib.TW_ACKED_NUMBERS))
        lib.tw_wire_acks(
            ffi.from_buffer(self._data),
            ffi.new("uint64_t[]", list(accumulate(map(len, requests)))),
            count,
            MAX_ID,
            now_ms,
            self._numbers,
        )
        self._flat: list[int] = ffi.unpack(self._numbers, count * lib.TW_ACKED_NUMBERS)
        self.are_usual = self._column(lib.TW_ACKED_IS_USUAL)
        """0: it is left to others; all else means nothing then."""
        self.groups = self._column(lib.TW_ACKED_GROUP)
        """The number of the group of each."""
        self.receipts = list(
            zip(self._column(lib.TW_ACKED_ID), self._column(lib.TW_ACKED_EPOCH), strict=True)
        )

    def _column(self, number: int) -> list[int]:
        return self._flat[number :: lib.TW_ACKED_NUMBERS]

    def answers(self, places: Sequence[int]) -> list[bytes]:
        """What is answered to those that were acked."""
        count, width = len(places), lib.TW_ACKED_NUMBERS
        rows = [self._flat[place * width : (place + 1) * width] for place in places]
        message, handle = lib.TW_ACKED_MESSAGE, lib.TW_ACKED_HANDLE
        capacity = sum(row[message + 1] - row[message] + row[handle + 1] - row[handle] for row in rows)
        capacity += count * _MORE_BYTES
        out, ends = _unwritten("uint8_t[]", capacity), ffi.new("uint64_t[]", count)
        numbers = ffi.new("int64_t[]", [number for row in rows for number in row])
        done = lib.tw_wire_acked(ffi.from_buffer(self._data), numbers, count, out, capacity, ends)
        assert done == count
        return _cut(out, ends, count)


class Receiver(NamedTuple):
    """To whom messages are given, and how."""

    topic: bytes
    """The Resource that it has asked for."""
    store_host: str
    invisible_ms: int
    until_ms: int
    """Of the receipt handles; 0: the gateway renews them."""


class GivenMany:
    """Messages as answers to ReceiveMessage."""

    def __init__(self, payload: bytes, answers: list[bytes], flat: list[int]) -> None:
        self.answers = answers
        """Empty: it is left to others."""
        self._payload = payload
        self._flat = flat

    def tag(self, place: int) -> str | None:
        """Of a message that is not left to others."""
        at: int = place * lib.TW_GIVEN_NUMBERS + lib.TW_GIVEN_TAG
        start, end = self._flat[at : at + 2]
        return None if start < 0 else self._payload[start:end].decode()


def given(payload: bytes, attempts: Sequence[int], receiver: Receiver) -> GivenMany:
    """The messages of a DELIVER."""
    count = len(attempts)
    if not count:
        return GivenMany(payload, [], [])
    store_host = receiver.store_host.encode()
    pointers = [ffi.from_buffer(text) for text in (receiver.topic, store_host)]
    words = ffi.new("tw_receiver *")
    words.topic, words.store_host = pointers
    words.topic_bytes, words.store_host_bytes = len(receiver.topic), len(store_host)
    words.invisible_ms, words.until_ms = receiver.invisible_ms, receiver.until_ms
    words.number = handle_numbers.take(count)
    capacity = len(payload) * 5 // 4 + count * (_MORE_BYTES + len(receiver.topic) + len(store_host))
    numbers = ffi.new("int64_t[]", count * lib.TW_GIVEN_NUMBERS)
    out = _unwritten("uint8_t[]", capacity)
    if lib.tw_wire_given(
        ffi.from_buffer(payload),
        len(payload),
        ffi.new("uint16_t[]", list(attempts)),
        count,
        words,
        numbers,
        out,
        capacity,
    ):
        return GivenMany(payload, [b""] * count, [])
    width, at = lib.TW_GIVEN_NUMBERS, lib.TW_GIVEN_AT
    flat = ffi.unpack(numbers, count * width)
    # Of what is left to others, both places are 0.
    written = ffi.buffer(out)[: max(flat[at + 1 :: width])]
    return GivenMany(payload, Column(flat[at::width], flat[at + 1 :: width]).of(written), flat)


def _cut(out: Any, ends: Any, count: int) -> list[bytes]:
    """The answers that lie one behind the other."""
    stops = ffi.unpack(ends, count)
    data = ffi.buffer(out, stops[-1])[:]
    return Column([0, *stops[:-1]], stops).of(data)
