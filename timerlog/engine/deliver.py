"""Leases and acks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

import numpy as np

from tickwheel_native import Buffer, delivery, lib
from timerlog.commitlog.records import in_records, pack_lease, room_for_runs
from timerlog.engine.groups import Groups
from timerlog.engine.state import Engine, LogWriter
from timerlog.engine.topics import Topics
from timerlog.errors import BeingHealed, DiskFull, StoreError
from timerlog.layout import (
    HOLDERS,
    MAX_BATCH,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_TIME_MS,
    RecordType,
    UInt32Array,
    UInt64Array,
)
from timerlog.tables.lateness import LatenessOf

FETCH_LIMIT: Final = 8192
FRAME_HEAD_BYTES: Final = 16
_ACK_HEAD: Final = struct.Struct("<II")  # group, count
_ACK_HEAD_BYTES: Final = _ACK_HEAD.size
_ACK_REPLY: Final = struct.Struct("<II")  # how many were accepted, and how many not
_DELIVER = 22
_ACK_OK = 24
_FETCH_OK = 111
_ATTEMPT: Final = np.dtype("<u2")
_MOST_ATTEMPTS: Final = 0xFFFF
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


@dataclass(frozen=True, slots=True)
class AsAnswer:
    """What a request says that messages are given out for: the frame is its answer, with a column more. ``lease_ms``:
    takes the place of the topic's settings. ``ordered_batch``: of an ordering key it is given up to so many that follow
    each other."""

    correlation: int
    lease_ms: int | None = None
    ordered_batch: int = 1


class NoFrame(Enum):
    """Why a group has nothing to give out now. False, as every frame is true."""

    NOTHING = auto()
    """No message waits."""
    AGAIN = auto()
    """So many messages were passed over that the call came to its end: call again."""

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(slots=True)
class Limits:
    """``rate``: deliveries a second, 0: any; ``cache_room``: messages that may still be given out un-acked."""

    is_paused: bool
    rate: float
    batch_size: int
    cache_room: int


class Deliver:
    """Gives messages of a group out, and takes acks."""

    def __init__(self, engine: Engine, writer: LogWriter, topics: Topics, groups: Groups) -> None:
        self._engine, self._writer, self._topics, self._groups = engine, writer, topics, groups
        self._tables, self._native, self._scratch = engine.tables, engine.native, engine.scratch
        #: How late messages were given to a group for the first time, in ms.
        self.first_lateness_ms = LatenessOf(self._tables.groups)

    # -- delivering --

    def limits(self, group_id: int) -> Limits:
        """What the topic's settings allow a group now. Raises ``UnknownGroup``."""
        record = self._tables.topics[self._groups.record(group_id).topic_id].record
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
        record = self._tables.groups[group_id].record
        return self._tables.topics[record.topic_id].record.parent or record.topic_id, record.name

    def fetch(
        self,
        group_id: int,
        holder: int,
        subscription: int,
        limit: int,
        limit_bytes: int,
        now_ms: int,
        *,
        asked: AsAnswer | None = None,
        tells_attempts: bool = False,
    ) -> bytes | NoFrame:
        """Leases up to ``limit`` messages to a holder and returns them as one DELIVER frame, or FETCH_OK if they were
        ``asked`` for; with a column of attempts if it is an answer, or if it ``tells_attempts``.

        Raises ``UnknownGroup``, ``DiskFull`` when the leases cannot be logged, and ``BeingHealed``; the messages wait
        on.
        """
        self._groups.record(group_id)
        assert 0 <= holder < HOLDERS, "who holds messages has a number"
        # The message that reaches the limit is still taken: leave room for the largest.
        limit = min(limit, FETCH_LIMIT)
        settings = self._engine.settings
        room = settings.max_frame_bytes - settings.max_body_bytes - _LARGEST_REST_BYTES
        if asked is not None or tells_attempts:
            room -= limit * _ATTEMPT.itemsize
        run_limit = 1 if asked is None else asked.ordered_batch
        limit_bytes = max(1, min(limit_bytes, room))
        count, frame_bytes = self._select(group_id, limit, limit_bytes, run_limit, now_ms)
        if not count:
            return NoFrame.AGAIN if frame_bytes == 1 else NoFrame.NOTHING
        scratch, group = self._scratch, self._native.groups[group_id]
        seqs, epochs, until_ms = scratch.seqs[:count], scratch.epochs[:count], scratch.times[:count]
        if asked is not None and asked.lease_ms is not None:
            until_ms[:] = min(now_ms + asked.lease_ms, MAX_TIME_MS)
        assert np.count_nonzero(until_ms > now_ms) == count, "a lease ends after it was given"
        assert int(epochs.min()) > int(group.fence), "receipts of groups before stay stale"
        ids = self._tables.ids_of(self._groups.record(group_id).topic_id)[seqs]
        assert np.count_nonzero(ids) == count, "what is given out is there"
        if len(damaged := self._engine.damaged(ids)):
            delivery.unselect(self._native, group_id, seqs)
            self._set_aside(damaged)
            return NoFrame.AGAIN
        try:
            self._engine.link(until_ms, seqs, epochs, group_id)
            runs = self._engine.runs(seqs, epochs, until_ms)
            self._writer.append_all(
                in_records(RecordType.LEASE, group_id, runs, lambda piece: pack_lease(piece, now_ms))
            )
        except DiskFull:
            delivery.unselect(self._native, group_id, seqs)
            raise
        self._engine.applier.lease(group_id, holder, runs)
        assert int(group.leased) >= count, "what is given out is leased"
        assert int(group.highest_epoch) >= int(epochs.max()), "the next fence is above all receipts"
        first = self.first_lateness_ms.take_of(group_id, self._native, group_id, seqs, epochs, now_ms)
        if first < count:
            self._groups.redelivered[group_id] += count - first
        frame = bytearray(frame_bytes)
        written = delivery.deliver_frame(self._native, group_id, subscription, seqs, frame)
        if written != frame_bytes:
            raise StoreError(f"a DELIVER frame of {frame_bytes} bytes came out as {written}")
        if asked is not None:
            self._add_attempts(frame, group_id, seqs, epochs)
            delivery.finish_frame(frame, len(frame) - FRAME_HEAD_BYTES, _FETCH_OK, asked.correlation)
        elif tells_attempts:
            self._add_attempts(frame, group_id, seqs, epochs)
            delivery.finish_frame(frame, len(frame) - FRAME_HEAD_BYTES, _DELIVER, 0)
        return bytes(frame)

    def _add_attempts(self, frame: bytearray, group_id: int, seqs: UInt64Array, epochs: UInt32Array) -> None:
        attempts = epochs - self._tables.deliveries_of(group_id)["base_epoch"][seqs]
        frame += np.minimum(attempts, _MOST_ATTEMPTS).astype(_ATTEMPT).tobytes()

    def _set_aside(self, damaged: UInt64Array) -> None:
        ids = damaged[self._engine.are_lost(damaged)]
        if not len(ids):
            raise BeingHealed(f"{len(damaged)} messages are damaged here, and fetched again")
        self._writer.end(RecordType.DAMAGED, np.ascontiguousarray(ids))

    def _select(
        self, group_id: int, limit: int, limit_bytes: int, run_limit: int, now_ms: int
    ) -> tuple[int, int]:
        """(messages selected, bytes of their frame); (0, 1): it may find some if it is called again."""
        into = self._scratch.seqs, self._scratch.epochs, self._scratch.times
        while True:
            count, frame_bytes, need = delivery.select(
                self._native, group_id, limit, limit_bytes, run_limit, now_ms, *into
            )
            if count or not need:
                return count, frame_bytes
            if need == delivery.NEED_MORE_TIME:
                return 0, 1
            if need == delivery.NEED_ORDERS:
                self._tables.grow_orders(group_id)
            else:
                reached = int(self._native.topics[self._native.groups[group_id].topic_id].count)
                self._tables.ensure_deliveries(group_id, max(need, min(need + _ROWS_AHEAD, reached)))

    # -- acks --

    def ack(self, payload: Buffer, correlation: int, now_ms: int) -> Acked:
        """Judges and makes the acks of one ACK payload. Raises ``ValueError`` when it is malformed, ``UnknownGroup``,
        ``DiskFull``."""
        if len(payload) < _ACK_HEAD_BYTES:
            raise ValueError("an ACK has at least 8 bytes")
        group_id, count = _ACK_HEAD.unpack_from(payload)
        if count == 0 or count > MAX_BATCH or len(payload) != _ACK_HEAD_BYTES + 12 * count:
            raise ValueError(f"an ACK of {count} messages cannot have {len(payload)} bytes")
        if self._topics.is_sharded(self._groups.record(group_id).topic_id):
            accepted = self._ack_shards(group_id, payload, count, now_ms)
        else:
            accepted = self._ack_group(group_id, memoryview(payload)[_ACK_HEAD_BYTES:], count, now_ms)
        self._engine.changes.woken.add(group_id)
        reply = self._ack_reply(payload, correlation, count, accepted)
        return Acked(reply, self._engine.log.appended_position, group_id, accepted)

    def _ack_group(self, group_id: int, receipts: memoryview, count: int, now_ms: int) -> int:
        """``receipts``: ids, then epochs. Leaves a code for each in the scratch; returns how many were accepted."""
        scratch, group = self._scratch, self._native.groups[group_id]
        assert receipts.nbytes == 12 * count, "each receipt has an id and an epoch"
        accepted = delivery.ack_check(
            self._native, group_id, receipts, scratch.seqs, scratch.epochs, scratch.codes[:count]
        )
        if accepted:
            acked_before, seqs = int(group.acked), scratch.seqs[:accepted]
            scratch.times[:accepted] = now_ms
            runs = self._engine.runs(seqs, scratch.epochs[:accepted], scratch.times[:accepted])
            try:
                self._writer.append_runs(RecordType.ACK, group_id, runs)
            except DiskFull:
                delivery.unmark_acks(self._native, group_id, seqs)
                raise
            self._engine.applier.ack(group_id, runs)
            assert int(group.acked) == acked_before + accepted, "each receipt that counts ends one delivery"
        return accepted

    def _ack_shards(self, group_id: int, payload: Buffer, count: int, now_ms: int) -> int:
        ids = np.frombuffer(payload, "<u8", count, _ACK_HEAD_BYTES)
        epochs = np.frombuffer(payload, "<u4", count, _ACK_HEAD_BYTES + 8 * count)
        codes = np.full(count, lib.TW_NOT_FOUND, np.uint32)
        self._engine.log.ensure_room(room_for_runs(count) + 64 * len(self._groups.parts_of(group_id)))
        accepted = 0
        for part, mine in self._groups.split_by_shard(group_id, ids):
            if not len(mine):
                continue
            receipts = memoryview(ids[mine].tobytes() + epochs[mine].tobytes())
            accepted += self._ack_group(part, receipts, len(mine), now_ms)
            codes[mine] = self._scratch.codes[: len(mine)]
        self._scratch.codes[:count] = codes
        return accepted

    def _ack_reply(self, payload: Buffer, correlation: int, count: int, accepted: int) -> bytes:
        exceptions = np.empty(count - accepted, _EXCEPTION)
        if accepted < count:
            refused = np.flatnonzero(self._scratch.codes[:count])
            assert len(refused) == count - accepted, "each receipt is accepted or refused"
            exceptions["index"] = refused
            exceptions["code"] = self._scratch.codes[refused]
            exceptions["id"] = np.frombuffer(payload, "<u8", count, _ACK_HEAD_BYTES)[refused]
        body = _ACK_REPLY.pack(accepted, len(exceptions)) + exceptions.tobytes()
        frame = bytearray(FRAME_HEAD_BYTES) + body
        delivery.finish_frame(frame, len(body), _ACK_OK, correlation)
        return bytes(frame)
