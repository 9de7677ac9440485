"""The body of QUERY. Its answer is a map: columns (name, type), rows, and whether there were more (truncated)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from tickwheel.protocol.bodies import Request
from tickwheel.protocol.frames import FrameType


class Query(Request, frozen=True):
    """QUERY: one SELECT over the topics."""

    sql: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 25_000


REQUESTS: Final[dict[FrameType, type[Request]]] = {FrameType.QUERY: Query}
