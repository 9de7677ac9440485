"""The twin of ``native/scan.c``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.twins.log import END_OF_RANGE, END_RECORD, END_TYPE, HEAD, MESSAGE, MESSAGE_TYPE, judge
from tests.twins.store import MESSAGE_HEAD_BYTES, padded
from tickwheel_native import Buffer, crc32c

FULL: Final = 5


def log_scan(
    log: Buffer, position: int, end: int, wanted: Sequence[int], capacity: int
) -> tuple[int, int, list[int]]:
    """Returns (where it stopped, why, where the records lie whose type is wanted)."""
    found: list[int] = []
    while end - position >= HEAD.size:
        rest = bytes(log[position:end])
        reason = judge(rest)
        if reason != END_OF_RANGE:
            return position, reason, found
        _, size, record_type, *_ = HEAD.unpack_from(rest)
        if record_type == END_TYPE:
            return position, END_RECORD, found
        if wanted[record_type]:
            if len(found) == capacity:
                return position, FULL, found
            found.append(position)
        position += padded(size)
    return position, END_OF_RANGE, found


def gather(log: Buffer, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
    """The pieces of the log, one behind the other."""
    return b"".join(bytes(log[start : start + size]) for start, size in zip(starts, sizes, strict=True))


def check_records(log: Buffer, positions: Sequence[int], sizes: Sequence[int]) -> list[bool]:
    """Whether the bytes of each record match its checksum."""
    return [_is_right(bytes(log[at : at + size]), size) for at, size in zip(positions, sizes, strict=True)]


def message_parts(
    log: Buffer, ids: Sequence[int], positions: Sequence[int], sizes: Sequence[int]
) -> tuple[list[bool], list[tuple[int, int, int, int]]]:
    """Whether each record is that of its message, and how long key, headers, ordering key and body are."""
    whole, lengths = [], []
    for message_id, at, size in zip(ids, positions, sizes, strict=True):
        head = bytes(log[at : at + MESSAGE_HEAD_BYTES]) if size else bytes(MESSAGE_HEAD_BYTES)
        _, said, kind, _, order_bytes, _ = HEAD.unpack_from(head)
        said_id, _, _, key_bytes, headers_bytes, body_bytes = MESSAGE.unpack_from(head, HEAD.size)
        parts = (key_bytes, headers_bytes, order_bytes, body_bytes)
        lengths.append(parts)
        is_message = kind == MESSAGE_TYPE and said_id == message_id
        whole.append(is_message and said == size == MESSAGE_HEAD_BYTES + sum(parts))
    return whole, lengths


def _is_right(record: bytes, size: int) -> bool:
    if size < HEAD.size:
        return False
    crc, said, *_ = HEAD.unpack_from(record)
    return bool(said == size and crc32c(record[4:]) == crc)
