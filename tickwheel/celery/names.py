"""From the names of queues and exchanges to names of topics and groups, which have fewer characters and are shorter.

A name that can be one of a topic stays as it is, so that people find it. Any other becomes a readable part, two hyphens
and a hash of the whole name: always the same one, in every process.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from tickwheel.protocol.limits import (
    DEAD_SUFFIX,
    MAX_TOPIC_NAME_CHARS,
    PREPARED_SUFFIX,
    TESTS_SUFFIX,
    is_valid_name,
)

GROUP: Final = "celery"
"""The consumer group of a queue: all workers share it."""

SCHEDULE_PREFIX: Final = "celery."
"""Names of the schedules that Celery Beat makes begin so."""

_EXCHANGE: Final = "x."
_ROUTE: Final = "r."
_READABLE_CHARS: Final = 80
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HASHED: Final = re.compile(r".*--[0-9a-f]{16}", re.DOTALL)
_REPLY_QUEUE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RESERVED: Final = (DEAD_SUFFIX, PREPARED_SUFFIX, TESTS_SUFFIX)


def queue_topic(queue: str) -> str:
    """The topic of a queue."""
    if queue.startswith((_EXCHANGE, _ROUTE)):
        return _hashed(queue, "q.")
    return _escaped(queue)


def is_reply_queue(name: str) -> bool:
    """Whether a queue, or its topic, is one that ``rpc://`` has named: by a UUID."""
    return _REPLY_QUEUE.fullmatch(name) is not None


def exchange_topic(exchange: str) -> str:
    """The topic of a fanout or topic exchange: each bound queue is a consumer group of it."""
    return _prefixed(_EXCHANGE, exchange)


def route_topic(exchange: str, routing_key: str) -> str:
    """The topic of a direct exchange for one routing key whose queues the sender does not know."""
    return _prefixed(_ROUTE, f"{exchange}/{routing_key}")


def queue_group(queue: str) -> str:
    """The consumer group that stands for a queue on the topic of an exchange."""
    return _escaped(queue)


def schedule_name(entry: str) -> str:
    """The name of the schedule of an entry of ``beat_schedule``."""
    return _prefixed(SCHEDULE_PREFIX, entry)


def _escaped(name: str) -> str:
    is_plain = (
        is_valid_name(name)
        and len(name) <= MAX_TOPIC_NAME_CHARS
        and not name.endswith(_RESERVED)
        and not _HASHED.fullmatch(name)
    )
    return name if is_plain else _hashed(name)


def _prefixed(prefix: str, name: str) -> str:
    escaped = _escaped(prefix + name)
    return escaped if escaped == prefix + name else _hashed(name, prefix)


def _hashed(name: str, prefix: str = "") -> str:
    readable = prefix + _FORBIDDEN.sub("-", name)[:_READABLE_CHARS].lstrip("._-")
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{readable.rstrip('-') or 'q'}--{digest}"
