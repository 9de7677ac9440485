"""A table: an array of items of one size in a mapped file that C and numpy share.

The item's number is its place, so nothing is searched. The table grows at its end; items at its start go for good when
what they say is purged, page by page, and then read as zeros; from the next move on they have no addresses either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from timerlog.errors import StoreError
from timerlog.files.held_space import Lender
from timerlog.files.items import Items, Numbers
from timerlog.files.mapped_file import SMALLEST_STEP_BYTES, Region, first_item
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import FORMAT_VERSION, HEADER_BYTES, TABLE_HEADER, Array


class Table:
    """An array of fixed-size items behind a header page that names the format and the log it belongs to."""

    def __init__(
        self,
        *,
        path: Path | None,
        magic: bytes,
        dtype: np.dtype[Any],
        log_id: int,
        room_bytes: int,
        lender: Lender | None = None,
        gaps: Sequence[tuple[int, int]] = (),
        first: int = 0,
        lowest: Callable[[], int] | None = None,
        moved: Callable[[], None] | None = None,
    ) -> None:
        """``gaps``: from, to below which there are no items. ``first``: the first item that is not gone; ``lowest``
        says later which one is, and ``moved`` is called when all items have other addresses. See ``Region``."""
        self.dtype = dtype
        self._moved = moved
        self.region = Region(
            path=path,
            room_bytes=room_bytes,
            lender=lender,
            never_used=[self.span(*gap) for gap in gaps],
            first=self.span(first, first)[0] if first else 0,
            lowest=None if lowest is None else lambda: self.span(lowest(), 0)[0],
            moved=self._tell,
        )
        self._all = self._look()
        header = TABLE_HEADER.pack(magic, FORMAT_VERSION, dtype.itemsize, log_id)
        try:
            self.is_new = self.region.allocated_bytes == 0 or self._is_only_begun()
            self.region.ensure(HEADER_BYTES)
            if self.is_new:
                self.region.write(0, header)
            elif self.region.read(0, len(header)) != header:
                raise StoreError(f"{path} does not belong to this log")
        except BaseException:
            self.region.close()
            raise

    def _is_only_begun(self) -> bool:
        """Whether its creation was interrupted: the file has its first blocks, and no header yet."""
        size_bytes = self.region.allocated_bytes
        return size_bytes <= SMALLEST_STEP_BYTES and not any(self.region.read(0, size_bytes))

    def _look(self) -> Items:
        count = (self.region.end - HEADER_BYTES) // self.dtype.itemsize
        first = first_item(self.region.start, self.dtype.itemsize)
        return Items(self.region.array(self.dtype, HEADER_BYTES, count), first)

    def _tell(self) -> None:
        self._all = self._look()
        if self._moved is not None:
            self._moved()

    @property
    def items(self) -> Array:
        """All items that there are addresses for: touch only those from ``start`` to below ``capacity``, and ask for
        the array each time. After a move it is another one."""
        return self._all.array

    @property
    def address(self) -> int:
        """Where item 0 would be; another place after a move."""
        return (self.region.address + HEADER_BYTES) % (1 << 64)

    @property
    def start(self) -> int:
        """The first item that has an address: those before it are gone."""
        return self._all.start

    @property
    def near(self) -> int:
        """So many items have addresses without a move."""
        return (self.region.near - HEADER_BYTES) // self.dtype.itemsize

    def span(self, first: int, end: int) -> tuple[int, int]:
        """Where the items from ``first`` to below ``end`` begin and end in the file, in bytes."""
        return HEADER_BYTES + first * self.dtype.itemsize, HEADER_BYTES + end * self.dtype.itemsize

    def items_of(self, start: int, end: int) -> tuple[int, int]:
        """The items, from and to below, of which a part lies in these bytes of the file."""
        size = self.dtype.itemsize
        return max(0, start - HEADER_BYTES) // size, -(-max(0, end - HEADER_BYTES) // size)

    @property
    def capacity(self) -> int:
        return (self.region.allocated_bytes - HEADER_BYTES) // self.dtype.itemsize

    def take(self, numbers: Numbers, field: str | None = None) -> Array:
        """Copies of items below ``capacity``, or of one of their fields: zeros of those that have no addresses any
        more. So are ``at`` and ``between``."""
        return self._all.take(numbers, field)

    def take_reached(self, numbers: Numbers, field: str | None = None) -> Array:
        """As ``take``; zeros also of items that the table does not reach."""
        return self._all.take_below(self.capacity, numbers, field)

    def at(self, number: int) -> Any:
        return self._all.at(number)

    def between(self, first: int, end: int) -> Array:
        return self._all.between(first, end)

    def ensure(self, items: int) -> None:
        """Makes room for ``items``. Raises ``DiskFull``."""
        self.region.ensure(HEADER_BYTES + items * self.dtype.itemsize)

    def reach(self, items: int) -> None:
        """Gives ``items`` addresses. Raises ``NoAddressSpace``."""
        self.region.reach(HEADER_BYTES + items * self.dtype.itemsize)

    def reach_down(self, item: int) -> None:
        """Gives the items from this one on addresses. Raises ``NoAddressSpace``."""
        if item < self.start:
            self.region.reach_down(HEADER_BYTES + item * self.dtype.itemsize)
            assert self.start <= item, "what was asked for has an address"

    def start_at(self, item: int) -> None:
        """In a new table: items below are gone for good, and take no disk space."""
        if self.is_new:
            self.region.start_at(HEADER_BYTES + item * self.dtype.itemsize)

    def leave_to(self, item: int) -> None:
        """Items behind those that there is room for, up to this one, take no disk space and are never written."""
        self.region.leave_to(HEADER_BYTES + item * self.dtype.itemsize)

    def pages_of(self, items: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """The numbers of the file's pages that hold these items."""
        size = np.uint64(self.dtype.itemsize)
        first = (items * size + np.uint64(HEADER_BYTES)) // np.uint64(PAGE_BYTES)
        last = (items * size + np.uint64(HEADER_BYTES + self.dtype.itemsize - 1)) // np.uint64(PAGE_BYTES)
        return np.unique(np.concatenate([first, last]))
