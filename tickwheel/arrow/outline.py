"""The topics of a directory and their groups, as far as a report has to know them beside the tables."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from timerlog.readers.describe import Offline


class Outline(msgspec.Struct, frozen=True):
    """``log_id``: of the log, 16 hexadecimal digits. ``now_ms``: when the directory was looked at. ``log_bytes``: the
    size of its log. ``topics``: names as they stand in the column topic. ``parents``: the topic that users know, for
    each whose messages lie in the shards of another. ``first_groups``: by topic, the group that began first. A message
    belongs to the groups that began before it, so to that group if to any."""

    log_id: str
    now_ms: int
    log_bytes: int
    topics: list[str]
    parents: dict[str, str]
    first_groups: dict[str, str]


def outline_of(offline: Offline, visible: Collection[str] | None = None) -> Outline:
    """``visible``: only these topics; None: all of them."""
    description = offline.description
    names = {topic.topic_id: topic.name for topic in description.topics}
    shown = set(names.values()) if visible is None else set(visible)
    first_groups: dict[str, str] = {}
    for group in sorted(description.groups, key=lambda group: (group.start_seq, group.group_id)):
        if names[group.topic_id] in shown:
            first_groups.setdefault(names[group.topic_id], group.name)
    return Outline(
        log_id=f"{description.log_id:016x}",
        now_ms=description.now_ms,
        log_bytes=offline.end_position - offline.first_position,
        topics=[name for name in names.values() if name in shown],
        parents={
            topic.name: names[topic.parent]
            for topic in description.topics
            if topic.parent in names and topic.name in shown
        },
        first_groups=first_groups,
    )
