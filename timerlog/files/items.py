"""The items of a table of which only those from one on have addresses: the others are gone, and read as zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from timerlog.layout import Array

Numbers: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Items:
    """``array`` begins with item 0, wherever that would be; only items from ``start`` on may be looked at in it."""

    array: Array
    start: int

    def __len__(self) -> int:
        return len(self.array)

    def take(self, numbers: Numbers, field: str | None = None) -> Array:
        """Copies of items, or of one of their fields."""
        column = self.array if field is None else self.array[field]
        if not self.start or not len(numbers) or int(numbers.min()) >= self.start:
            taken: Array = column[numbers]
            return taken
        found, there = np.zeros(len(numbers), column.dtype), np.flatnonzero(numbers >= self.start)
        found[there] = column[numbers[there]]
        return found

    def take_below(self, end: int, numbers: Numbers, field: str | None = None) -> Array:
        """As ``take``; zeros of items from ``end`` on."""
        is_below = numbers < end
        if is_below.all():
            return self.take(numbers, field)
        dtype = self.array.dtype if field is None else self.array[field].dtype
        found, there = np.zeros(len(numbers), dtype), np.flatnonzero(is_below)
        found[there] = self.take(numbers[there], field)
        return found

    def at(self, number: int) -> Any:
        """A copy of one item."""
        return self.take(np.array([number], np.int64))[0]

    def between(self, first: int, end: int) -> Array:
        """The items from ``first`` to below ``end``, not copied where all have addresses."""
        if first >= self.start:
            return self.array[first:end]
        found = np.zeros(max(0, end - first), self.array.dtype)
        if end > self.start:
            found[self.start - first :] = self.array[self.start : end]
        return found
