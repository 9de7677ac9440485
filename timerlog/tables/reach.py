"""Whether what is accepted has addresses, in each table that it will come to.

A table that comes near the end of its addresses moves when it grows. That may fail, and a message that was accepted
must reach its topic and its groups all the same. So it is asked here before messages are accepted, and before a topic
or a group is made.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tickwheel_native import memory
from tickwheel_native import store as native_store
from timerlog.commitlog.records import GroupRecord
from timerlog.errors import NoAddressSpace
from timerlog.layout import DELIVERY, Int64Array
from timerlog.tables.tables import TOPIC_ROOM, Tables


class Reach:
    """How far the tables of topics and groups reach; it looks at all of them at once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._topic_fields = native_store.topic_columns(tables.native, ("exists", "scheduled", "count"))
        self._group_fields = native_store.group_columns(tables.native, ("exists", "topic_id"))

    def need(self, more: int) -> None:
        """Gives each table addresses for all that was accepted, and for so many messages more. Raises
        ``NoAddressSpace``: then tables may have moved, and nothing else has changed."""
        tables = self._tables
        wanted = self._expected() + more
        is_far = (self._topic_fields["exists"][: len(wanted)] > 0) & (
            wanted > tables.arrivals_near[: len(wanted)]
        )
        for topic_id in np.flatnonzero(is_far).tolist():
            tables.topics[topic_id].arrivals.reach(int(wanted[topic_id]))
        groups = tables.last_group_id + 1
        by_group = wanted[self._group_fields["topic_id"][:groups]]
        is_far = (self._group_fields["exists"][:groups] > 0) & (by_group > tables.deliveries_near[:groups])
        for group_id in np.flatnonzero(is_far).tolist():
            tables.groups[group_id].deliveries.reach(int(by_group[group_id]))

    def _expected(self) -> Int64Array:
        """By topic: so far the numbers of what was accepted will go."""
        topics = self._tables.last_topic_id + 1
        count, scheduled = (self._topic_fields[name][:topics] for name in ("count", "scheduled"))
        expected: Int64Array = count.astype(np.int64) + scheduled.astype(np.int64)
        return expected

    def need_topics(self, topics: int) -> None:
        """So many topics may be made, each with its first group. Raises ``NoAddressSpace``."""
        _need_bytes(2 * topics * TOPIC_ROOM)

    def need_groups(self, records: Iterable[GroupRecord]) -> None:
        """These groups may be made. Raises ``NoAddressSpace``."""
        expected, need_bytes = self._expected(), 0
        for record in records:
            first_seq = int(self._tables.native.topics[record.topic_id].first_seq)
            used = (int(expected[record.topic_id]) - first_seq) * DELIVERY.itemsize
            need_bytes += used + max(used, TOPIC_ROOM)
        _need_bytes(need_bytes)


def _need_bytes(count: int) -> None:
    reserved = memory.reserve(count)
    if reserved == memory.NULL:
        raise NoAddressSpace(f"cannot reserve {count:,} bytes of address space for topics and groups")
    memory.release(reserved, count)
