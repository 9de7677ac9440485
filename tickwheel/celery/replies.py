"""Topics of results that nobody reads any more: those of processes that used ``rpc://`` and were killed.

A process takes its own with it at its end (`transport.exits`). What is left is known by its name, a UUID, by what is in
it, and by that there are neither subscribers nor new results.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from tickwheel import sync
from tickwheel.celery.names import is_reply_queue
from tickwheel.celery.transport.envelope import TASK_HEADER
from tickwheel.protocol.errors import TopicInUse, UnknownTopic
from tickwheel.protocol.headers import readable_headers
from tickwheel.stats import TopicStats

_LOOKED_AT: Final = 100


class ReplyTopics:
    """Of one broker."""

    def __init__(self, client: sync.Client) -> None:
        self._client = client

    def sweep(self, idle: timedelta, *, dry_run: bool = False) -> list[str]:
        """Deletes topics of results that have had no subscriber and no result for so long; their names.
        ``dry_run``: only says which. Raises TickwheelError."""
        found = list(self._idle(datetime.now(UTC) - idle))
        return found if dry_run else [name for name in found if self._is_deleted(name)]

    def _idle(self, since: datetime) -> Iterator[str]:
        for topic in self._client.topics():
            if not is_reply_queue(topic.name) or self._is_read(topic, since):
                continue
            if not topic.scheduled and not self._has_more(topic.name, since):
                yield topic.name

    def _is_read(self, topic: TopicStats, since: datetime) -> bool:
        since_ms = since.timestamp() * 1_000
        return any(group.subscribers or group.last_read_ms >= since_ms for group in topic.groups)

    def _has_more(self, name: str, since: datetime) -> bool:
        """Whether there are tasks, then it is a queue, or new results."""
        try:
            if self._client.browse(name, limit=1, max_body_bytes=0, created_from=since):
                return True
            messages = self._client.browse(name, limit=_LOOKED_AT, max_body_bytes=0)
        except UnknownTopic:
            return True
        return any(TASK_HEADER in (readable_headers(message) or {}) for message in messages)

    def _is_deleted(self, name: str) -> bool:
        try:
            self._client.delete_topic(name)
        except (TopicInUse, UnknownTopic):
            return False
        return True
