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
    """Of one reader, in one directory. The names of topics are looked at only where rights depend on them: there may
    be very many."""

    def __init__(self, granted: Granted, offline: Offline, filters: Iterable[Predicate]) -> None:
        """``filters``: of the reading; a body counts as hidden only where they let its topic pass."""
        self._granted = granted
        self._offline = offline
        self._filters = filters

    def columns(self, columns: Sequence[str], *, are_chosen: bool) -> tuple[str, ...]:
        """Those that may be read. Raises Forbidden where a body was asked for by name, and may not be read."""
        hidden = self._without_body() if BODY in columns else None
        if hidden is None:
            return tuple(columns)
        if are_chosen:
            raise Forbidden(
                f"The column body needs the right to consume each topic that is read, and {hidden!r} "
                "may not be consumed.",
                advice="Leave out body, choose topics by filters, or have the right granted: consume:TOPIC.",
            )
        return tuple(name for name in columns if name != BODY)

    @property
    def predicates(self) -> list[Predicate]:
        """What each row must meet besides."""
        if self._granted.may_everywhere("query"):
            return []
        return [Predicate("topic", "is_in", self.visible())]

    def visible(self) -> list[str]:
        """The names of the topics that he may query, in order."""
        names = sorted(topic.name for topic in self._offline.description.topics)
        if self._granted.may_everywhere("query"):
            return names
        return [name for name in names if self._granted.may("query", name)]

    def _without_body(self) -> str | None:
        """The first topic that is read, and whose bodies may not be."""
        if self._granted.may_everywhere("consume"):
            return None
        passing = _passing(self.visible(), self._filters)
        return next((name for name in passing if not self._granted.may("consume", name)), None)


def _passing(names: list[str], filters: Iterable[Predicate]) -> list[str]:
    """The names that all conditions on the column topic let pass."""
    array = pa.array(names, pa.string())
    for one in filters:
        if one.column == "topic" and len(array):
            array = array.filter(pa.array(one.passes(array)))
    found: list[str] = array.to_pylist()
    return found
