"""Consumer groups: making and deleting one, beginning anew elsewhere, who holds its messages, and who reads it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from timerlog.commitlog.records import GROUP_ORDER, GROUP_SEEN, Control, GroupRecord
from timerlog.engine.changed import Revoked
from timerlog.engine.space import Space
from timerlog.engine.state import Engine, LogWriter
from timerlog.engine.topics import Topics
from timerlog.errors import DiskFull, TooManyGroups, TooManySubscriptions, UnknownGroup
from timerlog.files.maps import MAPS
from timerlog.layout import HOLDERS, DeliveryState, MessageState, RecordType, UInt32Array, UInt64Array
from timerlog.names import check_name
from timerlog.tables.tables import Tables

Start: TypeAlias = Literal["earliest", "latest"] | int
_CHUNK: Final = 65_536
_NOTED_EVERY_MS: Final = 60_000


class Groups:
    """All groups of the store, by their topics and names."""

    def __init__(self, engine: Engine, writer: LogWriter, space: Space, topics: Topics) -> None:
        self._engine, self._writer, self._space, self._topics = engine, writer, space, topics
        self._tables, self._native = engine.tables, engine.native
        #: Group → how many deliveries were not the first ones of their messages.
        self.redelivered: Counter[int] = Counter()

    def find(self, topic: str, name: str) -> int:
        """The number of a topic's group. Raises ``UnknownTopic``, ``UnknownGroup``."""
        group_id = self._tables.topics[self._topics.record(topic).topic_id].groups.get(name)
        if group_id is None:
            raise UnknownGroup(f"{topic!r} has no group {name!r}")
        return group_id

    def main(self, group_id: int) -> int:
        """The group that one belongs to: that of the whole topic for one of a shard, otherwise itself."""
        record = self._tables.groups[group_id].record
        parent = self._tables.topics[record.topic_id].record.parent
        return self._tables.topics[parent].groups.get(record.name, group_id) if parent else group_id

    def _with_parts(self, group_id: int) -> list[int]:
        return list(dict.fromkeys([group_id, *self.parts_of(group_id)]))

    def _parts_of(self, topic: str, name: str) -> list[int]:
        group_id = self.find(topic, name)
        if self.main(group_id) != group_id:
            whole = self._tables.topics[self._topics.record(topic).parent].record.name
            raise UnknownGroup(f"{topic!r} is a shard: name the group of {whole!r}")
        return self._with_parts(group_id)

    def parts_of(self, group_id: int) -> list[int]:
        """The groups that deliver for a group: one for each shard of its topic, or itself."""
        group = self._tables.groups.get(group_id)
        if group is None or not self._topics.is_sharded(group.record.topic_id):
            return [group_id]
        record = group.record
        return [
            self._tables.topics[shard].groups[record.name]
            for shard in self._topics.shards_of(record.topic_id)
        ]

    def record(self, group_id: int) -> GroupRecord:
        """Raises ``UnknownGroup``."""
        group = self._tables.groups.get(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group {group_id}, or no more")
        return group.record

    def split_by_shard(self, group_id: int, ids: UInt64Array) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """(group, indexes of the messages that it delivers) for each part of a group."""
        known = np.where(ids < self._tables.next_id, ids, 0)
        topics = self._tables.messages.take(known, "topic_id")
        parts = [(part, self.record(part).topic_id) for part in self.parts_of(group_id)]
        return [(part, np.flatnonzero(topics == topic_id)) for part, topic_id in parts]

    def describe(self, group_id: int) -> dict[str, Any]:
        """What is told of one group; see docs/protocol.md, GROUPS_OK."""
        group = self._tables.groups[group_id]
        record, parts = group.record, [self._native.groups[part] for part in self.parts_of(group_id)]
        return {
            "name": record.name,
            "group_id": group_id,
            "delivered": sum(int(part.deliveries) for part in parts),
            "acked": sum(int(part.acked) for part in parts),
            "leased": sum(int(part.leased) for part in parts),
            "dead": sum(int(part.dead) for part in parts),
            "backlog": self.backlog_of(group_id),
            "created_ms": record.created_ms,
            "last_read_ms": group.seen_ms,
            "ephemeral_ms": record.ephemeral_ms,
        } | ({"ignores_ordering_keys": True} if record.ignores_order else {})

    # -- making, deleting --

    def open(
        self,
        topic_id: int,
        name: str,
        now_ms: int,
        start: Start = "earliest",
        *,
        create: bool = True,
        ephemeral_ms: int = 0,
        ignores_order: bool = False,
    ) -> int:
        """The group's number, which is its own as long as it is there. ``start`` says where a new one begins: at the
        topic's ``earliest`` message, behind its ``latest`` one, or at the first that was due at an epoch ms or later.
        ``ephemeral_ms``: it ends so long after its last subscriber has left. ``ignores_order``: see ``ignore_order``.
        Raises ``UnknownGroup``, ``BadName``, ``TooManyGroups``, ``DiskFull``."""
        known = self._tables.topics[topic_id].groups.get(name)
        if known is not None:
            return known
        check_name(name)
        if not create:
            raise UnknownGroup(f"{self._tables.topics[topic_id].record.name!r} has no group {name!r}")
        controls = self.opening(
            topic_id, name, now_ms, start, ephemeral_ms=ephemeral_ms, ignores_order=ignores_order
        )
        self._writer.write_together(controls)
        return controls[0][1]

    def opening(
        self,
        topic_id: int,
        name: str,
        now_ms: int,
        start: Start,
        *,
        ephemeral_ms: int = 0,
        ignores_order: bool = False,
    ) -> list[Control]:
        """The records that make a group which is not there, the group's own first, and room for it. Raises ``BadName``,
        ``TooManyGroups``, ``DiskFull``."""
        check_name(name)
        topics = self._topics_of_group(topic_id)
        group_id, fence = self._numbers_for(topics)
        MAPS.need_room(len(topics), TooManyGroups)
        fence = max(fence, self._tables.name_fences.of(topic_id, name), self._tables.epoch_floor)
        records = [
            GroupRecord(
                group_id + i,
                part,
                name,
                self._start_seq(part, start),
                now_ms,
                ephemeral_ms=ephemeral_ms,
                fence=fence or None,
                ignores_order=ignores_order,
            )
            for i, part in enumerate(topics)
        ]
        numbers = {record.group_id for record in records}
        assert 0 < group_id <= max(numbers) <= self._engine.settings.max_groups, "C has room for the numbers"
        assert self._tables.groups.keys().isdisjoint(numbers), "a new group has numbers that nobody has"
        self._space.promise_groups(records)
        for record in records:
            self.redelivered.pop(record.group_id, None)  # of a group that is gone
        return [(RecordType.GROUP, record.group_id, msgspec.msgpack.encode(record)) for record in records]

    def _topics_of_group(self, topic_id: int) -> list[int]:
        """Those that a group of a topic needs a number for: the topic, then its shards."""
        return (
            [topic_id, *self._topics.shards_of(topic_id)] if self._topics.is_sharded(topic_id) else [topic_id]
        )

    def _number_for(self, topic_id: int) -> int:
        """That of the group that is made next, of this topic. Raises ``TooManyGroups``."""
        return self._numbers_for(self._topics_of_group(topic_id))[0]

    def _numbers_for(self, topics: Sequence[int]) -> tuple[int, int]:
        """The first of the numbers that a new group of these topics gets, and their fence. Raises
        ``TooManyGroups``."""
        found = self._tables.numbers_for_groups(len(topics))
        if found is None:
            known, most = len(self._tables.groups), self._engine.settings.max_groups
            missing = f", and no {len(topics)} consecutive numbers are free" if len(topics) > 1 else ""
            raise TooManyGroups(f"there are {known} groups of {most}{missing}")
        return found

    def create(
        self,
        topic: str,
        name: str,
        start: Start,
        ephemeral_ms: int,
        now_ms: int,
        *,
        ignores_order: bool = False,
    ) -> tuple[int, bool]:
        """A group's number, and whether it was made just now. Raises ``UnknownTopic``, ``BadName``, ``TooManyGroups``,
        ``DiskFull``."""
        topic_id = self._topics.record(topic).topic_id
        known = self._tables.topics[topic_id].groups.get(name)
        if known is None:
            check_name(name)
        made = (self._number_for(topic_id), True) if known is None else (known, False)
        self._writer.decided(made)
        group_id = self.open(
            topic_id, name, now_ms, start, ephemeral_ms=ephemeral_ms, ignores_order=ignores_order
        )
        assert group_id == made[0], "a group has the number that was told"
        return made

    def ignore_order(self, topic: str, name: str, *, ignores_order: bool) -> bool:
        """Lets a group ignore ordering keys: messages with one are given to it as those without, also those that wait
        now for another one of their key. Or look at them again: what it was given until then is in any order. False:
        it is so already. Raises ``UnknownTopic``, ``UnknownGroup``, ``DiskFull``."""
        parts = self._parts_of(topic, name)
        changes = self._tables.groups[parts[0]].record.ignores_order != ignores_order
        self._writer.decided(changes)
        if changes:
            payload = GROUP_ORDER.pack(ignores_order)
            self._writer.write_together([(RecordType.GROUP_ORDER, part, payload) for part in parts])
            for part in parts:
                self._tables.find_orders(part)
            self._engine.changes.woken.update(parts)
        return changes

    def delete(self, topic: str, name: str) -> int:
        """Deletes a group, with what it knows of each message. Messages that only it was not done with are kept for it
        no longer. Returns how many it was not done with. Raises ``UnknownTopic``, ``UnknownGroup``, ``DiskFull``."""
        backlog = self.backlog_of(self.find(topic, name))
        controls = self.deleting(topic, name)
        self._writer.decided(backlog)
        self._writer.write_together(controls)
        return backlog

    def backlog_of(self, group_id: int) -> int:
        """How many messages a group is not done with."""
        return sum(int(self._native.groups[part].pending) for part in self.parts_of(group_id))

    def deleting(self, topic: str, name: str) -> list[Control]:
        """The records that delete a group. Raises ``UnknownTopic``, ``UnknownGroup``."""
        parts = self._parts_of(topic, name)
        fence = max(int(self._native.groups[part].highest_epoch) for part in parts)
        groups = self._tables.groups
        assert all(fence >= (groups[part].record.fence or 0) for part in parts), "a fence never goes down"
        self._engine.table_is_gone = True
        return self._controls(self._changed(part, deleted=True, fence=fence) for part in parts)

    def _changed(self, group_id: int, **fields: Any) -> GroupRecord:
        return msgspec.structs.replace(self._tables.groups[group_id].record, **fields)

    def _controls(self, records: Iterable[GroupRecord]) -> list[Control]:
        return [
            (RecordType.GROUP_CHANGED, record.group_id, msgspec.msgpack.encode(record)) for record in records
        ]

    # -- beginning anew --

    def seek(self, topic: str, name: str, start: Start) -> int:
        """Lets a group begin anew, where a new one with this ``start`` would: it is given every message from there on,
        also what it was done with, and nothing that lies before. A subscription that holds one loses it. Returns
        how many messages it is not done with now. Raises ``UnknownTopic``, ``UnknownGroup``, ``DiskFull``."""
        parts = self._parts_of(topic, name)
        records = [self._moved(part, start) for part in parts]
        more = [record for record in records if record.start_seq < self._start_of(record.group_id)]
        if more:
            self._space.promise_groups(more)
        for record in more:
            self._tables.make_room_before(record)
        revoked = [held for part in parts for held in self._held_of_group(part)]
        delivering = {record.group_id: record for record in records}
        backlog = sum(self._open_from(delivering[part]) for part in self.parts_of(parts[0]))
        self._writer.decided(backlog)
        self._writer.write_together(self._controls(records))
        assert self.backlog_of(parts[0]) == backlog, "what is told is what a group is not done with"
        assert not any(self._native.groups[part].leased for part in parts), "who begins anew holds nothing"
        self._engine.changes.revoked.extend(revoked)
        self._engine.changes.woken.update(parts)
        return backlog

    def _open_from(self, record: GroupRecord) -> int:
        """How many messages of its topic a group will not be done with when it begins anew."""
        topic = self._native.topics[record.topic_id]
        if record.start_seq <= int(topic.first_seq):
            return int(topic.ready)
        arrivals, found = self._tables.ids_of(record.topic_id), 0
        for first in range(record.start_seq, int(topic.count), _CHUNK):
            ids = arrivals[first : min(first + _CHUNK, int(topic.count))]
            rows = self._tables.messages.take(ids)
            is_its_place = rows["topic_seq"] == np.arange(first, first + len(ids), dtype=np.uint64)
            found += int(np.count_nonzero(is_its_place & (rows["state"] == MessageState.READY)))
        return found

    def _start_seq(self, topic_id: int, start: Start) -> int:
        count = int(self._native.topics[topic_id].count)
        if start == "earliest":
            return 0
        if start == "latest":
            return count
        arrivals = self._tables.ids_of(topic_id)
        found = count
        # Backwards, up to the first part that was due before: messages reach a topic in order of time, nearly.
        lowest = int(self._native.topics[topic_id].first_seq)
        for end in range(count, lowest, -_CHUNK):
            first = max(lowest, end - _CHUNK)
            late = np.flatnonzero(self._tables.messages.take(arrivals[first:end], "deliver_at_ms") >= start)
            if not len(late):
                break
            found = first + int(late[0])
        return found

    def _start_of(self, group_id: int) -> int:
        return self._tables.groups[group_id].record.start_seq

    def _moved(self, group_id: int, start: Start) -> GroupRecord:
        record = self._tables.groups[group_id].record
        start_seq = self._start_seq(record.topic_id, start)
        return self._changed(group_id, start_seq=start_seq, first_row=min(record.rows_from, start_seq))

    def _held_of_group(self, group_id: int) -> list[Revoked]:
        """Subscriptions that hold messages of a group."""
        counts, rows = self._native.groups[group_id], self._tables.deliveries_of(group_id)
        found: list[Revoked] = []
        for first in range(int(counts.floor_seq), int(counts.high_seq), _CHUNK):
            states = rows["state"][first : min(first + _CHUNK, int(counts.high_seq))]
            leased = (np.flatnonzero(states == DeliveryState.LEASED) + first).astype(np.uint64)
            found.extend(self.held_by(group_id, leased))
        return found

    # -- who holds what --

    def of_messages(
        self, ids: UInt64Array, group: str | None
    ) -> Iterable[tuple[int, UInt64Array, UInt64Array]]:
        """(group id, topic_seqs, ids) for every group that messages of ``ids`` are delivered to."""
        ids = np.unique(ids)
        assert int(ids.max(initial=0)) < self._tables.next_id, "only messages that were accepted have groups"
        states = self._tables.messages.take(ids, "state")
        assert (states == MessageState.READY).all(), "only what is in its topic has a number there"
        topic_ids, seqs = (self._tables.messages.take(ids, field) for field in ("topic_id", "topic_seq"))
        known = False
        for topic_id in np.unique(topic_ids).tolist():
            is_member = topic_ids == topic_id
            for name, group_id in self._tables.topics[topic_id].groups.items():
                if group in (None, name):
                    known = True
                    yield group_id, seqs[is_member], ids[is_member]
        if group is not None and len(ids) and not known:
            raise UnknownGroup(f"no topic of these messages has a group {group!r}")

    def holders_of(self, ids: UInt64Array) -> list[Revoked]:
        """Subscriptions that hold these messages, in any group."""
        ready = ids[self._tables.messages.take(ids, "state") == MessageState.READY]
        held: list[Revoked] = []
        for group_id, seqs, _ in self.of_messages(ready, None):
            held.extend(self.held_by(group_id, seqs))
        return held

    @contextmanager
    def revoking(self, ids: UInt64Array) -> Iterator[None]:
        """Inside, messages are ended: subscriptions that hold them are told afterwards, unless it raises."""
        revoked = self.holders_of(ids)
        yield
        self._engine.changes.revoked.extend(revoked)

    def held_by(self, group_id: int, seqs: UInt64Array) -> list[Revoked]:
        """Subscriptions that hold these messages of a group."""
        seqs = seqs[seqs < int(self._native.groups[group_id].allocated)]
        group = self._tables.groups[group_id]
        rows = group.deliveries.take(seqs)
        held = (rows["state"] == DeliveryState.LEASED) & (rows["holder"] != 0)
        ids = self._tables.topics[group.record.topic_id].arrivals.take(seqs, "id")
        holders: list[Revoked] = []
        for holder in np.unique(rows["holder"][held]).tolist():
            mine = held & (rows["holder"] == holder)
            holders.append(Revoked(holder, ids[mine].tolist(), rows["epoch"][mine].tolist()))
        return holders

    # -- who reads --

    def readers_changed(self, group_id: int, now_ms: int, *, has_readers: bool) -> None:
        """A group got its first subscriber, or lost its last one. On a full disk that is forgotten after a crash."""
        group = self._tables.groups.get(group_id)
        if group is None:
            return
        with suppress(DiskFull):
            self._writer.append(RecordType.GROUP_SEEN, group_id, GROUP_SEEN.pack(now_ms, has_readers))
        self._engine.applier.group_seen(group_id, now_ms, has_readers)

    def read_once(self, group_id: int, now_ms: int) -> None:
        """A group was read, or somebody tried to, without a subscriber. It is noted now and then."""
        group = self._tables.groups[group_id]
        every_ms = min(_NOTED_EVERY_MS, group.record.ephemeral_ms // 4 or _NOTED_EVERY_MS)
        if not group.has_readers and now_ms - group.seen_ms >= every_ms:
            self.readers_changed(group_id, now_ms, has_readers=False)

    def end_ephemeral(
        self, now_ms: int, opened_ms: int, has_readers: Callable[[int], bool]
    ) -> Iterator[tuple[str, str]]:
        """Deletes the ephemeral groups whose time is over, one group a step: (topic, group). ``opened_ms``: by then the
        subscribers of before a crash had gone. The steps may be far apart: each judges its group anew. Raises
        ``DiskFull``."""
        for group_id in sorted(self._tables.ephemeral):
            is_gone = group_id not in self._tables.ephemeral
            if is_gone or self.main(group_id) != group_id or has_readers(group_id):
                continue
            group = self._tables.groups[group_id]
            assert group.record.ephemeral_ms > 0, "only an ephemeral group ends by itself"
            left_ms = max(group.seen_ms, opened_ms) if group.has_readers else group.seen_ms
            if now_ms - max(left_ms, group.record.created_ms) >= group.record.ephemeral_ms:
                topic, name = self._tables.topics[group.record.topic_id].record.name, group.record.name
                self.delete(topic, name)
                yield topic, name


FetchedUnseen: TypeAlias = Callable[[int, UInt64Array, UInt32Array], npt.NDArray[np.bool_]]


class Holders:
    """The numbers under which subscriptions hold leases."""

    def __init__(self, tables: Tables, groups: Groups) -> None:
        self._tables, self._groups = tables, groups
        self._free: deque[int] = deque(range(1, HOLDERS))
        #: Of subscribers that vanished and whose leases have not ended.
        self._draining: deque[int] = deque()
        #: Holder → the groups that deliver to it.
        self.groups: dict[int, list[int]] = {}
        #: Whether the subscriber of a number stands still, so that nobody has seen what it holds. Who serves
        #: subscribers knows.
        self.stands_still: Callable[[int], bool] = lambda _holder: False
        #: The same for messages of a group that were fetched: their ids and epochs, and an answer for each.
        self.fetched_unseen: FetchedUnseen = lambda _group_id, ids, _epochs: np.zeros(len(ids), np.bool_)

    def acquire(self, group_id: int) -> int:
        """A number under which one subscription holds leases."""
        for _ in range(len(self._draining)):
            holder = self._draining.popleft()
            (self._draining if self.outstanding(holder) else self._free).append(holder)
        if not self._free:
            raise TooManySubscriptions(f"there are {HOLDERS - 1} subscriptions already")
        holder = self._free.popleft()
        assert not self.outstanding(holder), "a number is given out when nothing is held under it"
        assert holder not in self.groups, "a number has one subscription"
        self.groups[holder] = self._groups.parts_of(group_id)
        return holder

    def drop(self, holder: int) -> None:
        """The subscriber vanished: its leases stay until they end, so that it can still ack when it comes back."""
        self.groups.pop(holder, None)
        self._draining.append(holder)
        known = len(self._free) + len(self._draining) + len(self.groups)
        assert known < HOLDERS, "a number is free, in use, or waits for its leases to end"

    def count(self, group_ids: Iterable[int]) -> int:
        """How many subscriptions there are of these groups, also those that were given nothing yet."""
        wanted = set(group_ids)
        return sum(not wanted.isdisjoint(groups) for groups in self.groups.values())

    def outstanding(self, holder: int) -> int:
        """How many un-acked messages a subscription holds."""
        return self._tables.outstanding(holder)
