"""What somebody may see of the tables: the topics that he may query, and bodies of the topics that he may consume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from tickwheel.arrow.predicates import Predicate
from tickwheel.errors import Forbidden
from tickwheel.protocol.grants import Granted
from timerlog.readers.describe import Offline

BODY = "body"


class Sight:
    """Of one reader, in one directory."""

    def __init__(self, granted: Granted, offline: Offline, filters: Iterable[Predicate]) -> None:
        """``filters``: of the reading; a body counts as hidden only where they let its topic pass."""
        self._sees_all = granted.may_everywhere("query")
        names = sorted(topic.name for topic in offline.description.topics)
        self._visible = names if self._sees_all else [name for name in names if granted.may("query", name)]
        self._without_body = (
            ()
            if granted.may_everywhere("consume")
            else tuple(name for name in _passing(self._visible, filters) if not granted.may("consume", name))
        )

    def columns(self, columns: Sequence[str], *, are_chosen: bool) -> tuple[str, ...]:
        """Those that may be read. Raises Forbidden where a body was asked for by name, and may not be read."""
        if BODY not in columns or not self._without_body:
            return tuple(columns)
        if are_chosen:
            raise Forbidden(
                f"The column body needs the right to consume each topic that is read, and {self._without_body[0]!r} "
                "may not be consumed.",
                advice="Leave out body, choose topics by filters, or have the right granted: consume:TOPIC.",
            )
        return tuple(name for name in columns if name != BODY)

    @property
    def predicates(self) -> list[Predicate]:
        """What each row must meet besides."""
        return [] if self._sees_all else [Predicate("topic", "is_in", self._visible)]


def _passing(names: list[str], filters: Iterable[Predicate]) -> list[str]:
    """The names that all conditions on the column topic let pass."""
    array = pa.array(names, pa.string())
    for one in filters:
        if one.column == "topic" and len(array):
            array = array.filter(pa.array(one.passes(array)))
    found: list[str] = array.to_pylist()
    return found
