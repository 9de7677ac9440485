"""The key index: which message of a topic has a key.

1,024 partitions by the first bits of the key's hash; each is an open-addressed table with linear probing (Knuth, The
Art of Computer Programming, volume 3, 6.4, algorithm L) in one file, ``keys.index``. A partition that is three quarters
full is doubled by itself, elsewhere in the file, so that no send waits for more than a 1,024th of the index; what it
leaves behind goes back to the disk. An entry says "maybe": the row and the key in the CommitLog decide. The entries
themselves are written by C (``native/keys.c``); this class gives them room.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tickwheel_native import keys
from timerlog.errors import NoAddressSpace, StoreError
from timerlog.files.held_space import Lender
from timerlog.files.mapped_file import Region
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import KEY_PARTITIONS

_FIRST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 1 << 40


class KeyIndex:
    """The index of one store; ``native`` is the ``tw_store`` through which C finds it."""

    def __init__(self, path: Path | None, native: Any, lender: Lender | None = None) -> None:
        self._native = native
        self.region = Region(path=path, room_bytes=_MOST_BYTES, lender=lender)
        if self.region.allocated_bytes == 0:
            try:
                self.region.ensure(_FIRST_BYTES)
            except BaseException:
                self.region.close()
                raise
            keys.init(self.region.pointer)
        keys.attach(native, self.region.pointer, self.region.allocated_bytes)

    @property
    def is_worn(self) -> bool:
        """Whether so many partitions were left behind that there are few places for others: what is made anew begins
        at the start of its file."""
        return keys.bytes_to_resize(self._native, 0) > _MOST_BYTES // 2

    def clear(self) -> None:
        """An empty index, in a file that is allocated anew: parts of the old one were given back to the disk."""
        self.region.clear()
        self._ensure(_FIRST_BYTES)
        keys.init(self.region.pointer)

    def grow(self, partition: int) -> None:
        """Doubles one partition. Raises ``DiskFull``."""
        assert 0 <= partition < KEY_PARTITIONS, "what grows is a partition"
        self._ensure(keys.bytes_to_grow(self._native, partition))
        left = keys.grow(self._native, partition)
        if left is None:
            raise StoreError("the key index did not grow")
        self.free([_pages(*left)])

    def shrink(self, partition: int) -> None:
        """Makes a partition smaller if few entries are left in it. Raises ``DiskFull``."""
        capacity = keys.fitting(self._native, partition)
        if capacity:
            self.free([self._resize(partition, capacity)])

    def expect(self, partition: int, more: int) -> tuple[int, int]:
        """Makes a partition large enough for so many keys more, at once. What is left of the old one is to be freed by
        ``free``, which may wait for the disk. Raises ``DiskFull``."""
        assert 0 <= partition < KEY_PARTITIONS, "keys are expected in a partition"
        capacity = keys.capacity_for(self._native, partition, more)
        return self._resize(partition, capacity) if capacity else (0, 0)

    def free(self, left: Iterable[tuple[int, int]]) -> None:
        """Gives the disk back what partitions have left behind: nothing lies there again. Safe in another thread."""
        for start, end in left:
            if end > start:
                self.region.free(start, end)

    def close(self) -> None:
        self.region.close()

    def _resize(self, partition: int, capacity: int) -> tuple[int, int]:
        assert capacity & (capacity - 1) == 0, (
            "a partition's capacity is a power of two: probing wraps by a mask"
        )
        self._ensure(keys.bytes_to_resize(self._native, capacity))
        left = keys.resize(self._native, partition, capacity)
        if left is None:
            raise StoreError("a part of the key index could not be made larger or smaller")
        return _pages(*left)

    def _ensure(self, size_bytes: int) -> None:
        """Disk blocks first: C writes only into what is allocated. Raises ``DiskFull``."""
        try:
            self.region.ensure(size_bytes)
        except NoAddressSpace as error:
            error.advice = (
                "Start the broker again: that makes the index of keys anew, in which most is left behind."
            )
            raise
        self._native.keys_allocated = self.region.allocated_bytes


def _pages(offset: int, size_bytes: int) -> tuple[int, int]:
    """Where the whole pages begin and end in a range."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES, (offset + size_bytes) // PAGE_BYTES * PAGE_BYTES
