"""Segments of the CommitLog as files: what their headers say, and the addresses into which all of them are mapped.

A segment begins with 64 bytes that say which log it belongs to and where in it, so that each file can be told from any
other. Every position of the log is an offset in one range of reserved addresses.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tickwheel_native import crc32c, memory
from timerlog.errors import NoAddressSpace, UnsupportedFormat
from timerlog.files.disk import Disk
from timerlog.layout import FORMAT_VERSION, SEGMENT_HEADER_BYTES

MAGIC: Final = b"TWCOMLOG"
ADDRESS_SPACE_BYTES: Final = 1 << 44
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


def reserve_log_address_space() -> Any:
    base = memory.reserve(ADDRESS_SPACE_BYTES)
    if base == memory.NULL:
        raise NoAddressSpace(
            f"cannot reserve address space for the log: {os.strerror(memory.reserve_errno())}"
        )
    return base


def read_segment_header(disk: Disk, base_pointer: Any, base: int) -> SegmentHeader | None:
    """Reads a segment's header through a temporary mapping; None when it is not whole."""
    file = disk.open_segment(base, create=False)
    try:
        if file.size_bytes < SEGMENT_HEADER_BYTES:
            return None
        file.map_into(base_pointer, 0, 4096)
        data = bytes(memory.view(base_pointer, 0, SEGMENT_HEADER_BYTES))
        memory.unmap_to_reserved(base_pointer, 0, 4096)
    finally:
        file.close()
    return unpack_segment_header(data)


def is_unused(disk: Disk, base_pointer: Any, base: int) -> bool:
    """Whether a segment without a whole header is one whose creation was interrupted: it may have a part of its header,
    and nothing was ever written behind that."""
    file = disk.open_segment(base, create=False)
    try:
        if file.size_bytes <= SEGMENT_HEADER_BYTES:
            return True
        file.map_into(base_pointer, 0, file.size_bytes)
        content = np.frombuffer(memory.view(base_pointer, 0, file.size_bytes), np.uint8)
        unused = not content[SEGMENT_HEADER_BYTES:].any()
        memory.unmap_to_reserved(base_pointer, 0, file.size_bytes)
        return unused
    finally:
        file.close()
