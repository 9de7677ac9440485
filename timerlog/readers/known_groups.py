"""Which group had a number when a record was written: groups get the numbers of deleted ones, also of other topics."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import Final

import msgspec

from timerlog.commitlog.records import GroupRecord
from timerlog.commitlog.view import LogView
from timerlog.layout import Int64Array, RecordType
from timerlog.tables.base_record import GroupBase

GROUP_TYPES: Final = frozenset({RecordType.GROUP, RecordType.GROUP_CHANGED})


class Base(msgspec.Struct, frozen=True):
    """What a BASE record says, as far as it is wanted here."""

    next_id: int
    groups: list[GroupBase]


def base_of(log: LogView, base: int) -> Base | None:
    """What a segment begins with; None: the first one of a log begins with nothing."""
    kind, payload = log.first_record(base) or (0, b"")
    return msgspec.msgpack.decode(payload, type=Base) if kind == RecordType.BASE else None


class KnownGroups:
    """All groups from the beginning of a segment on, as far as the log was read."""

    def __init__(self, log: LogView, base: int) -> None:
        self._log = log
        #: By number: what was said of a group, each with the position from which on.
        self._known: defaultdict[int, list[tuple[int, GroupRecord]]] = defaultdict(list)
        self._of_topic: defaultdict[int, set[int]] = defaultdict(set)
        begins = base_of(log, base)
        for group in () if begins is None else begins.groups:
            self._add(group.record, base)

    def note(self, positions: Int64Array) -> None:
        """Records of ``GROUP_TYPES``, in the order of the log."""
        for position in positions.tolist():
            self._add(msgspec.msgpack.decode(self._log.payload(position), type=GroupRecord), position)

    def _add(self, group: GroupRecord, position: int) -> None:
        known = self._known[group.group_id]
        assert not known or known[-1][0] <= position, "they come in the log's order, for a search by halves"
        known.append((position, group))
        self._of_topic[group.topic_id].add(group.group_id)

    def numbers_of(self, topic_id: int) -> set[int]:
        """The numbers of all groups that a topic ever had."""
        return self._of_topic[topic_id]

    def at(self, group_id: int, position: int) -> GroupRecord | None:
        """The one that had a number when a record was written; None: it is not known, the log being damaged."""
        known = self._known.get(group_id, [])
        place = bisect_right(known, position, key=itemgetter(0))
        return known[place - 1][1] if place else None
