"""Times without a zone as instants, for who says in which zone they are meant."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from tickwheel.arrow.errors import SourceError

_EPOCH: Final = datetime(1970, 1, 1)
_SECOND_US: Final = 1_000_000
_FIRST_S: Final = (datetime.min - _EPOCH) // timedelta(seconds=1)
_LAST_S: Final = (datetime.max - _EPOCH) // timedelta(seconds=1)

Micros = npt.NDArray[np.int64]


def zone_of(name: object) -> ZoneInfo:
    """The zone with this IANA name. Raises ``SourceError``."""
    advice = "Use an IANA name: --tz Europe/Berlin (tz='Europe/Berlin'), or UTC."
    if not isinstance(name, str):
        raise SourceError(f"tz is {name!r}.", advice=advice)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SourceError(f"There is no time zone {name!r}.", advice=advice) from None


def instants(local_us: Any, zone: ZoneInfo) -> Micros:
    """Microseconds since 1970 in UTC, of local ones since 1970. Of a time that comes twice the first is meant; a time
    that is skipped is as much later as clocks are put forward. Zones have no say before the year 1 and after 9999."""
    local_us = np.asarray(local_us, np.int64)
    seconds, places = np.unique(local_us // _SECOND_US, return_inverse=True)
    offsets_us = np.array([_offset_us(second, zone) for second in seconds.tolist()], np.int64)
    found: Micros = local_us if not len(seconds) else local_us - offsets_us[places.reshape(-1)]
    return found


def _offset_us(local_s: int, zone: ZoneInfo) -> int:
    if not _FIRST_S <= local_s <= _LAST_S:
        return 0
    offset = zone.utcoffset(_EPOCH + timedelta(seconds=local_s))
    return 0 if offset is None else offset // timedelta(microseconds=1)
