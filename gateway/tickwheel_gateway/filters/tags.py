"""The filter by tags: ``a || b``, or ``*``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tickwheel_gateway.filters.refusals import refusal

ALL: Final = "*"
_SEPARATOR: Final = "||"
_BLANK: Final = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` takes away."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Whole tags are compared, as RocketMQ's proxy does; its broker compares their hashes."""

    tags: frozenset[str] | None
    """None: every message, also one without a tag."""

    def matches(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """``properties`` do not matter; the parameter is there because all filters are called alike."""
        return self.tags is None or tag in self.tags


def tag_filter(text: str) -> TagFilter:
    """Raises Refused for a text of separators alone, as RocketMQ does.

    ``*`` means all only where it stands alone. Blanks between separators are no tag and no ``*``: what has
    nothing else matches nothing.

    >>> sorted(tag_filter(" a ||b|| ").tags)
    ['a', 'b']
    >>> tag_filter("").tags is None
    True
    """
    if text in {"", ALL}:
        return TagFilter(None)
    parts = text.split(_SEPARATOR)
    if not any(parts):
        raise refusal("separators without a tag")
    return TagFilter(frozenset(tag for part in parts if (tag := part.strip(_BLANK))))
