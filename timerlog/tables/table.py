"""A table: an array of items of one size in a mapped file that C and numpy share.

The item's number is its place, so nothing is searched. The table grows at its end; items at its start go for good when
what they say is purged, page by page, and then read as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from timerlog.errors import StoreError
from timerlog.files.held_space import Lender
from timerlog.files.holes import PAGE_BYTES
from timerlog.files.mapped_file import SMALLEST_STEP_BYTES, Region
from timerlog.layout import FORMAT_VERSION, HEADER_BYTES, TABLE_HEADER


class Table:
    """An array of fixed-size items behind a header page that names the format and the log it belongs to."""

    def __init__(
        self,
        path: Path | None,
        magic: bytes,
        dtype: np.dtype[Any],
        log_id: int,
        reserve_bytes: int,
        lender: Lender | None = None,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        """``gaps``: from, to below which there are no items."""
        self.dtype = dtype
        self.region = Region(path, reserve_bytes, lender, [self.span(*gap) for gap in gaps])
        header = TABLE_HEADER.pack(magic, FORMAT_VERSION, dtype.itemsize, log_id)
        self.is_new = self.region.allocated_bytes == 0 or self._is_only_begun()
        try:
            self.region.ensure(HEADER_BYTES)
        except BaseException:
            self.region.close()
            raise
        page = self.region.array(np.uint8, 0, HEADER_BYTES)
        if self.is_new:
            page[: len(header)] = np.frombuffer(header, np.uint8)
        elif bytes(page[: len(header)]) != header:
            self.region.close()
            raise StoreError(f"{path} does not belong to this log")
        #: All items that the address space has room for; touch only those below ``capacity``.
        self.items = self.region.array(dtype, HEADER_BYTES, (reserve_bytes - HEADER_BYTES) // dtype.itemsize)

    def _is_only_begun(self) -> bool:
        """Whether its creation was interrupted: the file has its first blocks, and no header yet."""
        size_bytes = self.region.allocated_bytes
        return size_bytes <= SMALLEST_STEP_BYTES and not self.region.array(np.uint8, 0, size_bytes).any()

    @property
    def address(self) -> int:
        return self.region.address + HEADER_BYTES

    def span(self, first: int, end: int) -> tuple[int, int]:
        """Where the items from ``first`` to below ``end`` begin and end in the file, in bytes."""
        return HEADER_BYTES + first * self.dtype.itemsize, HEADER_BYTES + end * self.dtype.itemsize

    @property
    def capacity(self) -> int:
        return (self.region.allocated_bytes - HEADER_BYTES) // self.dtype.itemsize

    def ensure(self, items: int) -> None:
        """Makes room for ``items``. Raises ``DiskFull``."""
        self.region.ensure(HEADER_BYTES + items * self.dtype.itemsize)

    def start_at(self, item: int) -> None:
        """In a new table: items below are gone for good, and take no disk space."""
        if self.is_new:
            self.region.start_at(HEADER_BYTES + item * self.dtype.itemsize)

    def leave_to(self, item: int) -> None:
        """Items behind those that there is room for, up to this one, take no disk space and are never written."""
        self.region.start_at(HEADER_BYTES + item * self.dtype.itemsize)

    def pages_of(self, items: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """The numbers of the file's pages that hold these items."""
        size = np.uint64(self.dtype.itemsize)
        first = (items * size + np.uint64(HEADER_BYTES)) // np.uint64(PAGE_BYTES)
        last = (items * size + np.uint64(HEADER_BYTES + self.dtype.itemsize - 1)) // np.uint64(PAGE_BYTES)
        return np.unique(np.concatenate([first, last]))
