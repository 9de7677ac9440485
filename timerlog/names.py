"""Names with a meaning: which ones topics and groups may have, and those that the engine makes of them."""

from __future__ import annotations

import re
from typing import Final

from timerlog.errors import BadName

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Behind a topic's name: the topic that gets its dead letters.
DEAD_SUFFIX: Final = ".dead"
#: Behind a topic's name: the topic in which its prepared messages wait.
PREPARED_SUFFIX: Final = ".prepared"
#: The header of a dead letter that says what happened.
DEAD_HEADER: Final = "tickwheel-dead"
#: The header of a message that was prepared: which message of the prepared topic it was.
PREPARED_HEADER: Final = "tickwheel-prepared"
#: A topic's name has room for that of its dead letters' topic.
MAX_NAME_CHARS_WITH_LETTERS: Final = 128 - len(DEAD_SUFFIX)


def check_name(name: str) -> None:
    """Raises ``BadName``."""
    if not NAME.fullmatch(name):
        raise BadName(f"{name[:140]!r} is not a valid name")


def dead_topic(topic: str) -> str:
    """The name of the topic that gets a topic's dead letters. It is cut for names that are longer than those that new
    topics may have.

    >>> dead_topic("mails")
    'mails.dead'
    """
    return f"{topic[:MAX_NAME_CHARS_WITH_LETTERS]}{DEAD_SUFFIX}"


def shard_bytes(shard: int, shards: int) -> tuple[int, int]:
    """The first bytes of the routing hash that belong to one of ``shards`` equal parts: from, and up to but not."""
    assert 0 <= shard < shards <= 256, "a topic has this shard, and each has some of the bytes"
    return shard * 256 // shards, (shard + 1) * 256 // shards


def shard_name(shard: int, shards: int) -> str:
    """The key range of a shard as Vitess writes it: ``-80`` and ``80-`` for two.

    >>> [shard_name(i, 4) for i in range(4)]
    ['-40', '40-80', '80-c0', 'c0-']
    """
    first, end = shard_bytes(shard, shards)
    return f"{first:02x}-{end:02x}".removeprefix("00").removesuffix("100")
