"""Names of topics and groups: RocketMQ's, and those that they have in Tickwheel.

Both ways are one to one. RocketMQ allows `%`, which Tickwheel does not, and Tickwheel allows `.`, which RocketMQ does
not: so these two stand for each other, and what Tickwheel does not allow at the beginning of a name gets `rmq.` or
`rmq..` before it.

>>> topic_of("orders"), topic_of("%DLQ%billing"), topic_of("_hidden")
('orders', 'rmq.DLQ.billing', 'rmq.._hidden')
>>> theirs("rmq.DLQ.billing"), theirs("orders.dead")
('%DLQ%billing', 'orders%dead')
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tickwheel_gateway.wire.codes import Code, Refused

MAX_TOPIC_CHARS: Final = 127
MAX_GROUP_CHARS: Final = 255
MOST_TOPIC_CHARS: Final = 114
"""In Tickwheel: the names of what belongs to a topic, such as its prepared messages, must fit behind it."""
MOST_GROUP_CHARS: Final = 128
DEAD: Final = "%DLQ%"
"""Before the name of a group: the topic of what it has given up."""

_PATTERN: Final = re.compile(r"[%A-Za-z0-9_-]+")
_TAKEN: Final = ("rmq%", "%%_", "%%-")
"""What begins so would have the same name as another one."""


@lru_cache(maxsize=4_096)
def topic_of(name: str) -> str:
    """In Tickwheel. Raises Refused."""
    return _checked(name, "topic", MAX_TOPIC_CHARS, MOST_TOPIC_CHARS, Code.ILLEGAL_TOPIC)


@lru_cache(maxsize=4_096)
def group_of(name: str) -> str:
    """In Tickwheel. Raises Refused."""
    return _checked(name, "group", MAX_GROUP_CHARS, MOST_GROUP_CHARS, Code.ILLEGAL_CONSUMER_GROUP)


def theirs(name: str) -> str:
    """The name in RocketMQ of one of Tickwheel."""
    if name.startswith(("rmq.._", "rmq..-")):
        return name.removeprefix("rmq..").replace(".", "%")
    return name.removeprefix("rmq" if name.startswith("rmq.") else "").replace(".", "%")


def _checked(name: str, what: str, most: int, most_mapped: int, code: Code) -> str:
    if not name.strip():
        raise Refused(code, f"the name of the {what} is blank")
    if len(name) > most:
        raise Refused(code, f"the name of a {what} has at most {most} characters")
    if not _PATTERN.fullmatch(name):
        raise Refused(code, f"the name of a {what} has letters, digits, and any of %_- only")
    if name.startswith(_TAKEN):
        raise Refused(code, f"the name of a {what} must not begin with {' or '.join(_TAKEN)} here")
    mapped = name.replace("%", ".")
    if mapped[0] == ".":
        mapped = f"rmq{mapped}"
    elif mapped[0] in "_-":
        mapped = f"rmq..{mapped}"
    if len(mapped) > most_mapped:
        raise Refused(code, f"the name of a {what} has at most {most_mapped} characters here: {mapped}")
    return mapped
