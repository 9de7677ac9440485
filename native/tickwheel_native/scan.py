"""``scan.h``: reading a log from outside; the caller knows that the bytes exist."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickwheel_native._native import ffi, lib
from tickwheel_native.memory import Address

#: Why a scan stops besides what ``log.verify`` says: there is no room for more positions.
FULL: Final = lib.TW_READ_FULL


def _numbers(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> Any:
    assert values.itemsize == 8
    return ffi.from_buffer("uint64_t[]", np.ascontiguousarray(values))


def scan(
    base: Address, position: int, end: int, wanted: bytes, into: npt.NDArray[np.uint64]
) -> tuple[int, int, int]:
    """Checks records and notes in ``into`` where those of a wanted type lie: (where it stopped, how many, why)."""
    found, reason = ffi.new("uint64_t *"), ffi.new("int32_t *")
    log, positions = ffi.cast("const uint8_t *", base), ffi.from_buffer("uint64_t[]", into)
    stop = lib.tw_log_scan(log, position, end, wanted, len(into), positions, found, reason)
    return stop, int(found[0]), int(reason[0])


def gather(
    base: Address, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], into: npt.NDArray[np.uint8]
) -> None:
    """Copies pieces of the log, one behind the other."""
    target = ffi.from_buffer("uint8_t[]", into)
    lib.tw_gather(ffi.cast("const uint8_t *", base), _numbers(starts), _numbers(sizes), len(starts), target)


def check_records(
    base: Address,
    positions: npt.NDArray[np.int64] | npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.int64] | npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    """Whether the bytes of each record match its checksum."""
    right = np.empty(len(positions), np.uint8)
    log, target = ffi.cast("const uint8_t *", base), ffi.from_buffer("uint8_t[]", right)
    lib.tw_check_records(log, _numbers(positions), _numbers(sizes), len(positions), target)
    return right.astype(bool)


def message_parts(
    base: Address,
    ids: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """(whether the record at its position is a message's, how long its key, headers, ordering key and body are). Where
    a size is 0 nothing is looked at."""
    count = len(ids)
    is_whole, lengths = np.empty(count, np.uint8), np.empty((4, count), np.int64)
    lib.tw_message_parts(
        ffi.cast("const uint8_t *", base), _numbers(ids), _numbers(positions), _numbers(sizes), count,
        ffi.from_buffer("uint8_t[]", is_whole), ffi.from_buffer("int64_t[]", lengths),
    )  # fmt: skip
    return is_whole.view(np.bool_), lengths
