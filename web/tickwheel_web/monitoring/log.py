"""What happens at the broker, from its log, a piece at a time."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from tickwheel_web.endpoints import Asked, json
from tickwheel_web.monitoring.shapes import LogEntries, LogEntry
from tickwheel_web.paging import place_cursor, place_in_log


async def list_log(asked: Asked) -> Response:
    """From its beginning, or behind a place; asked again with `next`, it is followed."""
    found = await asked.client.events(_start(asked.query.after), limit=asked.query.limit)
    entries = [LogEntry.of(one) for one in found.events]
    return json(LogEntries(entries, place_cursor(found.next), found.more, found.has_gap))


def _start(after: str) -> Literal["earliest", "latest"] | tuple[int, int]:
    """Raises BadArgument."""
    if after in ("", "latest"):
        return "latest" if after else "earliest"
    return place_in_log(after)
