"""All endpoints: those of each room."""

from __future__ import annotations

from typing import Any, Final

import msgspec

import tickwheel_web.consuming.shapes
import tickwheel_web.consuming.table
import tickwheel_web.messages.shapes
import tickwheel_web.messages.table
import tickwheel_web.monitoring.shapes
import tickwheel_web.monitoring.table
import tickwheel_web.push.shapes
import tickwheel_web.push.table
import tickwheel_web.querying.table
import tickwheel_web.schedules.shapes
import tickwheel_web.schedules.table
import tickwheel_web.topics.shapes
import tickwheel_web.topics.table
import tickwheel_web.transactions.shapes
import tickwheel_web.transactions.table
from tickwheel_web.endpoints import Endpoint

_ROOMS: Final = (
    tickwheel_web.messages,
    tickwheel_web.consuming,
    tickwheel_web.transactions,
    tickwheel_web.topics,
    tickwheel_web.schedules,
    tickwheel_web.push,
    tickwheel_web.monitoring,
    tickwheel_web.querying,
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = tuple(row for room in _ROOMS for row in room.table.ENDPOINTS)

SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    **tickwheel_web.messages.shapes.SAID_BY_HAND,
    **tickwheel_web.consuming.shapes.SAID_BY_HAND,
    **tickwheel_web.schedules.shapes.SAID_BY_HAND,
    **tickwheel_web.push.shapes.SAID_BY_HAND,
    **tickwheel_web.transactions.shapes.SAID_BY_HAND,
    **tickwheel_web.topics.shapes.SAID_BY_HAND,
    **tickwheel_web.monitoring.shapes.SAID_BY_HAND,
}
"""Of the schemas of shapes, what msgspec cannot say."""
