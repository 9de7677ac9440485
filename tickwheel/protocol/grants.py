"""Who may do what: permissions for topics by pattern, as tokens have them and HELLO_OK tells them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from tickwheel.protocol.limits import DEAD_SUFFIX, PREPARED_SUFFIX, TESTS_SUFFIX

PERMISSIONS: Final = ("publish", "consume", "query", "admin", "push")
EVERY: Final = "*"
"""The pattern that means all topics, also those to come, and what belongs to no topic."""

_ALL: Final = "all"
_DERIVED: Final = (DEAD_SUFFIX, PREPARED_SUFFIX, TESTS_SUFFIX)
_MAX_PATTERN_CHARS: Final = 256
_MAX_REMEMBERED: Final = 10_000


class Grant(NamedTuple):
    """One permission for the topics that a pattern means."""

    permission: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.permission}:{self.pattern}"


def parse_grant(text: str) -> list[Grant]:
    """`consume:orders.*`, or `all:orders` for every permission. Raises ValueError with what is wrong.

    >>> parse_grant("consume:orders.*")
    [Grant(permission='consume', pattern='orders.*')]
    """
    permission, colon, pattern = text.partition(":")
    if not colon or not pattern or len(pattern) > _MAX_PATTERN_CHARS:
        raise ValueError(f"{text!r} is no grant; write it like consume:orders.* or publish:mails")
    if permission == _ALL:
        return [Grant(each, pattern) for each in PERMISSIONS]
    if permission not in PERMISSIONS:
        raise ValueError(f"{permission!r} is no permission; there are {', '.join(PERMISSIONS)} and all")
    return [Grant(permission, pattern)]


def parse_grants(texts: Iterable[str]) -> frozenset[Grant]:
    """All of them together. Raises ValueError."""
    return frozenset(grant for text in texts for grant in parse_grant(text))


def base_topic(topic: str) -> str:
    """The topic to which a shard, dead letters, prepared messages or tests of endpoints belong.

    >>> base_topic("orders.dead"), base_topic("orders/-80"), base_topic("orders.prepared.dead"), base_topic("orders")
    ('orders', 'orders', 'orders', 'orders')
    """
    topic = topic.partition("/")[0]
    while topic.endswith(_DERIVED):
        topic = topic.rpartition(".")[0]
    return topic


class Granted:
    """What somebody may do. `grants` None: everything."""

    def __init__(self, grants: frozenset[Grant] | None) -> None:
        self.grants = grants
        self._known: dict[tuple[str, str], bool] = {}

    @property
    def texts(self) -> list[str] | None:
        """The grants as they are written. None: everything."""
        return None if self.grants is None else sorted(map(str, self.grants))

    @property
    def is_limited(self) -> bool:
        """Whether there is anything that it may not do."""
        return self.grants is not None

    def may(self, permission: str, topic: str) -> bool:
        """Whether a topic may be used like this. A topic's shards count as the topic; and for all but publishing, its
        dead letters and prepared messages, too."""
        if self.grants is None:
            return True
        known = self._known.get((permission, topic))
        if known is None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            known = self._known[permission, topic] = self._judge(permission, topic)
        return known

    def may_everywhere(self, permission: str) -> bool:
        """Whether the permission is granted for all topics."""
        return self.grants is None or Grant(permission, EVERY) in self.grants

    def sees(self, topic: str) -> bool:
        """Whether it may know of a topic: any permission will do."""
        return any(self.may(permission, topic) for permission in PERMISSIONS)

    def _judge(self, permission: str, topic: str) -> bool:
        assert self.grants is not None, "asked only of limited ones"
        names = {topic.partition("/")[0]}
        if permission != "publish":
            names.add(base_topic(topic))
        return any(
            grant.permission == permission and fnmatchcase(name, grant.pattern)
            for grant in self.grants
            for name in names
        )
