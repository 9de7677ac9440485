"""Hypothesis strategies for SEND frames: good ones, and those that a hostile client would send."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st

from tests.support.native.native_pair import NOW_MS
from tests.twins.ingest import SEND, frame

TIMES, PRIORITY, KEYS, HEADERS, DELAYS, ORDERS = 1, 2, 4, 8, 16, 32
MAX_TIME_MS: Final = 253_402_300_799_999
UNKNOWN_TOPIC: Final = 3


@dataclass(frozen=True)
class Item:
    """One message; a column that the frame does not have is not looked at."""

    body: bytes = b""
    key: bytes = b""
    headers: bytes = b""
    time: int = 0
    priority: int = 0
    order: bytes = b""


@dataclass(frozen=True)
class SendFrame:
    """A SEND frame with exactly the columns that ``columns`` names."""

    topic_id: int = 1
    items: list[Item] = field(default_factory=lambda: [Item(b"x")])
    columns: int = 0
    priority: int = 50
    time: int = 0

    def payload(self) -> bytes:
        items, n = self.items, len(self.items)
        parts = [struct.pack("<IIIIq", self.topic_id, n, self.columns, self.priority, self.time)]
        if self.columns & TIMES:
            parts.append(struct.pack(f"<{n}q", *(item.time for item in items)))
        parts.append(struct.pack(f"<{n}I", *(len(item.body) for item in items)))
        if self.columns & KEYS:
            parts.append(struct.pack(f"<{n}H", *(len(item.key) for item in items)))
        if self.columns & HEADERS:
            parts.append(struct.pack(f"<{n}H", *(len(item.headers) for item in items)))
        if self.columns & ORDERS:
            parts.append(struct.pack(f"<{n}H", *(len(item.order) for item in items)))
        if self.columns & PRIORITY:
            parts.append(bytes(item.priority for item in items))
        parts += [item.key for item in items if self.columns & KEYS]
        parts += [item.headers for item in items if self.columns & HEADERS]
        parts += [item.order for item in items if self.columns & ORDERS]
        parts += [item.body for item in items]
        return b"".join(parts)

    def encode(self, correlation: int = 7) -> bytes:
        return frame(SEND, correlation, self.payload())


def filler(size: int) -> bytes:
    """Bytes of which each place can be told from its neighbours."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


times = st.one_of(
    st.sampled_from([0, 0, 1, -1, NOW_MS, MAX_TIME_MS, MAX_TIME_MS + 1, MAX_TIME_MS - NOW_MS]),
    st.sampled_from([MAX_TIME_MS - NOW_MS + 1, (1 << 63) - 1, -(1 << 63)]),
    st.integers(0, 100_000),
)
key_bytes = st.one_of(
    st.sampled_from([b"", b"a", b"b", b"order-1", b"order-2", filler(255), filler(256), filler(300)]),
    st.binary(max_size=12),
)
items = st.builds(
    Item,
    body=st.one_of(st.integers(0, 40), st.sampled_from([399, 400, 401])).map(filler),
    key=key_bytes,
    headers=st.sampled_from([0, 0, 1, 9, 32_768, 32_769]).map(filler),
    time=times,
    priority=st.integers(0, 255),
    order=st.sampled_from([b"", b"", b"o", b"other", filler(255), filler(256)]),
)
sends = st.builds(
    SendFrame,
    topic_id=st.sampled_from([1, 1, 2]),
    items=st.lists(items, min_size=1, max_size=6),
    columns=st.integers(0, 63),
    priority=st.integers(0, 256),
    time=times,
)
_numbers = st.sampled_from([0, 1, 2, 7, 31, 32, 255, 256, 65_535, 65_536, 65_537, 1 << 31, (1 << 32) - 1])


@st.composite
def malformed_payloads(draw: st.DrawFn) -> bytes:
    """A payload whose numbers were tampered with, or that lost or gained bytes."""
    payload = bytearray(draw(sends).payload())
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(["number", "byte", "cut", "more"])):
            case "number":
                struct.pack_into(
                    "<I", payload, 4 * draw(st.integers(0, min(len(payload), 80) // 4 - 1)), draw(_numbers)
                )
            case "byte":
                payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
            case "cut":
                del payload[draw(st.integers(4, len(payload))) :]
            case "more":
                payload += draw(st.binary(min_size=1, max_size=9))
    return bytes(payload)


correlations = st.integers(0, (1 << 32) - 1)
frames = st.one_of(
    st.builds(SendFrame.encode, sends, correlations),
    st.builds(SendFrame.encode, sends, correlations),
    st.builds(frame, st.just(SEND), correlations, malformed_payloads()),
    st.builds(frame, st.integers(0, 255), correlations, st.binary(max_size=40)),
    st.builds(SendFrame.encode, st.builds(SendFrame, topic_id=st.sampled_from([0, 3, 4, (1 << 32) - 1]))),
)
