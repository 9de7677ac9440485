"""How many messages a second topics and groups have had between two looks at the figures."""

from __future__ import annotations

from typing import Final, NamedTuple

from tickwheel.stats import Figures, GroupFigures

_MS_PER_S: Final = 1_000
_MAX_MS: Final = 300_000
"""A mean over longer says nothing about now."""


class Activity(NamedTuple):
    """In a second; None: not known."""

    sent: float | None = None
    delivered: float | None = None
    acked: float | None = None


class Activities:
    """Of all topics and groups that the figures have."""

    def __init__(self, now: Figures | None, before: Figures | None) -> None:
        self._seconds = 0.0
        self._sent: dict[str, int] = {}
        self._groups: dict[tuple[str, str], tuple[int, int]] = {}
        if now is None or before is None or before.started_ms != now.started_ms:
            return
        if 0 < now.now_ms - before.now_ms <= _MAX_MS:
            self._seconds = (now.now_ms - before.now_ms) / _MS_PER_S
            earlier = {topic.topic_id: topic for topic in before.topics}
            for topic in now.topics:
                if (old := earlier.get(topic.topic_id)) is None:
                    continue
                self._sent[topic.name] = topic.messages - old.messages
                old_groups = {group.group_id: group for group in old.groups}
                for group in topic.groups:
                    if group.group_id in old_groups:
                        self._groups[topic.name, group.name] = _grown(group, old_groups[group.group_id])

    def of_topic(self, topic: str) -> Activity:
        """Of all its groups together."""
        if topic not in self._sent:
            return Activity()
        grown = [value for (of, _), value in self._groups.items() if of == topic]
        delivered, acked = sum(one[0] for one in grown), sum(one[1] for one in grown)
        return Activity(self._sent[topic] / self._seconds, delivered / self._seconds, acked / self._seconds)

    def of_group(self, topic: str, group: str) -> Activity:
        """Of one group."""
        if (topic, group) not in self._groups:
            return Activity()
        delivered, acked = self._groups[topic, group]
        return Activity(None, delivered / self._seconds, acked / self._seconds)


def _grown(now: GroupFigures, before: GroupFigures) -> tuple[int, int]:
    return max(0, now.delivered - before.delivered), max(0, now.acked - before.acked)
