"""What a subscription says about the messages it wants, and the filter that is made of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Protocol

from tickwheel_gateway.filters.conditions import Decide, decide
from tickwheel_gateway.filters.conversions import NotConvertible
from tickwheel_gateway.filters.refusals import REFUSED, refusal
from tickwheel_gateway.filters.syntax import parse
from tickwheel_gateway.filters.tags import tag_filter
from tickwheel_gateway.wire.codes import Refused

MAX_BYTES: Final = 16 * 1_024
"""Of an expression."""
MAX_KEPT: Final = 1_000
"""Compiled filters."""
MAX_KEPT_CHARACTERS: Final = 1 << 20
"""Of the expressions of them all: a compiled filter takes much more memory than its text."""
_TAGS: Final = "TAGS"


class FilterType(IntEnum):
    """Of an expression. Whatever else a client says is TAG to RocketMQ."""

    TAG = 1
    SQL = 2


class Filter(Protocol):
    """Which messages are wanted."""

    def matches(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Never raises. ``properties``: those of the user, and what an expression may name besides them (KEYS, …).

        TAGS is ``tag``, and need not be among them.
        """
        ...


class SqlFilter:
    """A filter by a condition over properties."""

    __slots__ = ("_decide", "_may_name_tags")

    def __init__(self, condition: Decide, may_name_tags: bool) -> None:
        self._decide = condition
        self._may_name_tags = may_name_tags

    def matches(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """False for what is unknown, and where a value is not what it is compared with."""
        if self._may_name_tags and tag is not None:
            properties = {**properties, _TAGS: tag}
        try:
            return self._decide(properties) is True
        except NotConvertible:
            return False


def compile_filter(filter_type: int, text: str) -> Filter:
    """Raises Refused with code 40010.

    >>> wanted = compile_filter(FilterType.SQL, "colour IN ('red', 'blue') AND size > 5")
    >>> wanted.matches(None, {"colour": "red", "size": "6"})
    True
    >>> wanted.matches(None, {"colour": "red", "size": "large"})
    False
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise refusal(f"more than {MAX_BYTES} bytes")
    if filter_type != FilterType.SQL:
        return tag_filter(text)
    return SqlFilter(decide(parse(text)), may_name_tags=_TAGS in text)


class Filters:
    """Filters by what they were made of. The one that was not asked for the longest makes room for a new one.

    What was refused is kept as well: clients ask again and again.
    """

    def __init__(self, most: int = MAX_KEPT, most_characters: int = MAX_KEPT_CHARACTERS) -> None:
        self._most = most
        self._most_characters = most_characters
        self._kept: OrderedDict[tuple[bool, str], Filter | str] = OrderedDict()
        self._characters = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, filter_type: int, text: str) -> Filter:
        """Raises Refused with code 40010."""
        key = (filter_type == FilterType.SQL, text)
        found = self._kept.get(key)
        if found is None:
            found = _made(filter_type, text)
            if len(text) <= MAX_BYTES:
                self._keep(key, found)
        else:
            self._kept.move_to_end(key)
        if isinstance(found, str):
            raise refusal(found)
        return found

    def _keep(self, key: tuple[bool, str], made: Filter | str) -> None:
        self._kept[key] = made
        self._characters += len(key[1])
        while len(self._kept) > self._most or self._characters > self._most_characters:
            (_, text), _ = self._kept.popitem(last=False)
            self._characters -= len(text)


def _made(filter_type: int, text: str) -> Filter | str:
    """The filter, or why there is none."""
    try:
        return compile_filter(filter_type, text)
    except Refused as error:
        return error.text.removeprefix(REFUSED)
