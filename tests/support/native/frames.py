"""SEND and ACK frames as bytes, for tests that drive the Store without a client."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tickwheel_native import crc32c

SEND, ACK = 12, 23
COLUMN_TIMES, COLUMN_KEYS = 1, 4


def frame(kind: int, correlation: int, payload: bytes) -> bytes:
    """A whole frame with its checksum."""
    head = struct.pack("<BBHI", kind, 0, 0, correlation)
    return struct.pack("<II", len(payload), crc32c(head + payload)) + head + payload


def send(
    topic_id: int,
    bodies: Sequence[bytes],
    *,
    keys: Sequence[bytes] | None = None,
    times_ms: Sequence[int] | None = None,
    priority: int = 50,
    correlation: int = 1,
) -> bytes:
    """A SEND frame; without ``times_ms`` everything is due now."""
    columns = (COLUMN_TIMES if times_ms is not None else 0) | (COLUMN_KEYS if keys is not None else 0)
    payload = struct.pack("<IIIIq", topic_id, len(bodies), columns, priority, 0)
    if times_ms is not None:
        payload += np.asarray(times_ms, "<i8").tobytes()
    payload += np.array([len(body) for body in bodies], "<u4").tobytes()
    if keys is not None:
        payload += np.array([len(key) for key in keys], "<u2").tobytes() + b"".join(keys)
    return frame(SEND, correlation, payload + b"".join(bodies))


def ack_payload(group_id: int, ids: Sequence[int], epochs: Sequence[int]) -> bytes:
    """The payload of an ACK frame."""
    head = struct.pack("<II", group_id, len(ids))
    return head + np.asarray(ids, "<u8").tobytes() + np.asarray(epochs, "<u4").tobytes()


def delivered_bodies(deliver_frame: bytes) -> list[tuple[int, bytes]]:
    """Of each message of a DELIVER frame its id, and its key, headers, ordering key and body in one piece."""
    ids, _ = delivered(deliver_frame)
    count, at = len(ids), 24 + 28 * len(ids)
    bodies = struct.unpack_from(f"<{count}I", deliver_frame, at)
    rests = struct.unpack_from(f"<{3 * count}H", deliver_frame, at + 4 * count)
    at += 11 * count
    found = []
    for index, message_id in enumerate(ids):
        size_bytes = bodies[index] + sum(rests[index::count])
        found.append((message_id, deliver_frame[at : at + size_bytes]))
        at += size_bytes
    assert at == len(deliver_frame)
    return found


def delivered(deliver_frame: bytes) -> tuple[list[int], list[int]]:
    """(ids, epochs) of a DELIVER frame."""
    (count,) = struct.unpack_from("<I", deliver_frame, 20)
    ids = struct.unpack_from(f"<{count}Q", deliver_frame, 24)
    epochs = struct.unpack_from(f"<{count}I", deliver_frame, 24 + 24 * count)
    return list(ids), list(epochs)
