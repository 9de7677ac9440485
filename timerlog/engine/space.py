"""Keeping disk space for what was accepted: nothing is accepted that a full disk could keep from its consumers.

``Needs`` counts what that takes, ``Space`` holds it in the reserve. It is counted for the worst case without
redeliveries: each message becomes due alone, and is leased and acked alone by each group of its topic; a topic without
a group will have one. What the tables and the log have room for already is taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from tickwheel_native import store as native_store
from timerlog.commitlog.log import CONTROL_RESERVE_BYTES, CommitLog
from timerlog.commitlog.records import GroupRecord
from timerlog.engine.state import Engine
from timerlog.errors import DiskFull
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import ARRIVAL, DELIVERY, MAX_BATCH, PUT_HEAD, RECORD_HEAD_BYTES, RUN
from timerlog.tables.reach import Reach
from timerlog.tables.tables import Tables
from timerlog.wheel.timer_log import TIMER_DTYPE
from timerlog.wheel.wheel import TimerWheel

#: For how much of what sends will need there is room at a time.
_AHEAD_BYTES: Final = 1024 * 1024
PUT_BYTES: Final = RECORD_HEAD_BYTES + PUT_HEAD.itemsize + RUN.itemsize
LEASE_BYTES: Final = RECORD_HEAD_BYTES + RUN.itemsize
ACK_BYTES: Final = LEASE_BYTES
#: What a message takes when it reaches its topic, and then in each group.
TOPIC_BYTES: Final = ARRIVAL.itemsize + PUT_BYTES
GROUP_BYTES: Final = DELIVERY.itemsize + TIMER_DTYPE.itemsize + LEASE_BYTES + ACK_BYTES
#: For the file system's own blocks, and what does not fill a page.
_SLACK_BYTES: Final = 256 * 1024
#: Messages may have left the system topic and not be on the wheel yet.
_ON_THE_WAY: Final = 5 * 4096

Counts = npt.NDArray[np.int64]


def _missing_bytes(items: Counts, item_bytes: int) -> int:
    """What tables must grow by that have room for so many items less than they need."""
    sizes = np.maximum(items, 0) * item_bytes
    return int((-(-sizes // PAGE_BYTES) * PAGE_BYTES).sum())


class Needs:
    """What accepted messages may still take until every group is done with them; it looks at the counters of all topics
    and groups at once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._topic_fields = native_store.topic_columns(
            tables.native, ("exists", "scheduled", "ready", "count", "allocated", "first_seq")
        )
        self._group_fields = native_store.group_columns(
            tables.native, ("exists", "topic_id", "pending", "leased", "allocated")
        )

    def _topics(self, name: str) -> Counts:
        return self._topic_fields[name][: self._tables.last_topic_id + 1].astype(np.int64)

    def _groups(self, name: str) -> Counts:
        return self._group_fields[name][: self._tables.last_group_id + 1].astype(np.int64)

    def _groups_of_topics(self) -> Counts:
        topics = self._groups("topic_id")[self._groups("exists") > 0]
        return np.bincount(topics, minlength=self._tables.last_topic_id + 1).astype(np.int64)

    def of_a_message(self) -> int:
        """What one more message may need, in the topic with the most groups."""
        return TOPIC_BYTES + GROUP_BYTES * max(1, int(self._groups_of_topics().max(initial=0)))

    def of_another_group(self, topic_id: int, start_seq: int) -> int:
        """What one more group of a topic may need."""
        topic = self._tables.native.topics[topic_id]
        messages = int(topic.count) + int(topic.scheduled) - max(start_seq, int(topic.first_seq))
        return 2 * PAGE_BYTES + GROUP_BYTES * max(0, messages)

    def of_all(self, log: CommitLog, wheel: TimerWheel, pending_enqueue: int, small_bytes: int) -> int:
        """``small_bytes``: the size of everything small, which a checkpoint and the start of a segment hold."""
        scheduled = self._topics("scheduled")
        tables_bytes, undone, leased = self._of_groups(scheduled)
        more_bytes, alone = self._of_topics_without_groups(scheduled)
        linked = max(0, int(scheduled.sum()) - pending_enqueue - _ON_THE_WAY)
        timers = undone + alone - leased - linked - wheel.room
        records = PUT_BYTES * int(scheduled.sum()) + (LEASE_BYTES + ACK_BYTES) * (undone + alone)
        return (
            _missing_bytes(self._topics("count") + scheduled - self._topics("allocated"), ARRIVAL.itemsize)
            + tables_bytes
            + more_bytes
            + max(0, timers) * TIMER_DTYPE.itemsize
            + self._of_log(log, records - LEASE_BYTES * leased, small_bytes)
            + 2 * small_bytes
            + _SLACK_BYTES
        )

    def _of_groups(self, scheduled: Counts) -> tuple[int, int, int]:
        """(bytes in tables, deliveries to come or not acked, of these leased)."""
        topic_ids, pending = self._groups("topic_id"), self._groups("pending")
        undone = np.where(self._groups("exists") > 0, pending + scheduled[topic_ids], 0)
        missing = (self._topics("count") + scheduled)[topic_ids] - self._groups("allocated")
        tables_bytes = _missing_bytes(np.where(undone > 0, missing, 0), DELIVERY.itemsize)
        return tables_bytes, int(undone.sum()), int(np.minimum(self._groups("leased"), undone).sum())

    def _of_topics_without_groups(self, scheduled: Counts) -> tuple[int, int]:
        """(bytes in tables, deliveries to come) of the first group that each will have."""
        is_alone = (self._groups_of_topics() == 0) & (self._topics("exists") > 0)
        undone = np.where(is_alone, scheduled + self._topics("ready"), 0)
        rows = self._topics("count") - self._topics("first_seq") + scheduled
        headers = 2 * PAGE_BYTES * int(np.count_nonzero(is_alone))
        return headers + _missing_bytes(np.where(undone > 0, rows, 0), DELIVERY.itemsize), int(undone.sum())

    @staticmethod
    def _of_log(log: CommitLog, records_bytes: int, small_bytes: int) -> int:
        """What records take that the log has no room for yet. Messages may take all that it has, but for its own
        reserve."""
        missing = max(0, records_bytes - min(log.room_bytes, CONTROL_RESERVE_BYTES))
        return CONTROL_RESERVE_BYTES + missing + missing // log.segment_bytes * small_bytes


