"""Times that are texts, a column at a time: ISO 8601 with a zone, or epoch milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tickwheel.protocol import moments as protocol
from tickwheel.spark.writing.zones import instants

GOOD: Final = 0
NAIVE: Final = 1
UNREADABLE: Final = 2
NUMBER: Final = 3
"""A time that is a bare number, so of milliseconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = r"^\d{4}-\d{2}-\d{2}"
_ZONED: Final = _DAY + r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}(:?\d{2})?)$"
_WITHOUT: Final = _DAY + r"([T ]\d{2}(:\d{2}(:\d{2}([.,]\d{1,9})?)?)?)?$"
_NUMBER: Final = r"^[+-]?\d{1,18}$"

States = npt.NDArray[np.uint8]


def parse_moments(column: Any, zone: ZoneInfo | None = None) -> tuple[npt.NDArray[np.int64], States]:
    """Milliseconds since 1970, rounded up, and what the texts are; 0 and ``GOOD`` for NULL. ``zone``: of texts that
    name none."""
    texts = pc.utf8_trim_whitespace(column)
    times_ms, states = np.zeros(len(texts), np.int64), np.full(len(texts), UNREADABLE, np.uint8)
    states[~np.asarray(texts.is_valid())] = GOOD
    is_zoned = _matches(texts, _ZONED)
    if is_zoned.any():
        micros = _micros(texts, is_zoned)
        if micros is None:
            is_zoned[:] = False  # one of them is no time after all: all of them go one by one
        else:
            times_ms[is_zoned] = -(-micros[is_zoned] // 1_000)
            states[is_zoned] = GOOD
    is_number = _matches(texts, _NUMBER)
    if is_number.any():
        numbers = pc.if_else(pa.array(is_number), pc.utf8_ltrim(texts, "+"), None).cast(pa.int64())
        times_ms[is_number] = np.asarray(numbers.fill_null(0))[is_number]
        states[is_number] = NUMBER
    is_naive = _matches(texts, _WITHOUT)
    states[is_naive] = NAIVE
    if zone is not None and is_naive.any() and (micros := _micros(texts, is_naive, None)) is not None:
        times_ms[is_naive] = -(-instants(micros[is_naive], zone) // 1_000)
        states[is_naive] = GOOD
    slow = states == UNREADABLE if zone is None else (states == UNREADABLE) | (states == NAIVE)
    for place in np.flatnonzero(slow).tolist():
        times_ms[place], states[place] = parse_moment(texts[place].as_py(), zone)
    return times_ms, states


def _matches(texts: Any, pattern: str) -> npt.NDArray[np.bool_]:
    return np.array(pc.match_substring_regex(texts, pattern).fill_null(False))


def _micros(
    texts: Any, wanted: npt.NDArray[np.bool_], zone: str | None = "UTC"
) -> npt.NDArray[np.int64] | None:
    try:
        found = pc.if_else(pa.array(wanted), texts, None).cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:
        return None
    return np.asarray(found.cast(pa.int64()).fill_null(0))


def parse_moment(text: str, zone: ZoneInfo | None = None) -> tuple[int, int]:
    """One time, in any form of ISO 8601 that Python knows: (milliseconds, state)."""
    try:
        moment = protocol.parse_moment(text)
        if moment.utcoffset() is None:
            if zone is None:
                return 0, NAIVE
            local_us = (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
            return -(-int(instants([local_us], zone)[0]) // 1_000), GOOD
        micros = (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return 0, UNREADABLE
    return -(-micros // 1_000), GOOD
