"""Parts of a list, in order of names or of ids."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from tickwheel import BrowsedMessage
from tickwheel.errors import BadArgument
from tickwheel_web.shapes import MAX_ID_DIGITS, PageQuery

T = TypeVar("T")

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_PLACE: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")


def place_of(cursor: str) -> str:
    """The place that a cursor stands for; empty: the beginning. Raises BadArgument."""
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadArgument("after is no cursor.", advice="Use next of the part before.") from None


def id_of(cursor: str) -> int:
    """The message behind which a part of a list begins; 0: the beginning. Raises BadArgument."""
    place = place_of(cursor)
    if place and not (place.isascii() and place.isdecimal() and len(place) <= MAX_ID_DIGITS):
        raise BadArgument("after is no cursor.", advice="Use next of the part before.")
    return int(place or "0")


def cursor_of(place: str) -> str:
    """What clients are to give back."""
    return base64.urlsafe_b64encode(place.encode()).decode()


def place_cursor(place: tuple[int, int]) -> str:
    """The same for a place in the broker's log."""
    return cursor_of(".".join(map(str, place)))


def place_in_log(cursor: str) -> tuple[int, int]:
    """The place in the broker's log that a cursor stands for. Raises BadArgument."""
    place = _PLACE.fullmatch(place_of(cursor))
    if place is None:
        raise BadArgument("after is no place in the log.", advice="Use next of the answer before.")
    return int(place[1]), int(place[2])


def before_of(cursor: str) -> tuple[int, int] | None:
    """The same; None: it is empty. Raises BadArgument."""
    return place_in_log(cursor) if cursor else None


def page(rows: Sequence[T], name: Callable[[T], str], query: PageQuery) -> tuple[list[T], str | None]:
    """The rows behind the cursor in order of their names, and the next cursor. Raises BadArgument."""
    after = place_of(query.after)
    rest = sorted((row for row in rows if name(row) > after), key=name)
    chosen = rest[: query.limit]
    return chosen, cursor_of(name(chosen[-1])) if len(rest) > len(chosen) else None


async def page_of_ids(
    browse: Callable[..., Awaitable[list[BrowsedMessage]]],
    after: str,
    limit: int,
    *,
    has_bodies: bool,
    **where: Any,
) -> tuple[list[BrowsedMessage], str | None]:
    """The messages behind the cursor, as many as fit into an answer of the broker, so it may be fewer than ``limit``;
    and the next cursor. Raises BadArgument."""
    max_body_bytes = MAX_BODY_BYTES if has_bodies else 0
    found = await browse(after_id=id_of(after), limit=limit, max_body_bytes=max_body_bytes, **where)
    if found and await browse(after_id=found[-1].id, limit=1, max_body_bytes=0, **where):
        return found, cursor_of(str(found[-1].id))
    return found, None
