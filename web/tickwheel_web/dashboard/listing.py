"""Lists of what has a name: those that have a text in them, a part after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, NamedTuple, TypeVar

from msgspec import Meta

from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.paging import page
from tickwheel_web.shapes import PageQuery

T = TypeVar("T")


class Asked(PageQuery, forbid_unknown_fields=True, frozen=True):
    """A part of those that have a text in them."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    search: Annotated[str, Meta(max_length=255)] = ""


class Listed(NamedTuple, Generic[T]):
    """One part."""

    rows: Sequence[T]
    following: str | None
    """Where the next one begins; None: there is none."""
    matching: int
    total: int


def listed(
    viewed: Viewed, everything: Sequence[T], name: Callable[[T], str], text: Callable[[T], str] | None = None
) -> Listed[T]:
    """In order of names. ``text``: what is searched; the name, where nothing else is said. Raises BadArgument."""
    search = viewed.query.search.strip().lower()
    matching = [one for one in everything if search in (text or name)(one).lower()]
    rows, following = page(matching, name, viewed.query)
    return Listed(rows, following, len(matching), len(everything))