class Space:
    """The reserve, and how much of it is promised."""

    def __init__(self, engine: Engine, small_bytes: Callable[[], int]) -> None:
        """``small_bytes``: the size of the last checkpoint, which is everything small."""
        self._engine, self._tables, self._reserve = engine, engine.tables, engine.reserve
        self._small_bytes = small_bytes
        self._needs, self._reach = Needs(engine.tables), Reach(engine.tables)
        #: How much of the reserve is spoken for, at most.
        self._promised_bytes = 0
        # The first send asks.
        engine.native.rows_allocated = engine.tables.next_id

    @property
    def needed_bytes(self) -> int:
        """What accepted messages may still need."""
        pending_enqueue = self._tables.next_id - self._engine.enqueued_id
        assert pending_enqueue >= 0, "what is taken was accepted before"
        return self._needs.of_all(self._engine.log, self._engine.wheel, pending_enqueue, self._small_bytes())

    def promise(self, bytes_needed: int) -> None:
        """Holds so much on top of what is needed already. Raises ``DiskFull``."""
        self._promised_bytes += bytes_needed
        if self._promised_bytes > self._reserve.size_bytes and not self._reserve.is_at_limit:
            self._promised_bytes = self.needed_bytes + bytes_needed
            self._reserve.cover(self._promised_bytes)
        is_held = self._promised_bytes <= self._reserve.size_bytes
        assert is_held or self._reserve.is_at_limit, "what is promised is held, up to the limit"

    def promise_rows(self, rows: int) -> None:
        """Makes room for messages with ids below ``rows``, and for all that will become of them; if it can, for some
        more. Raises ``DiskFull``."""
        each = self._needs.of_a_message()
        count = rows - self._tables.next_id
        assert count > 0, "room is made for messages to come"
        more = MAX_BATCH if self._reserve.is_at_limit else min(MAX_BATCH, _AHEAD_BYTES // each)
        self._reach.need(count + MAX_BATCH)
        try:
            self.promise((count + more) * each)
        except DiskFull:
            self.promise(count * each)
            more = 0
        self._tables.ensure_rows(rows)
        self._engine.native.rows_allocated = min(int(self._engine.native.rows_allocated), rows + more)
        allowed, reached = int(self._engine.native.rows_allocated), self._tables.messages.capacity
        assert rows <= allowed <= reached, "messages are accepted up to what the table reaches"

    def promise_topics(self, topics: int) -> None:
        """Makes room for new topics, each with its first group. Raises ``DiskFull``."""
        self._reach.need_topics(topics)
        self.promise(topics * 4 * PAGE_BYTES)

    def promise_groups(self, records: Sequence[GroupRecord]) -> None:
        """Makes room for what more groups will need; that of a topic's first one was promised with the messages. Raises
        ``DiskFull``."""
        self._reach.need_groups(records)
        records = [record for record in records if self._tables.topics[record.topic_id].groups]
        self.promise(sum(self._needs.of_another_group(r.topic_id, r.start_seq) for r in records))

    def settle_reserve(self) -> None:
        """Makes the reserve as large as it should be now, as far as the disk lets it."""
        promised = int(self._engine.native.rows_allocated) - self._tables.next_id
        self._promised_bytes = self.needed_bytes + max(0, promised) * self._needs.of_a_message()
        with suppress(DiskFull):
            self._reserve.cover(self._promised_bytes)
        self._reserve.trim(self._promised_bytes)
