"""Consumer groups as a whole: deleting one, letting one begin anew elsewhere, and when one was last read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np

from timerlog.commitlog.records import GROUP_SEEN, GroupRecord
from timerlog.engine.change import Changing, Revoked
from timerlog.engine.deliver import Start
from timerlog.engine.state import Control
from timerlog.errors import DiskFull, UnknownGroup
from timerlog.layout import DeliveryState, MessageState, RecordType
from timerlog.names import check_name

_CHUNK: Final = 65_536


class Groups(Changing):
    def find_group(self, topic: str, name: str) -> int:
        """The number of a topic's group. Raises ``UnknownTopic``, ``UnknownGroup``."""
        group_id = self.tables.topics[self.topic(topic).topic_id].groups.get(name)
        if group_id is None:
            raise UnknownGroup(f"{topic!r} has no group {name!r}")
        return group_id

    def main_group(self, group_id: int) -> int:
        """The group that one belongs to: that of the whole topic for one of a shard, otherwise itself."""
        record = self.tables.groups[group_id].record
        parent = self.tables.topics[record.topic_id].record.parent
        return self.tables.topics[parent].groups.get(record.name, group_id) if parent else group_id

    def _with_parts(self, group_id: int) -> list[int]:
        return list(dict.fromkeys([group_id, *self.parts_of(group_id)]))

    def _parts_of(self, topic: str, name: str) -> list[int]:
        group_id = self.find_group(topic, name)
        if self.main_group(group_id) != group_id:
            whole = self.tables.topics[self.topic(topic).parent].record.name
            raise UnknownGroup(f"{topic!r} is a shard: name the group of {whole!r}")
        return self._with_parts(group_id)

    def describe_group(self, group_id: int) -> dict[str, Any]:
        """What is told of one group; see docs/protocol.md, GROUPS_OK."""
        group = self.tables.groups[group_id]
        record, parts = group.record, [self._native.groups[part] for part in self.parts_of(group_id)]
        return {
            "name": record.name,
            "group_id": group_id,
            "delivered": sum(int(part.deliveries) for part in parts),
            "acked": sum(int(part.acked) for part in parts),
            "leased": sum(int(part.leased) for part in parts),
            "dead": sum(int(part.dead) for part in parts),
            "backlog": sum(int(part.pending) for part in parts),
            "created_ms": record.created_ms,
            "last_read_ms": group.seen_ms,
            "ephemeral_ms": record.ephemeral_ms,
        }

    # -- making, deleting --

    def create_group(
        self, topic: str, name: str, start: Start, ephemeral_ms: int, now_ms: int
    ) -> tuple[int, bool]:
        """A group's number, and whether it was made just now. Raises ``UnknownTopic``, ``BadName``, ``TooManyGroups``,
        ``DiskFull``."""
        topic_id = self.topic(topic).topic_id
        known = self.tables.topics[topic_id].groups.get(name)
        if known is None:
            check_name(name)
        made = (self._number_for(topic_id), True) if known is None else (known, False)
        self.decided(made)
        self.open_group(topic_id, name, now_ms, start, ephemeral_ms=ephemeral_ms)
        return made

    def delete_group(self, topic: str, name: str) -> int:
        """Deletes a group, with what it knows of each message. Messages that only it was not done with are kept for it
        no longer. Returns how many it was not done with. Raises ``UnknownTopic``, ``UnknownGroup``, ``DiskFull``."""
        parts = self._parts_of(topic, name)
        backlog = sum(int(self._native.groups[part].pending) for part in self.parts_of(parts[0]))
        self.decided(backlog)
        fence = max(int(self._native.groups[part].highest_epoch) for part in parts)
        self._write_groups(self._changed(part, deleted=True, fence=fence) for part in parts)
        self._table_is_gone = True
        return backlog

    def _changed(self, group_id: int, **fields: Any) -> GroupRecord:
        return msgspec.structs.replace(self.tables.groups[group_id].record, **fields)

    def _write_groups(self, records: Iterable[GroupRecord]) -> None:
        controls: list[Control] = [
            (RecordType.GROUP_CHANGED, record.group_id, msgspec.msgpack.encode(record)) for record in records
        ]
        self._write_together(controls)

    # -- beginning anew --

    def seek_group(self, topic: str, name: str, start: Start) -> int:
        """Lets a group begin anew, where a new one with this ``start`` would: it is given every message from there on,
        also what it was done with, and nothing that lies before. Whoever holds one loses it. Returns how many messages
        it is not done with now. Raises ``UnknownTopic``, ``UnknownGroup``, ``DiskFull``."""
        parts = self._parts_of(topic, name)
        records = [self._moved(part, start) for part in parts]
        more = [record for record in records if record.start_seq < self._start_of(record.group_id)]
        if more:
            self._promise(sum(self._needs.of_another_group(r.topic_id, r.start_seq) for r in more))
        for record in more:
            self.tables.make_room_before(record)
        revoked = [held for part in parts for held in self._held_of_group(part)]
        delivering = {record.group_id: record for record in records}
        backlog = sum(self._open_from(delivering[part]) for part in self.parts_of(parts[0]))
        self.decided(backlog)
        self._write_groups(records)
        self._revoked.extend(revoked)
        self._woken.update(parts)
        return backlog

    def _open_from(self, record: GroupRecord) -> int:
        """How many messages of its topic a group will not be done with when it begins anew."""
        topic = self._native.topics[record.topic_id]
        if record.start_seq <= int(topic.first_seq):
            return int(topic.ready)
        arrivals, found = self.tables.topics[record.topic_id].arrivals.items["id"], 0
        for first in range(record.start_seq, int(topic.count), _CHUNK):
            ids = arrivals[first : min(first + _CHUNK, int(topic.count))]
            rows = self.tables.rows[ids]
            is_its_place = rows["topic_seq"] == np.arange(first, first + len(ids), dtype=np.uint64)
            found += int(np.count_nonzero(is_its_place & (rows["state"] == MessageState.READY)))
        return found

    def _start_of(self, group_id: int) -> int:
        return self.tables.groups[group_id].record.start_seq

    def _moved(self, group_id: int, start: Start) -> GroupRecord:
        record = self.tables.groups[group_id].record
        start_seq = self._start_seq(record.topic_id, start)
        return self._changed(group_id, start_seq=start_seq, first_row=min(record.rows_from, start_seq))

    def _held_of_group(self, group_id: int) -> list[Revoked]:
        """Who holds messages of a group."""
        counts, rows = self._native.groups[group_id], self.tables.groups[group_id].deliveries.items
        found: list[Revoked] = []
        for first in range(int(counts.floor_seq), int(counts.high_seq), _CHUNK):
            states = rows["state"][first : min(first + _CHUNK, int(counts.high_seq))]
            leased = (np.flatnonzero(states == DeliveryState.LEASED) + first).astype(np.uint64)
            found.extend(self._holders_of(group_id, leased))
        return found

    # -- who reads --

    def readers_changed(self, group_id: int, now_ms: int, *, has_readers: bool) -> None:
        """A group got its first subscriber, or lost its last one. On a full disk that is forgotten after a crash."""
        group = self.tables.groups.get(group_id)
        if group is None:
            return
        with suppress(DiskFull):
            self._append(RecordType.GROUP_SEEN, group_id, GROUP_SEEN.pack(now_ms, has_readers))
        self._applier.group_seen(group_id, now_ms, has_readers)

    def end_ephemeral(
        self, now_ms: int, opened_ms: int, has_readers: Callable[[int], bool]
    ) -> list[tuple[str, str]]:
        """Deletes the ephemeral groups whose time is over. ``opened_ms``: by then the subscribers of before a crash had
        gone. Returns (topic, group) of those deleted. Raises ``DiskFull``."""
        ended = []
        for group_id in self.tables.ephemeral:
            group = self.tables.groups[group_id]
            if self.main_group(group_id) != group_id or has_readers(group_id):
                continue
            left_ms = max(group.seen_ms, opened_ms) if group.has_readers else group.seen_ms
            if now_ms - max(left_ms, group.record.created_ms) >= group.record.ephemeral_ms:
                ended.append((self.tables.topics[group.record.topic_id].record.name, group.record.name))
        for topic, name in ended:
            self.delete_group(topic, name)
        return ended
