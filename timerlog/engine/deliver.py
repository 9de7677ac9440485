"""Groups, leases and acks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import Buffer, ffi, lib
from timerlog.commitlog.records import GroupRecord, pack_lease
from timerlog.engine.lateness import Lateness
from timerlog.engine.state import in_records
from timerlog.engine.topics import Topics
from timerlog.errors import DiskFull, StoreError, TooManyGroups, TooManySubscriptions, UnknownGroup
from timerlog.layout import (
    HOLDERS,
    MAX_BATCH,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MessageState,
    RecordType,
    UInt64Array,
)
from timerlog.names import check_name

FETCH_LIMIT: Final = 8192
Start: TypeAlias = Literal["earliest", "latest"] | int
_SCAN: Final = 65_536
_NEED_ORDERS: Final = (1 << 64) - 1
_NEED_MORE_TIME: Final = (1 << 64) - 2
FRAME_HEAD_BYTES: Final = 16
_ACK_HEAD_BYTES: Final = 8
_ACK_OK = 24
_NOT_FOUND: Final = 3
_NO_LIMIT: Final = 1 << 40
#: What a message adds to a DELIVER frame besides its body, at most: key, headers and columns.
_LARGEST_REST_BYTES: Final = MAX_KEY_BYTES + MAX_HEADERS_BYTES + 64
_ROWS_AHEAD: Final = 4096
_EXCEPTION = np.dtype([("index", "<u4"), ("code", "<u4"), ("id", "<u8")])


@dataclass(frozen=True, slots=True)
class Acked:
    """``reply`` (an ACK_OK frame) may be sent once the log is durable up to ``position``. ``accepted``: messages
    acked by this frame."""

    reply: bytes
    position: int
    group_id: int
    accepted: int


@dataclass(slots=True)
class Limits:
    """``rate``: deliveries a second, 0: any; ``cache_room``: messages that may still be given out un-acked."""

    is_paused: bool
    rate: float
    batch_size: int
    cache_room: int


class Delivering(Topics):
    _free_holders: deque[int]
    _draining_holders: deque[int]
    _holder_groups: dict[int, list[int]]
    _seqs: Any
    _epochs: Any
    _times: Any
    _codes: Any
    #: How late messages were given to a group for the first time, in ms.
    first_lateness_ms: Lateness
    #: Group → how many deliveries were not the first ones of their messages.
    redelivered: Counter[int]

    def _make_delivering(self) -> None:
        self._free_holders = deque(range(1, HOLDERS))
        self._draining_holders = deque()
        self._holder_groups = {}
        self.first_lateness_ms = Lateness()
        self.redelivered = Counter()
        self._seqs = np.empty(MAX_BATCH, np.uint64)
        self._epochs = np.empty(MAX_BATCH, np.uint32)
        self._times = np.empty(MAX_BATCH, np.int64)
        self._codes = np.empty(MAX_BATCH, np.uint32)
        self._seqs_pointer = ffi.from_buffer("uint64_t[]", self._seqs)
        self._epochs_pointer = ffi.from_buffer("uint32_t[]", self._epochs)
        self._times_pointer = ffi.from_buffer("int64_t[]", self._times)
        self._codes_pointer = ffi.from_buffer("uint32_t[]", self._codes)
        self._out = ffi.new("uint64_t[2]")

    # -- groups and holders --

    def open_group(
        self,
        topic_id: int,
        name: str,
        now_ms: int,
        start: Start = "earliest",
        *,
        create: bool = True,
        ephemeral_ms: int = 0,
    ) -> int:
        """The group's number, which is its own as long as it is there. ``start`` says where a new one begins: at the
        topic's ``earliest`` message, behind its ``latest`` one, or at the first that was due at an epoch ms or later.
        ``ephemeral_ms``: it ends so long after its last subscriber has left. Raises ``UnknownGroup``, ``BadName``,
        ``TooManyGroups``, ``DiskFull``."""
        known = self.tables.topics[topic_id].groups.get(name)
        if known is not None:
            return known
        check_name(name)
        if not create:
            raise UnknownGroup(f"{self.tables.topics[topic_id].record.name!r} has no group {name!r}")
        topics = self._topics_of_group(topic_id)
        group_id, fence = self._numbers_for(topics)
        fence = max(fence, self.tables.name_fences.of(topic_id, name))
        records = [
            GroupRecord(
                group_id + i,
                part,
                name,
                self._start_seq(part, start),
                now_ms,
                ephemeral_ms=ephemeral_ms,
                fence=fence or None,
            )
            for i, part in enumerate(topics)
        ]
        self._promise_groups(records)
        self._write_together(
            [(RecordType.GROUP, record.group_id, msgspec.msgpack.encode(record)) for record in records]
        )
        for record in records:
            self.redelivered.pop(record.group_id, None)  # of a group that is gone
        return group_id

    def _topics_of_group(self, topic_id: int) -> list[int]:
        """Those that a group of a topic needs a number for: the topic, then its shards."""
        return [topic_id, *self.shards_of(topic_id)] if self._is_sharded(topic_id) else [topic_id]

    def _number_for(self, topic_id: int) -> int:
        """That of the group that is made next, of this topic. Raises ``TooManyGroups``."""
        return self._numbers_for(self._topics_of_group(topic_id))[0]

    def _numbers_for(self, topics: Sequence[int]) -> tuple[int, int]:
        """The first of the numbers that a new group of these topics gets, and their fence. Raises
        ``TooManyGroups``."""
        found = self.tables.numbers_for_groups(len(topics))
        if found is None:
            known, most = len(self.tables.groups), self.settings.max_groups
            missing = f", and no {len(topics)} consecutive numbers are free" if len(topics) > 1 else ""
            raise TooManyGroups(f"there are {known} groups of {most}{missing}")
        return found

    def _promise_groups(self, records: Sequence[GroupRecord]) -> None:
        """Makes room for what groups will need. That of a topic's first one was promised with the messages. Raises
        ``DiskFull``."""
        others = [record for record in records if self.tables.topics[record.topic_id].groups]
        if others:
            self._promise(sum(self._needs.of_another_group(r.topic_id, r.start_seq) for r in others))

    def _is_sharded(self, topic_id: int) -> bool:
        return bool(self.tables.topics[topic_id].record.shards)

    def parts_of(self, group_id: int) -> list[int]:
        """The groups that deliver for a group: one for each shard of its topic, or itself."""
        group = self.tables.groups.get(group_id)
        if group is None or not self._is_sharded(group.record.topic_id):
            return [group_id]
        record = group.record
        return [self.tables.topics[shard].groups[record.name] for shard in self.shards_of(record.topic_id)]

    def group_record(self, group_id: int) -> GroupRecord:
        """Raises ``UnknownGroup``."""
        group = self.tables.groups.get(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group {group_id}, or no more")
        return group.record

    def _split_by_shard(self, group_id: int, ids: UInt64Array) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """(group, indexes of the messages that it delivers) for each part of a group."""
        known = np.where(ids < self.tables.next_id, ids, 0)
        topics = self.tables.rows["topic_id"][known]
        parts = [(part, self.group_record(part).topic_id) for part in self.parts_of(group_id)]
        return [(part, np.flatnonzero(topics == topic_id)) for part, topic_id in parts]

    def _start_seq(self, topic_id: int, start: Start) -> int:
        count = int(self._native.topics[topic_id].count)
        if start == "earliest":
            return 0
        if start == "latest":
            return count
        arrivals = self.tables.topics[topic_id].arrivals.items["id"]
        found = count
        # Backwards, up to the first part that was due before: messages reach a topic in order of time, nearly.
        for end in range(count, 0, -_SCAN):
            first = max(0, end - _SCAN)
            late = np.flatnonzero(self.tables.rows["deliver_at_ms"][arrivals[first:end]] >= start)
            if not len(late):
                break
            found = first + int(late[0])
        return found

    def acquire_holder(self, group_id: int) -> int:
        """A number under which one subscription holds leases."""
        for _ in range(len(self._draining_holders)):
            holder = self._draining_holders.popleft()
            (self._draining_holders if self.outstanding(holder) else self._free_holders).append(holder)
        if not self._free_holders:
            raise TooManySubscriptions(f"there are {HOLDERS - 1} subscriptions already")
        holder = self._free_holders.popleft()
        self._holder_groups[holder] = self.parts_of(group_id)
        return holder

    def drop_holder(self, holder: int) -> None:
        """The subscriber vanished: its leases stay until they end, so that it can still ack when it comes back."""
        self._holder_groups.pop(holder, None)
        self._draining_holders.append(holder)

    def holders_of(self, group_ids: Iterable[int]) -> int:
        """How many subscriptions there are of these groups, also those that were given nothing yet."""
        wanted = set(group_ids)
        return sum(not wanted.isdisjoint(groups) for groups in self._holder_groups.values())

    def outstanding(self, holder: int) -> int:
        """How many un-acked messages a subscription holds."""
        return self.tables.outstanding(holder)

    # -- delivering --

    def limits(self, group_id: int) -> Limits:
        """What the topic's settings allow a group now. Raises ``UnknownGroup``."""
        record = self.tables.topics[self.group_record(group_id).topic_id].record
        settings = record.settings
        cache_room = _NO_LIMIT
        if settings.cache_size is not None:
            cache_room = settings.cache_size - int(self._native.groups[group_id].leased)
        return Limits(record.paused, settings.rate or 0.0, settings.batch_size or _NO_LIMIT, cache_room)

    def ack_wait_ms(self, group_id: int) -> int:
        """How long the first lease of a message lasts."""
        return int(self._native.groups[group_id].ack_wait_ms)

    def rate_owner(self, group_id: int) -> tuple[int, str]:
        """(topic, group name) that a limit of deliveries holds for: that of all shards together."""
        record = self.tables.groups[group_id].record
        return self.tables.topics[record.topic_id].record.parent or record.topic_id, record.name

    def has_ready(self, group_id: int) -> bool:
        """Whether ``fetch`` would probably bring something."""
        group = self._native.groups[group_id]
        topic = self._native.topics[group.topic_id]
        for word in range(4):
            if group.retry_lanes[word]:
                return True
            lanes = topic.lanes[word]
            while lanes:
                lowest = lanes & -lanes
                priority = word * 64 + lowest.bit_length() - 1
                if group.cursor[priority] != topic.lane_last[priority]:
                    return True
                lanes ^= lowest
        return False

    def fetch(
        self, group_id: int, holder: int, subscription: int, limit: int, limit_bytes: int, now_ms: int
    ) -> bytes | None:
        """Leases up to ``limit`` messages to a holder and returns them as one DELIVER frame; None when none waits, an
        empty one when it should be called again, because so many were passed over.

        Raises ``UnknownGroup``, and ``DiskFull`` when the leases cannot be logged; the messages wait on.
        """
        self.group_record(group_id)
        # The message that reaches the limit is still taken: leave room for the largest.
        room = self.settings.max_frame_bytes - self.settings.max_body_bytes - _LARGEST_REST_BYTES
        count, frame_bytes = self._select(
            group_id, min(limit, FETCH_LIMIT), max(1, min(limit_bytes, room)), now_ms
        )
        if not count:
            return b"" if frame_bytes == 1 else None
        seqs, epochs, until_ms = self._seqs[:count], self._epochs[:count], self._times[:count]
        if len(damaged := self._damaged(group_id, seqs)):
            lib.tw_unselect(self._native, group_id, self._seqs_pointer, count)
            self._set_aside(damaged)
            return b""
        try:
            # A timer without its lease is harmless, a lease without its timer would never end.
            self.wheel.link(until_ms, seqs, epochs, np.full(count, group_id, np.uint32))
            runs = self._runs(seqs, epochs, until_ms)
            self._append_all(
                in_records(RecordType.LEASE, group_id, runs, lambda piece: pack_lease(piece, now_ms))
            )
        except DiskFull:
            lib.tw_unselect(self._native, group_id, self._seqs_pointer, count)
            raise
        self._applier.lease(group_id, holder, runs)
        first = self.first_lateness_ms.take(
            self._native, group_id, self._seqs_pointer, self._epochs_pointer, count, now_ms
        )
        if first < count:
            self.redelivered[group_id] += count - first
        frame = bytearray(frame_bytes)
        written = lib.tw_deliver_frame(
            self._native, group_id, subscription, self._seqs_pointer, count,
            ffi.from_buffer("uint8_t[]", frame), frame_bytes,
        )  # fmt: skip
        if written != frame_bytes:
            raise StoreError(f"a DELIVER frame of {frame_bytes} bytes came out as {written}")
        return bytes(frame)

    def _damaged(self, group_id: int, seqs: UInt64Array) -> UInt64Array:
        """Those of some messages whose record does not match its checksum: it may have lain there for years since it
        was looked at last."""
        ids = self.tables.topics[self.group_record(group_id).topic_id].arrivals.items["id"][seqs]
        rows = self.tables.rows[ids]
        positions, sizes = rows["position"], rows["record_bytes"].astype(np.uint64)
        # What is still being collected for the log lies in memory.
        written = np.flatnonzero(positions + sizes <= np.uint64(self._native.log_readable))
        right = np.empty(len(written), np.uint8)
        lib.tw_check_records(
            self._native.log,
            ffi.from_buffer("uint64_t[]", np.ascontiguousarray(positions[written])),
            ffi.from_buffer("uint64_t[]", sizes[written]),
            len(written),
            ffi.from_buffer("uint8_t[]", right),
        )
        damaged: UInt64Array = ids[written[right == 0]]
        return damaged

    def _set_aside(self, ids: UInt64Array) -> None:
        self._append(RecordType.DAMAGED, 0, ids.tobytes())
        self._applier.end(np.ascontiguousarray(ids), MessageState.DAMAGED)

    def _select(self, group_id: int, limit: int, limit_bytes: int, now_ms: int) -> tuple[int, int]:
        """(messages selected, bytes of their frame); (0, 1): it may find some if it is called again."""
        out = self._out
        while True:
            count = lib.tw_select(
                self._native, group_id, limit, limit_bytes, now_ms,
                self._seqs_pointer, self._epochs_pointer, self._times_pointer, out, out + 1,
            )  # fmt: skip
            if count or not out[1]:
                return int(count), int(out[0])
            if out[1] == _NEED_MORE_TIME:
                return 0, 1
            if out[1] == _NEED_ORDERS:
                self.tables.grow_orders(group_id)
            else:
                least, reached = (
                    int(out[1]),
                    int(self._native.topics[self._native.groups[group_id].topic_id].count),
                )
                self.tables.ensure_deliveries(group_id, max(least, min(least + _ROWS_AHEAD, reached)))

    # -- acks --

    def ack(self, payload: Buffer, correlation: int, now_ms: int) -> Acked:
        """Judges and makes the acks of one ACK payload. Raises ``ValueError`` when it is malformed, ``UnknownGroup``,
        ``DiskFull``."""
        if len(payload) < _ACK_HEAD_BYTES:
            raise ValueError("an ACK has at least 8 bytes")
        group_id, count = (int(value) for value in np.frombuffer(payload, "<u4", 2))
        if count == 0 or count > MAX_BATCH or len(payload) != _ACK_HEAD_BYTES + 12 * count:
            raise ValueError(f"an ACK of {count} messages cannot have {len(payload)} bytes")
        if self._is_sharded(self.group_record(group_id).topic_id):
            accepted = self._ack_shards(group_id, payload, count, now_ms)
        else:
            accepted = self._ack_group(
                group_id, ffi.from_buffer("uint8_t[]", payload) + _ACK_HEAD_BYTES, count, now_ms
            )
        reply = self._ack_reply(payload, correlation, count, accepted)
        return Acked(reply, self.log.appended_position, group_id, accepted)

    def _ack_group(self, group_id: int, receipts: Any, count: int, now_ms: int) -> int:
        """``receipts``: ids, then epochs. Leaves a code for each in ``_codes``; returns how many were accepted."""
        accepted = int(
            lib.tw_ack_check(
                self._native,
                group_id,
                receipts,
                count,
                self._seqs_pointer,
                self._epochs_pointer,
                self._codes_pointer,
            )
        )
        if accepted:
            self._times[:accepted] = now_ms
            runs = self._runs(self._seqs[:accepted], self._epochs[:accepted], self._times[:accepted])
            try:
                self._append_runs(RecordType.ACK, group_id, runs)
            except DiskFull:
                lib.tw_unmark_acks(self._native, group_id, self._seqs_pointer, accepted)
                raise
            self._applier.ack(group_id, runs)
        return accepted

    def _ack_shards(self, group_id: int, payload: Buffer, count: int, now_ms: int) -> int:
        ids = np.frombuffer(payload, "<u8", count, _ACK_HEAD_BYTES)
        epochs = np.frombuffer(payload, "<u4", count, _ACK_HEAD_BYTES + 8 * count)
        codes = np.full(count, _NOT_FOUND, np.uint32)
        self.log.ensure_room(self._room_for_runs(count) + 64 * len(self.parts_of(group_id)))
        accepted = 0
        for part, mine in self._split_by_shard(group_id, ids):
            if not len(mine):
                continue
            receipts = ffi.from_buffer("uint8_t[]", ids[mine].tobytes() + epochs[mine].tobytes())
            accepted += self._ack_group(part, receipts, len(mine), now_ms)
            codes[mine] = self._codes[: len(mine)]
        self._codes[:count] = codes
        return accepted

    def _ack_reply(self, payload: Buffer, correlation: int, count: int, accepted: int) -> bytes:
        refused = np.flatnonzero(self._codes[:count]) if accepted < count else self._codes[:0]
        exceptions = np.empty(len(refused), _EXCEPTION)
        if len(refused):
            exceptions["index"] = refused
            exceptions["code"] = self._codes[refused]
            exceptions["id"] = np.frombuffer(payload, "<u8", count, _ACK_HEAD_BYTES)[refused]
        body = np.array([accepted, len(refused)], "<u4").tobytes() + exceptions.tobytes()
        frame = bytearray(FRAME_HEAD_BYTES) + body
        lib.tw_finish_frame(ffi.from_buffer("uint8_t[]", frame), len(body), _ACK_OK, correlation)
        return bytes(frame)
