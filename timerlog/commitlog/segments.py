"""Segments of the CommitLog as files: what their headers say.

A segment begins with 64 bytes that say which log it belongs to and where in it, so that each file can be told from any
other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tickwheel_native import crc32c, memory
from timerlog.errors import NoAddressSpace, UnsupportedFormat
from timerlog.files.disk import Disk, SegmentFile
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import FORMAT_VERSION, SEGMENT_HEADER_BYTES

MAGIC: Final = b"TWCOMLOG"
#: Lists the segments that are being taken into the log, while that lasts.
ADOPTING: Final = "adopting"
ADOPTING_FORMAT: Final = 1
_HEADER = struct.Struct("<8sIIQQQ")  # magic, format, 0, base, segment_bytes, log_id; then CRC-32C at byte 60


def pack_segment_header(base: int, segment_bytes: int, log_id: int) -> bytes:
    head = _HEADER.pack(MAGIC, FORMAT_VERSION, 0, base, segment_bytes, log_id).ljust(60, b"\0")
    return head + struct.pack("<I", crc32c(head))


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    base: int
    segment_bytes: int
    log_id: int


def unpack_segment_header(data: bytes) -> SegmentHeader | None:
    """Returns None when this is no whole header. Raises ``UnsupportedFormat`` for one of a newer version."""
    if len(data) < SEGMENT_HEADER_BYTES or crc32c(data[:60]) != struct.unpack("<I", data[60:64])[0]:
        return None
    magic, version, _, base, segment_bytes, log_id = _HEADER.unpack(data[: _HEADER.size])
    if magic != MAGIC:
        return None
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the CommitLog has format {version}; this version reads up to {FORMAT_VERSION}"
        )
    return SegmentHeader(base, segment_bytes, log_id)


def segment_header_of(path: Path) -> SegmentHeader | None:
    """That of a file; None when it is not whole. Raises ``OSError``, ``UnsupportedFormat``."""
    with path.open("rb") as file:
        return unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))


@contextmanager
def _content(file: SegmentFile, count: int) -> Iterator[memoryview]:
    """The first bytes of a segment, as long as the context lasts. Raises ``NoAddressSpace``."""
    address = memory.reserve(count)
    if address == memory.NULL:
        raise NoAddressSpace(f"cannot reserve {count} bytes of address space to look at a segment")
    try:
        file.map_into(address, 0, count)
        yield memory.view(address, 0, count)
    finally:
        memory.release(address, count)


def read_segment_header(disk: Disk, base: int) -> SegmentHeader | None:
    """Reads a segment's header; None when it is not whole."""
    file = disk.open_segment(base, create=False)
    try:
        if file.size_bytes < SEGMENT_HEADER_BYTES:
            return None
        with _content(file, PAGE_BYTES) as content:
            data = bytes(content[:SEGMENT_HEADER_BYTES])
    finally:
        file.close()
    return unpack_segment_header(data)


def is_unused(disk: Disk, base: int) -> bool:
    """Whether a segment without a whole header is one whose creation was interrupted: it may have a part of its header,
    and nothing was ever written behind that."""
    file = disk.open_segment(base, create=False)
    try:
        if file.size_bytes <= SEGMENT_HEADER_BYTES:
            return True
        with _content(file, file.size_bytes) as content:
            return not np.frombuffer(content, np.uint8)[SEGMENT_HEADER_BYTES:].any()
    finally:
        file.close()
