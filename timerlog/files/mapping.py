"""Files of another process's data directory, mapped to be read."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tickwheel_native import ffi, lib
from timerlog.errors import NoAddressSpace, StoreError
from timerlog.files.holes import MOST_PIECES, PAGE_BYTES, find_holes, reading_fills
from timerlog.layout import FORMAT_VERSION, HEADER_BYTES
from timerlog.tables.tables import HEADER


class Mapping:
    """A file mapped read-only; no descriptor stays open, because there may be thousands of files."""

    def __init__(self, path: Path) -> None:
        self.bytes = 0
        self._base = ffi.NULL
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # its topic was deleted meanwhile
        try:
            size = os.fstat(fd).st_size // PAGE_BYTES * PAGE_BYTES
            if size:
                self._base = reserved(lib.tw_reserve(size), path)
                mapped(lib.tw_map_file(self._base, 0, fd, 0, size, 0), path)
                self.bytes = size
                self._cover_holes(fd, path)
        finally:
            os.close(fd)

    def _cover_holes(self, fd: int, path: Path) -> None:
        """To read one would take disk space on some file systems, and fail on a full one. What the owner has not
        written yet is covered, too: it is behind all that a reader asks for, or not touched at this moment."""
        if reading_fills(fd):
            for start, end in islice(find_holes(fd, self.bytes, is_own=False), MOST_PIECES):
                mapped(lib.tw_cover(self._base, start, end - start, 0), path)

    def items(self, dtype: np.dtype[Any], magic: bytes, log_id: int) -> npt.NDArray[Any]:
        """The items behind the header page. Raises ``StoreError`` when it is not the table that is meant."""
        if not self.bytes:
            return np.empty(0, dtype)
        page = bytes(ffi.buffer(ffi.cast("char *", self._base), HEADER.size))
        if page != HEADER.pack(magic, FORMAT_VERSION, dtype.itemsize, log_id):
            raise StoreError(f"{magic.decode()} does not belong to this log")
        count = (self.bytes - HEADER_BYTES) // dtype.itemsize
        buffer = ffi.buffer(ffi.cast("char *", self._base) + HEADER_BYTES, count * dtype.itemsize)
        return np.frombuffer(buffer, dtype)

    def close(self) -> None:
        if self.bytes:
            lib.tw_release(self._base, self.bytes)
            self.bytes = 0


def reserved(base: Any, path: Path) -> Any:
    """Raises ``StoreError`` when there is no address space for a file."""
    if base == ffi.NULL:
        raise NoAddressSpace(f"cannot reserve address space for {path.name}")
    return base


def mapped(result: int, path: Path) -> None:
    """Raises ``StoreError`` when a file could not be mapped."""
    if result:
        raise StoreError(f"cannot map {path.name}: {os.strerror(-result)}")
