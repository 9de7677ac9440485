"""A checksum of rows that does not depend on their order: the sum of a 64-bit hash of each row, over all its columns.

The source's rows give it before they are written, and those that are read back give it again, in whatever order and
batches. Names and bytes are hashed with SipHash (of pandas), numbers with the finisher of SplitMix64.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

_GOLDEN: Final = 0x9E3779B97F4A7C15
_NULL: Final = np.uint64(0x6E756C6C6E756C6C)
_MASK: Final = (1 << 64) - 1


def checksum(batch: Any) -> int:
    """Of a record batch or a table: the sum of its rows' hashes, modulo 2 to the 64th."""
    if isinstance(batch, pa.Table):
        return sum(checksum(part) for part in batch.to_batches()) & _MASK
    return int(row_hashes([batch.column(number) for number in range(batch.num_columns)], len(batch)).sum())


def combined(checksums: list[int]) -> int:
    """That of all rows together."""
    return sum(checksums) & _MASK


def row_hashes(columns: list[Any], rows: int) -> Hashes:
    """A hash of each row; the place of a column counts, its name does not."""
    hashes = np.zeros(rows, np.uint64)
    for number, column in enumerate(columns, 1):
        hashes = _mixed(hashes ^ _mixed(_of_column(column) + np.uint64(number * _GOLDEN & _MASK)))
    return hashes


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _of_column(column: Any) -> Hashes:
    kind = column.type
    if pa.types.is_list(kind):
        hashes = _of_lists(column)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _of_texts(column)
    else:
        numbers = column.cast(pa.int64()) if pa.types.is_integer(kind) else column.view(pa.int64())
        hashes = _mixed(numbers.fill_null(0).to_numpy().view(np.uint64))
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _of_texts(column: Any) -> Hashes:
    from pandas.util import hash_array

    texts = column.cast(pa.binary()).fill_null(b"").to_numpy(zero_copy_only=False)
    hashes: Hashes = hash_array(texts, categorize=False)
    return hashes


def _of_lists(column: Any) -> Hashes:
    """Items are structs, and their order counts."""
    sizes = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    items = column.flatten()
    places = np.arange(len(items), dtype=np.int64) - np.repeat(ends - sizes, sizes)
    hashes = _mixed(row_hashes(items.flatten(), len(items)) + _mixed(places.view(np.uint64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    return _mixed(sums[ends] - sums[ends - sizes] + _mixed(sizes.view(np.uint64)))
