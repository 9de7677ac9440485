"""Lists of what has a name: those that have a text in them, a part after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Generic, NamedTuple, TypeVar

from msgspec import Meta

from tickwheel.errors import BadArgument
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.paging import page
from tickwheel_web.shapes import PageQuery

T = TypeVar("T")


class Asked(PageQuery, forbid_unknown_fields=True, frozen=True):
    """A part of those that have a text in them."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    search: Annotated[str, Meta(max_length=255)] = ""
    order: Annotated[str, Meta(max_length=30)] = ""
    """The column by which it is ordered, the largest first; empty: the name."""


class Listed(NamedTuple, Generic[T]):
    """One part."""

    rows: Sequence[T]
    following: str | None
    """Where the next one begins; None: there is none."""
    matching: int
    total: int
    order: str = ""


def listed(
    viewed: Viewed,
    everything: Sequence[T],
    name: Callable[[T], str],
    text: Callable[[T], str] | None = None,
    orders: Mapping[str, Callable[[T], float]] | None = None,
) -> Listed[T]:
    """In order of names, or of one of several columns, the largest first. ``text``: what is searched; the name, where
    nothing else is said. Raises BadArgument."""
    search, order = viewed.query.search.strip().lower(), viewed.query.order
    matching = [one for one in everything if search in (text or name)(one).lower()]
    if not order:
        rows, following = page(matching, name, viewed.query)
        return Listed(rows, following, len(matching), len(everything))
    if order not in (orders or {}):
        raise BadArgument(
            f"The list has no order {order!r}.", advice=f"Use one of {', '.join(orders or ['name'])}."
        )
    assert orders is not None
    value = orders[order]
    places = {
        name(one): place
        for place, one in enumerate(sorted(matching, key=lambda one: (-value(one), name(one))))
    }
    rows, following = page(matching, lambda one: f"{places[name(one)]:08}", viewed.query)
    return Listed(rows, following, len(matching), len(everything), order)
