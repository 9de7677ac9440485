"""The derived tables: MessageTable, key index, topics with their arrivals, groups with their deliveries.

Each table is a memory-mapped file (``timerlog.files.mapped_file``) that C and numpy share. They follow from the
CommitLog alone: delete them, and the next start makes the same ones again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import apply, lib, memory, purge, rebuild
from tickwheel_native import store as native_store
from timerlog.commitlog.records import GroupRecord, TimelineRecord, TopicRecord
from timerlog.errors import LogAtItsEnd, UnsupportedFormat
from timerlog.files.checksums import table_sum
from timerlog.files.held_space import Lender
from timerlog.files.mapped_file import Region
from timerlog.layout import (
    ARRIVAL,
    ARRIVALS_MAGIC,
    DELIVERIES_MAGIC,
    DELIVERY,
    FORMAT_VERSION,
    HOLDERS,
    IN_A_CHAIN,
    KEY_PARTITIONS,
    KEYS_MAGIC,
    MAX_BATCH,
    MOST_GAPS,
    ROW,
    ROWS_MAGIC,
    Array,
    DeliveryState,
    Int64Array,
    UInt64Array,
)
from timerlog.names import DEAD_SUFFIX, shard_bytes
from timerlog.settings import DEFAULT_PRIORITY, FOREVER_MS, StoreSettings, effective_settings
from timerlog.tables.answers import RememberedAnswers
from timerlog.tables.empty_rows import LEAST_IDS, EmptyRows, Look, Stretch
from timerlog.tables.histories import Failures, RecentTransactions
from timerlog.tables.key_index import KeyIndex
from timerlog.tables.name_fences import NameFences
from timerlog.tables.sparse_rows import SparseRows
from timerlog.tables.table import Table

#: How much longer a table may become before it moves, in bytes of addresses.
ROWS_ROOM: Final = 256 << 30
TOPIC_ROOM: Final = 512 << 20
#: The largest id that a message may have.
MAX_ID: Final = lib.TW_MAX_ID
_SCAN: Final = 1 << 20
_MANY_TABLES: Final = 64
_PARTITION_SHIFT: Final = 33 - KEY_PARTITIONS.bit_length()
"""The first bits of a key's hash name its partition."""
#: Above any epoch that a group gave out whose log does not say what its highest one was: a message was not delivered
#: a thousand million times.
OLD_FENCE: Final = 1 << 30


@dataclass(slots=True)
class Topic:
    record: TopicRecord
    arrivals: Table
    groups: dict[str, int]  # name → group id


@dataclass(slots=True)
class Group:
    record: GroupRecord
    deliveries: Table
    seen_ms: int = 0  #: when it had its first subscriber or lost its last one, in epoch ms; 0: never
    has_readers: bool = False  #: since then it has had subscribers


class Tables:
    """All tables of one store, and the ``tw_store`` through which C sees them."""

    def __init__(
        self,
        *,
        directory: Path | None,
        log_id: int,
        settings: StoreSettings,
        lender: Lender | None = None,
        gaps: Sequence[tuple[int, int]] = (),
        first_id: int = 0,
        empty: Sequence[Stretch] = (),
    ) -> None:
        """``gaps``: of the ids, as far as they are known; see ``leave_gap``. ``first_id``: no message is there below it
        that is in the tables. ``empty``: stretches of ids whose messages are gone."""
        max_topics, max_groups = settings.max_topics, settings.max_groups
        self.directory = directory
        self._lender = lender
        self.settings = settings
        self.log_id = log_id
        self.topics: dict[int, Topic] = {}
        self.groups: dict[int, Group] = {}
        self.topic_ids: dict[str, int] = {}
        #: Small named documents that the broker keeps here: the log holds them, nothing in the engine reads them.
        self.documents: dict[str, bytes] = {}
        self.failures = Failures()
        self.has_spread = False  #: whether any topic ever spread its messages
        self.transactions = RecentTransactions()
        self.answers = RememberedAnswers()
        self._order_tables: dict[int, Any] = {}
        # Numbers start at 1, so that 0 can mean "none"; that of a deleted topic is not used again.
        self.last_topic_id = self.last_group_id = 0
        #: Which past this log has: 0, or another one after a part of it was lost.
        self.timeline = 0
        self.timeline_position = 0  #: where it begins in the log
        self.epoch_floor = 0  #: epochs up to it may have been given out in other timelines
        #: Numbers of groups that are gone, in the order in which they went, and their fences.
        self.free_groups: dict[int, int] = {}
        self.topics_made: dict[str, int] = {}
        """How many topics each token has made, also those that are deleted."""
        self.name_fences = NameFences()
        self.ephemeral: set[int] = set()  #: groups that end some time after their last subscriber has left
        #: By number: the first item of a topic's or a group's table for which the table moves.
        self.arrivals_near = np.zeros(max_topics + 1, np.int64)
        self.deliveries_near = np.zeros(max_groups + 1, np.int64)
        self._outstanding = np.zeros(HOLDERS, np.uint32)
        self._key_hashes = np.zeros(MAX_BATCH, np.uint32)
        self._key_counts = np.zeros(KEY_PARTITIONS, np.uint16)
        self.native = native_store.new()
        self._topic_structs = native_store.make_topics(self.native, max_topics + 1)
        self._group_structs = native_store.make_groups(self.native, max_groups + 1)
        self.native.next_id = self.native.first_id = 1
        self.empty = EmptyRows(self.native, empty)
        self.messages = Table(
            path=self._path("messages.table"),
            magic=ROWS_MAGIC,
            dtype=ROW,
            log_id=log_id,
            room_bytes=ROWS_ROOM,
            lender=lender,
            gaps=gaps,
            first=first_id,
            lowest=lambda: int(self.native.first_id),
            moved=self._use_rows,
        )
        self.sparse = SparseRows(self.native, self.messages)
        with ExitStack() as undo:  # a start that fails and is tried again must not use up the address space
            undo.callback(self.messages.region.close)
            self.keys = KeyIndex(self._path("keys.index"), self.native, lender)
            undo.callback(self.keys.close)
            self._fill_native()
            undo.pop_all()

    def _path(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / name

    def _fill_native(self) -> None:
        self._use_rows()
        native_store.use_scratch(self.native, self._outstanding, self._key_hashes, self._key_counts)
        self.ensure_rows(2)

    # -- addresses: whoever looks at a table asks for it each time --

    def _use_rows(self) -> None:
        native_store.use_rows(self.native, self.messages.address, self.messages.start)

    def _use_arrivals(self, topic_id: int, table: Table) -> None:
        native_store.use_arrivals(self.native, topic_id, table.address, table.start)
        self.arrivals_near[topic_id] = table.near

    def _use_deliveries(self, group_id: int, table: Table) -> None:
        native_store.use_deliveries(self.native, group_id, table.address, table.start)
        self.deliveries_near[group_id] = table.near

    def _arrivals_moved(self, topic_id: int) -> None:
        topic = self.topics.get(topic_id)
        if topic is not None:  # else it is being opened
            self._use_arrivals(topic_id, topic.arrivals)

    def _deliveries_moved(self, group_id: int) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            self._use_deliveries(group_id, group.deliveries)
            struct_ = self.native.groups[group_id]
            struct_.floor_seq = max(int(struct_.floor_seq), group.deliveries.start)

    def hold_rows(self, first_id: int) -> None:
        """Until ``let_go_of_rows``, the rows from ``first_id`` on have addresses that stay good, also in another
        thread. Raises ``NoAddressSpace``: then nothing is held."""
        self.messages.reach_down(first_id)
        self.messages.region.hold()

    def let_go_of_rows(self) -> None:
        self.messages.region.let_go()

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The MessageTable; index = message id. Only rows from ``messages.start`` on may be looked at."""
        return self.messages.items

    def make_room_for_keys(self, count: int) -> None:
        """Makes room in the key index for all keys of a SEND of so many messages, whose hashes C has left here: one
        partition after the other would have C begin a large frame anew a thousand times. Raises ``DiskFull``."""
        assert 0 < count <= len(self._key_hashes), "a send has as many messages as a batch, at most"
        hashes = self._key_hashes[:count]
        more = np.bincount(hashes[hashes != 0] >> _PARTITION_SHIFT)
        self.keys.free(
            [self.keys.expect(partition, int(more[partition])) for partition in np.flatnonzero(more).tolist()]
        )

    @property
    def next_id(self) -> int:
        return int(self.native.next_id)

    def ids_of(self, topic_id: int) -> UInt64Array:
        """Message ids, by their numbers in a topic."""
        ids: UInt64Array = self.topics[topic_id].arrivals.items["id"]
        return ids

    def deliveries_of(self, group_id: int) -> Array:
        """What a group knows of messages, by their numbers in its topic."""
        return self.groups[group_id].deliveries.items

    def first_seqs(self) -> dict[int, int]:
        """By topic: what lies before this number is gone; without those that have everything."""
        found = {number: int(self.native.topics[number].first_seq) for number in self.topics}
        return {number: first_seq for number, first_seq in found.items() if first_seq}

    def outstanding(self, holder: int) -> int:
        return int(self._outstanding[holder])

    def ensure_rows(self, rows: int, first_id: int | None = None) -> None:
        """Makes room for messages with ids below ``rows``; ``first_id``: from there on, also where there were none.
        Raises ``DiskFull``, ``LogAtItsEnd``."""
        if rows - 1 > MAX_ID:
            raise LogAtItsEnd(f"the ids are at their end: {MAX_ID} is the last one that a message can have")
        self.messages.ensure(rows)
        if first_id is not None:
            self.messages.reach_down(first_id)
            self.empty.leave(first_id, rows)
            self.sparse.fill(first_id, rows)
        self.native.rows_allocated = min(self.messages.capacity, MAX_ID + 1)

    def refill_rows(self, first_id: int, end_id: int) -> None:
        """Makes sure that rows can be filled, also where disk space was given back. Raises ``DiskFull``."""
        self.empty.leave(first_id, end_id)
        self.messages.region.refill(*self.messages.span(first_id, end_id))

    def start_rows(self, first_id: int, next_id: int, gaps: Sequence[tuple[int, int]] = ()) -> None:
        """The table reaches up to ``next_id``, and nothing is there below ``first_id`` and in ``gaps``. Where messages
        are there already, they say themselves which is the first."""
        native, is_empty = self.native, self.next_id <= first_id
        if is_empty:
            self.messages.start_at(first_id)
        if next_id > self.messages.capacity:
            self.sparse.leave_to(self.next_id, next_id)
        for start, end in gaps:
            self.leave_gap(start, end)
        self.ensure_rows(next_id)
        if is_empty:
            native.first_id = max(int(native.first_id), first_id)
        native.next_id = max(int(native.next_id), next_id)
        assert self.messages.start <= native.first_id, "what is there has an address"
        assert native.next_id <= self.messages.capacity, "each number that is given has a row"

    # -- timelines --

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Message ids that may have been given out in other timelines (from, to below), in order."""
        native = self.native
        return [(int(gap.start), int(gap.end)) for gap in native.gaps[0 : native.gaps_count]]

    def leave_gap(self, start: int, end: int) -> None:
        """No message has, or will have, an id from ``start`` to below ``end``; that takes no disk space. Leaving the
        same gap again changes nothing. Raises ``DiskFull``."""
        native = self.native
        assert start <= end, "a gap ends where it begins, or later"
        if start < end and native.gaps_count < MOST_GAPS and (start, end) not in self.gaps:
            assert not native.gaps_count or self.gaps[-1][1] <= start, "gaps follow each other"
            gap = native.gaps[native.gaps_count]
            gap.start, gap.end = start, end
            native.gaps_count += 1
        self.ensure_rows(start)
        if (start, end) in self.gaps:  # further ones have rows, and are as right
            self.messages.leave_to(end)
        self.ensure_rows(end)
        native.next_id = max(int(native.next_id), end)

    @property
    def left_out(self) -> list[tuple[int, int]]:
        """Ids from, to below which there is no message: gaps and empty stretches, in order of where they begin."""
        return sorted([*self.gaps, *self.empty.stretches])

    def spans(self, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
        """The ids from ``start`` to below ``end`` that may have messages, in pieces of at most ``step``."""
        return spans(self.left_out, start, end, step)

    def find_empty_rows(self) -> None:
        """When all was replayed, goes through the table for the stretches in which all messages are gone."""
        never_filled = self.sparse.done()
        if never_filled:
            self.empty.put(never_filled)
        first_id, look = int(self.native.first_id), Look(int(self.native.first_id))
        for start, end in self.spans(first_id, self.next_id, LEAST_IDS):
            look.piece(rebuild.used(self.native, start, end))
        self.empty.put(look.found(self.next_id))

    def begin_timeline(self, record: TimelineRecord) -> None:
        """Every receipt of before is stale from now on, also for groups that will be made."""
        self.timeline, self.timeline_position = record.timeline, record.position
        self.epoch_floor = max(self.epoch_floor, record.epoch_floor)
        for group_id, deliveries in record.deliveries:
            group, struct_ = self.groups[group_id], self.native.groups[group_id]
            fence = max(group.record.fence or 0, record.epoch_floor)
            group.record = msgspec.structs.replace(group.record, fence=fence)
            struct_.fence, struct_.highest_epoch = fence, max(int(struct_.highest_epoch), fence)
            struct_.purged_deliveries = deliveries

    # -- topics and groups --

    def add_topic(self, record: TopicRecord, first_seq: int = 0) -> None:
        """Opens a topic's table, or takes what has changed of one that is there; adding it again changes nothing."""
        known = self.topics.get(record.topic_id)
        if known is not None:
            known.record = record
            self._configure(known)
            return
        if record.maker and record.topic_id > self.last_topic_id:
            self.topics_made[record.maker] = self.topics_made.get(record.maker, 0) + 1
        self.last_topic_id = max(self.last_topic_id, record.topic_id)
        path = self._path(f"topics/{record.topic_id}.arrivals")
        table = Table(
            path=path,
            magic=ARRIVALS_MAGIC,
            dtype=ARRIVAL,
            log_id=self.log_id,
            room_bytes=TOPIC_ROOM,
            lender=self._lender,
            first=first_seq,
            lowest=partial(purge.lowest_arrival, self.native, record.topic_id),
            moved=partial(self._arrivals_moved, record.topic_id),
        )
        table.start_at(first_seq)
        self.topics[record.topic_id] = Topic(record, table, {})
        self.topic_ids[record.name] = record.topic_id
        struct_ = self.native.topics[record.topic_id]
        self._use_arrivals(record.topic_id, table)
        struct_.allocated = table.capacity
        struct_.exists, struct_.first_seq = 1, first_seq
        assert table.start <= first_seq, "what is in a topic has an address"
        struct_.shards, struct_.parent = record.shards, record.parent
        if record.parent:
            first, end = shard_bytes(record.shard, self.topics[record.parent].record.shards)
            for byte in range(first, end):
                self.native.topics[record.parent].shard_of_byte[byte] = record.topic_id
        self._configure(self.topics[record.topic_id])

    def _configure(self, topic: Topic) -> None:
        """Puts a topic's settings where the C functions look for them, for it and for its groups."""
        settings = topic.record.settings
        struct_ = self.native.topics[topic.record.topic_id]
        struct_.max_body_bytes = settings.max_body_bytes or 0
        struct_.spread_ms = settings.spread_ms or 0
        self.has_spread |= bool(settings.spread_ms)
        struct_.purge_after_ms = int(effective_settings(settings, self.settings)["purge_after_ms"])
        struct_.default_priority = DEFAULT_PRIORITY if settings.priority is None else settings.priority
        for group_id in topic.groups.values():
            self._configure_group(group_id)

    def _configure_group(self, group_id: int) -> None:
        record = self.topics[self.groups[group_id].record.topic_id].record
        holds = effective_settings(record.settings, self.settings)
        struct_ = self.native.groups[group_id]
        struct_.ack_wait_ms, struct_.min_backoff_ms = int(holds["ack_wait_ms"]), int(holds["min_backoff_ms"])
        struct_.max_backoff_ms = int(holds["max_backoff_ms"]) or FOREVER_MS
        # A dead letter that is not taken stays where it is.
        struct_.max_attempts = 0 if record.name.endswith(DEAD_SUFFIX) else int(holds["max_attempts"])

    def remove_topic(self, topic_id: int) -> None:
        """Closes and deletes a topic's tables; its number is not used again, and its messages count as gone."""
        topic = self.topics.pop(topic_id, None)
        if topic is None:
            return
        self.topic_ids.pop(topic.record.name, None)
        self.name_fences.drop_topic(topic_id)
        for group_id in topic.groups.values():
            # What it gave out names messages of a topic that no other group will have: topics keep their numbers.
            self._remove_group(group_id, self.groups[group_id].record.fence or 0)
        native_store.clear_topic(self.native, topic_id)
        topic.arrivals.region.delete()

    def remove_group(self, group_id: int, fence: int | None) -> None:
        """Closes and deletes a group's table; its topic's messages wait for it no more. Another group may have its
        number then, whose epochs are above ``fence``. Removing it again changes nothing."""
        group = self.groups.get(group_id)
        if group is None:
            return
        topic_id, following = group.record.topic_id, self.native.groups[group_id].next_group
        self.topics[topic_id].groups.pop(group.record.name, None)
        before = int(self.native.topics[topic_id].first_group)
        if before == group_id:
            self.native.topics[topic_id].first_group = following
        else:
            while self.native.groups[before].next_group != group_id:
                before = int(self.native.groups[before].next_group)
                assert before, "a group is in the chain of its topic"
            self.native.groups[before].next_group = following
        fence = OLD_FENCE if fence is None else fence
        self.name_fences.add(topic_id, group.record.name, fence)
        self._remove_group(group_id, fence)

    def _remove_group(self, group_id: int, fence: int) -> None:
        group = self.groups.pop(group_id)
        self.free_groups[group_id] = fence
        self.ephemeral.discard(group_id)
        self._give_credit_back(group_id, group.deliveries)
        self.failures.forget_group(group_id)
        native_store.clear_group(self.native, group_id)
        self._order_tables.pop(group_id, None)
        group.deliveries.region.delete()

    def _give_credit_back(self, group_id: int, deliveries: Table) -> None:
        """What subscriptions hold of a group that goes does not count against them any more. During replay no
        subscription holds anything, whatever the rows say."""
        struct_ = self.native.groups[group_id]
        high_seq = int(struct_.high_seq)
        for start in range(max(int(struct_.floor_seq), deliveries.start), high_seq, _SCAN):
            rows = deliveries.items[start : min(start + _SCAN, high_seq)]
            leased = (rows["state"] == DeliveryState.LEASED) & (rows["flags"] & IN_A_CHAIN == 0)
            held = np.bincount(rows["holder"][leased], minlength=HOLDERS)
            self._outstanding -= np.minimum(held, self._outstanding).astype(np.uint32)

    def ensure_arrivals(self, topic_id: int, count: int, first_seq: int | None = None) -> None:
        """``first_seq``: the first that will be written. Raises ``DiskFull``."""
        table = self.topics[topic_id].arrivals
        table.ensure(count)
        if first_seq is not None:
            table.reach_down(first_seq)
        self.native.topics[topic_id].allocated = table.capacity

    def add_group(self, record: GroupRecord) -> None:
        """Opens a group's table; adding it again changes nothing."""
        if record.group_id in self.groups:
            return
        self.last_group_id = max(self.last_group_id, record.group_id)
        self.free_groups.pop(record.group_id, None)
        path = self._path(f"topics/{record.topic_id}-{record.group_id}.deliveries")
        first_seq = int(self.native.topics[record.topic_id].first_seq)
        table = Table(
            path=path,
            magic=DELIVERIES_MAGIC,
            dtype=DELIVERY,
            log_id=self.log_id,
            room_bytes=TOPIC_ROOM,
            lender=self._lender,
            first=first_seq,
            lowest=partial(purge.lowest_delivery, self.native, record.group_id),
            moved=partial(self._deliveries_moved, record.group_id),
        )
        table.start_at(max(record.rows_from, first_seq))
        self.groups[record.group_id] = Group(record, table)
        self.topics[record.topic_id].groups[record.name] = record.group_id
        struct_, topic = self.native.groups[record.group_id], self.native.topics[record.topic_id]
        self._use_deliveries(record.group_id, table)
        struct_.allocated = table.capacity
        struct_.topic_id = record.topic_id
        struct_.start_seq = record.start_seq
        # What is gone of the topic has no rows to look at.
        struct_.floor_seq = struct_.high_seq = max(record.start_seq, first_seq)
        struct_.rows_from = record.rows_from
        assert table.start <= max(record.rows_from, first_seq), "what is delivered has an address"
        struct_.fence = struct_.highest_epoch = record.fence or 0
        struct_.ignores_order = record.ignores_order
        struct_.next_group, topic.first_group = topic.first_group, record.group_id
        self._configure_group(record.group_id)
        if record.ephemeral_ms:
            self.ephemeral.add(record.group_id)
        struct_.exists = 1

    def load_free_groups(self, known: list[tuple[int, int]] | None) -> None:
        """Takes what a BASE says; None: it is from before numbers were used again."""
        if known is not None:
            # A repair may have lost the end of a group: its number is not free.
            self.free_groups = {group_id: fence for group_id, fence in known if group_id not in self.groups}
            return
        for group_id in range(1, self.last_group_id + 1):
            if group_id not in self.groups:
                self.free_groups.setdefault(group_id, OLD_FENCE)

    def numbers_for_groups(self, count: int) -> tuple[int, int] | None:
        """Consecutive numbers for so many new groups: the first one, and the fence of all. Fresh numbers, if there are
        any left; otherwise those of groups that are gone the longest. None: too few are free.

        A number is free at once, since a receipt of the group that had it cannot count for the next one: that
        begins with an epoch above every epoch that receipts with the number may have. A receipt names the number of the
        whole topic's group also where the group of a shard gave it out, so all parts of a group have one fence.
        """
        most = self.settings.max_groups
        if self.last_group_id + count <= most:
            return self.last_group_id + 1, 0
        if count > most:
            return None
        # When each number became free: 0 for fresh ones.
        freed = np.full(most, most + 1, np.int64)
        freed[self.last_group_id :] = 0
        numbers = np.fromiter(self.free_groups, np.int64, len(self.free_groups))
        places, is_allowed = np.arange(1, len(numbers) + 1), numbers <= most
        freed[numbers[is_allowed] - 1] = places[is_allowed]
        latest = np.lib.stride_tricks.sliding_window_view(freed, count).max(axis=1)
        first = int(latest.argmin())
        if latest[first] > most:
            return None
        assert not any(first + 1 + i in self.groups for i in range(count)), "a number has one group at a time"
        return first + 1, max(self.free_groups.get(first + 1 + i, 0) for i in range(count))

    def move_group(self, record: GroupRecord) -> None:
        """A group begins anew, and what it was given counts as new."""
        self.make_room_before(record)
        group, struct_ = self.groups[record.group_id], self.native.groups[record.group_id]
        group.record = record
        apply.seek(self.native, record.group_id, record.start_seq)
        struct_.rows_from = record.rows_from
        self.failures.forget_group(record.group_id)

    def make_room_before(self, record: GroupRecord) -> None:
        """Of a group that is to begin earlier than ever: rows that it has not had. Raises ``DiskFull``."""
        struct_, table = self.native.groups[record.group_id], self.groups[record.group_id].deliveries
        first = max(record.rows_from, int(self.native.topics[record.topic_id].first_seq))
        end = min(int(struct_.rows_from), table.capacity)
        if first < end:
            table.reach_down(first)
            table.region.refill(*table.span(first, end))

    def ignore_order(self, group_id: int, *, ignores_order: bool) -> None:
        """Whether a group looks at ordering keys, from now on; if it does again, ``find_orders`` must follow, unless
        all is derived later."""
        group = self.groups[group_id]
        group.record = msgspec.structs.replace(group.record, ignores_order=ignores_order)
        native_store.ignore_order(self.native, group_id, is_ignored=ignores_order)

    def find_orders(self, group_id: int) -> None:
        """Makes the ordering keys busy of what subscribers hold."""
        needs_room, at = rebuild.orders(self.native, group_id, 0)
        while needs_room:
            self.grow_orders(group_id)
            needs_room, at = rebuild.orders(self.native, group_id, at)

    def grow_orders(self, group_id: int) -> None:
        """Makes room for more ordering keys that are busy in a group."""
        self._order_tables[group_id] = native_store.grow_orders(self.native, group_id)

    def ensure_deliveries(self, group_id: int, count: int) -> None:
        table = self.groups[group_id].deliveries
        table.ensure(count)
        self.native.groups[group_id].allocated = table.capacity

    # -- all --

    def _regions(self) -> list[Region]:
        tables = [self.messages, *(t.arrivals for t in self.topics.values())]
        tables += [group.deliveries for group in self.groups.values()]
        return [self.keys.region, *(table.region for table in tables)]

    def sizes(self) -> dict[str, int]:
        """File name in the directory → allocated bytes, of every table; empty in memory."""
        directory = self.directory
        if directory is None:
            return {}
        skip = (
            len(str(directory)) + 1
        )  # `relative_to` takes ten times as long, and there may be 60,000 of them
        return {
            str(region.path)[skip:]: region.allocated_bytes
            for region in self._regions()
            if region.path is not None
        }

    def sums(self) -> dict[str, int]:
        """File name in the directory → checksum, of every table; empty in memory."""
        directory = self.directory
        if directory is None:
            return {}
        return {name: table_sum(directory / name, size_bytes) for name, size_bytes in self.sizes().items()}

    def sync(self) -> None:
        """Writes all tables to the disk. Many of them at once, with whatever else their file system has: one by one,
        60,000 take a minute."""
        regions = self._regions()
        if self.directory is None or len(regions) < _MANY_TABLES:
            for region in regions:
                region.sync()
            return
        fd = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            result = memory.sync_file_system(fd)
        finally:
            os.close(fd)
        if result:
            raise OSError(-result, f"{os.strerror(-result)} (syncing {self.directory})")

    def shared_disk_bytes(self) -> int:
        """Of the tables that belong to no topic."""
        return self.messages.region.disk_bytes() + self.keys.region.disk_bytes()

    def disk_sizes(self) -> Iterator[int]:
        """What each file occupies, one after the other; those of topics that are deleted meanwhile are left out."""
        return (region.disk_bytes() for region in self._regions() if region.is_open)

    def disk_bytes(self) -> int:
        return sum(self.disk_sizes())

    def close(self) -> None:
        for region in self._regions():
            region.close()


def spans(gaps: Sequence[tuple[int, int]], start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """The ids from ``start`` to below ``end`` that do not lie in ``gaps``, in pieces of at most ``step``."""
    for gap_start, gap_end in [*gaps, (end, end)]:
        stop = min(gap_start, end)
        while start < stop:
            yield start, min(start + step, stop)
            start = min(start + step, stop)
        start = max(start, gap_end)


def parts(gaps: Sequence[tuple[int, int]], start: int, end: int, ids: int) -> Iterator[tuple[int, int]]:
    """The same in parts of ``ids``, of which each goes on behind the gaps in it: few, however many gaps there are."""
    first, count, stop = start, 0, start
    for piece_start, piece_stop in spans(gaps, start, end, ids):
        at, stop = piece_start, piece_stop
        while at < stop:
            first = first if count else at
            taken = min(stop - at, ids - count)
            at, count = at + taken, count + taken
            if count == ids:
                yield first, at
                count = 0
    if count:
        yield first, stop


def by_topic(topic_ids: npt.NDArray[np.uint16]) -> list[tuple[int, Int64Array]]:
    """The places of each topic, in order."""
    if np.count_nonzero(topic_ids == topic_ids[0]) == len(topic_ids):
        return [(int(topic_ids[0]), np.arange(len(topic_ids)))]
    order = np.argsort(topic_ids, kind="stable")
    bounds = np.flatnonzero(np.diff(topic_ids[order])) + 1
    return [(int(topic_ids[part[0]]), part) for part in np.split(order, bounds)]


def refuse_newer_tables(directory: Path) -> None:
    """Raises ``UnsupportedFormat`` when a newer version has made a derived file: then it has used the log as well."""
    for path in [*directory.glob("*.table"), *directory.glob("topics/*"), *directory.glob("keys.index")]:
        with path.open("rb") as file:
            head = file.read(12)
        magic, newest = head[:8], KEYS_MAGIC
        is_newer = magic[:6] == newest[:6] and magic[6:].isdigit() and magic > newest
        if magic in (ROWS_MAGIC, ARRIVALS_MAGIC, DELIVERIES_MAGIC) and len(head) == 12:
            is_newer = int.from_bytes(head[8:], "little") > FORMAT_VERSION
        if is_newer:
            raise UnsupportedFormat(f"{path} has a newer format than this version reads ({FORMAT_VERSION})")


def remove_derived_files(directory: Path) -> None:
    """Deletes every file that follows from the CommitLog."""
    for pattern in ("messages.table", "keys.index", "timer.*", "topics/*", "checkpoint"):
        for path in directory.glob(pattern):
            path.unlink()
