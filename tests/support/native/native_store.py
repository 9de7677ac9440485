"""The C functions of ``native/store.h`` with the arguments and results of their twins, over guarded memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tests.twins.ingest import Ingested, Stop
from tests.twins.store import ARRIVAL, DELIVERY, GROUP, MAX_BATCH, ROW, RUN, TOPIC, Array, dtype_of
from tickwheel_native import ffi, lib

ORDER: Final = dtype_of("tw_order")
TIMER: Final = dtype_of("tw_timer")
HOLDERS: Final = 65_536
KEY_PARTITIONS: Final = 1_024
GUARD: Final = 0xA5
# So big that numpy takes each block from malloc, and that an index a few items off still hits the guard.
GUARD_BYTES: Final = 1_024
# Under AddressSanitizer the guards are out of bounds for reads as well.
_POISON: Final = getattr(ctypes.CDLL(None), "__asan_poison_memory_region", None)


@dataclass
class Plan:
    """What ``purge_plan`` found."""

    stop: int
    at: int
    dead: list[int]
    damaged: list[int]
    moved: int
    moved_bytes: int
    need: int


class Guarded:
    """Arrays, each alone in an allocation between bytes that nobody may change."""

    def __init__(self) -> None:
        self._blocks: list[Array] = []

    def array(self, count: int, dtype: Any) -> Array:
        size = count * np.dtype(dtype).itemsize
        block = np.full(size + 2 * GUARD_BYTES, GUARD, np.uint8)
        self._blocks.append(block)
        inside = block[GUARD_BYTES : GUARD_BYTES + size]
        inside[:] = 0
        if _POISON is not None:
            behind = inside.ctypes.data + size
            for address in (block.ctypes.data, behind):
                _POISON(ctypes.c_void_p(address), ctypes.c_size_t(GUARD_BYTES))
        return inside.view(dtype)

    def filled(self, values: Any, dtype: Any) -> Array:
        array = self.array(len(values), dtype)
        array[:] = values
        return array

    def check(self) -> None:
        """Fails when anything was written outside the arrays."""
        if _POISON is None:
            for block in self._blocks:
                assert (block[:GUARD_BYTES] == GUARD).all(), "written before an array"
                assert (block[-GUARD_BYTES:] == GUARD).all(), "written behind an array"


def pointer(array: Array, ctype: str) -> Any:
    return ffi.cast(ctype, array.ctypes.data)


class Outputs(Guarded):
    """The arrays of one call."""

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        self.check()

    def input(self, values: Any, dtype: Any, ctype: str) -> Any:
        return pointer(self.filled(values, dtype), ctype)

    def bytes(self, data: bytes) -> Any:
        return self.input(np.frombuffer(data, np.uint8), np.uint8, "uint8_t *")


def columns(rows: Sequence[tuple[int, ...]], width: int) -> list[list[int]]:
    """Tuples as columns; of no tuples, so many empty ones."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


class NativeStore:
    """A ``tw_store`` over guarded arrays."""

    def __init__(self, sizes: Any) -> None:
        self.memory = Guarded()
        array = self.memory.array
        self.log = array(sizes.log_bytes, np.uint8)
        self.staging = array(sizes.staging_bytes, np.uint8)
        self.rows = array(sizes.rows, ROW)
        self.keys = array(sizes.keys_bytes, np.uint8)
        self.topics = array(sizes.topics, TOPIC)
        self.groups = array(sizes.groups, GROUP)
        self.outstanding = array(HOLDERS, np.uint32)
        self.key_hashes = array(MAX_BATCH, np.uint32)
        self.key_counts = array(KEY_PARTITIONS, np.uint16)
        self.arrivals: dict[int, Array] = {}
        self.deliveries: dict[int, Array] = {}
        self._orders: dict[int, Array] = {}
        self.store = ffi.new("tw_store *")
        for name, ctype in (
            ("log", "const uint8_t *"), ("staging", "uint8_t *"), ("rows", "tw_row *"), ("keys", "uint8_t *"),
            ("topics", "tw_topic *"), ("groups", "tw_group *"), ("outstanding", "uint32_t *"),
            ("key_hashes", "uint32_t *"), ("key_counts", "uint16_t *"),
        ):  # fmt: skip
            setattr(self.store, name, pointer(getattr(self, name), ctype))
        self.store.staging_capacity = sizes.staging_bytes
        self.store.rows_allocated = sizes.rows
        self.store.keys_allocated = sizes.keys_bytes
        self.store.topics_capacity, self.store.groups_capacity = sizes.topics, sizes.groups
        lib.tw_keys_init(self.store.keys)

    def add_topic(self, topic_id: int, arrivals: int) -> None:
        self.arrivals[topic_id] = self.memory.array(arrivals, ARRIVAL)
        self.topics[topic_id]["arrivals"] = self.arrivals[topic_id].ctypes.data

    def add_group(self, group_id: int, deliveries: int) -> None:
        self.deliveries[group_id] = self.memory.array(deliveries, DELIVERY)
        self.groups[group_id]["rows"] = self.deliveries[group_id].ctypes.data

    # -- ingest.c --

    def ingest(self, data: bytes, now_ms: int, replies_capacity: int) -> Ingested:
        with Outputs() as out:
            replies = out.array(replies_capacity, np.uint8)
            result = ffi.new("tw_ingested *")
            source, into = out.bytes(data), pointer(replies, "uint8_t *")
            lib.tw_ingest(self.store, source, len(data), now_ms, into, replies_capacity, result)
            stop = Stop(result.stop)
            return Ingested(
                stop=stop,
                consumed_bytes=result.consumed_bytes,
                replies=replies[: result.reply_bytes].tobytes(),
                frames=result.frames,
                messages=result.messages,
                need=result.need if stop in (Stop.NEED_DISK, Stop.NEED_ROWS, Stop.NEED_KEYS) else 0,
                frame=(
                    result.stop_type,
                    result.stop_correlation,
                    result.stop_payload_offset,
                    result.stop_payload_bytes,
                ),
            )

    def send_check(self, payload: bytes, now_ms: int) -> tuple[int, list[int], list[int], int]:
        with Outputs() as out:
            codes, earlier = out.array(MAX_BATCH, np.uint32), out.array(MAX_BATCH, np.uint64)
            log_bytes = ffi.new("uint64_t *")
            count = lib.tw_send_check(
                self.store, out.bytes(payload), len(payload), now_ms,
                pointer(codes, "uint32_t *"), pointer(earlier, "uint64_t *"), log_bytes,
            )  # fmt: skip
            found = max(0, int(count))
            return int(count), codes[:found].tolist(), earlier[:found].tolist(), int(log_bytes[0])

    def unsend(self, first_id: int, staging_bytes: int) -> None:
        lib.tw_unsend(self.store, first_id, staging_bytes)

    # -- log.c --

    def log_append(self, record_type: int, aux: int, payload: bytes) -> int:
        with Outputs() as out:
            source = out.bytes(payload) if payload else ffi.NULL
            return int(lib.tw_log_append(self.store, record_type, aux, source, len(payload)))

    def replay(self, position: int, end: int) -> tuple[int, int, int]:
        at, need = ffi.new("uint64_t *", position), ffi.new("uint64_t *")
        result = lib.tw_replay(self.store, at, end, need)
        return int(result), int(at[0]), int(need[0])

    # -- keys.c --

    def find(self, topic_id: int, key: bytes) -> int:
        with Outputs() as out:
            return int(lib.tw_keys_find(self.store, topic_id, out.bytes(key), len(key)))

    def remove(self, message_id: int) -> int:
        return int(lib.tw_keys_remove(self.store, message_id))

    def bytes_to_grow(self, partition: int) -> int:
        return int(lib.tw_keys_bytes_to_grow(self.store, partition))

    def grow(self, partition: int) -> tuple[int, int, int]:
        freed = ffi.new("uint64_t[2]")
        result = int(lib.tw_keys_grow(self.store, partition, freed, freed + 1))
        return result, int(freed[0]), int(freed[1])

    def bytes_to_resize(self, capacity: int) -> int:
        return int(lib.tw_keys_bytes_to_resize(self.store, capacity))

    def resize(self, partition: int, capacity: int) -> tuple[int, int, int]:
        freed = ffi.new("uint64_t[2]")
        result = int(lib.tw_keys_resize(self.store, partition, capacity, freed, freed + 1))
        return result, int(freed[0]), int(freed[1])

    def fitting(self, partition: int) -> int:
        return int(lib.tw_keys_fitting(self.store, partition))

    def count(self) -> int:
        return int(lib.tw_keys_count(self.store.keys))

    # -- delivery.c --

    def due_times(self, ids: Sequence[int]) -> list[int]:
        with Outputs() as out:
            due = out.array(len(ids), np.int64)
            lib.tw_due_times(
                self.store, out.input(ids, np.uint64, "uint64_t *"), len(ids), pointer(due, "int64_t *")
            )
            return due.tolist()

    def count_lateness(
        self,
        group_id: int,
        values: Sequence[int],
        epochs: Sequence[int] | None,
        now_ms: int,
        bounds: Sequence[int],
    ) -> tuple[int, list[int], int]:
        with Outputs() as out:
            counts, total = out.array(len(bounds) + 1, np.int64), out.array(1, np.int64)
            counts[:], total[:] = 0, 0
            counted = lib.tw_count_lateness(
                self.store,
                group_id,
                out.input(values, np.uint64, "uint64_t *"),
                ffi.NULL if epochs is None else out.input(epochs, np.uint32, "uint32_t *"),
                len(values),
                now_ms,
                out.input(bounds, np.int64, "int64_t *"),
                len(bounds),
                pointer(counts, "int64_t *"),
                pointer(total, "int64_t *"),
            )
            return int(counted), counts.tolist(), int(total[0])

    def lookup(self, ids: Sequence[int], versions: Sequence[int], now_ms: int) -> list[int]:
        with Outputs() as out:
            verdicts = out.array(len(ids), np.uint8)
            sources = out.input(ids, np.uint64, "uint64_t *"), out.input(versions, np.uint32, "uint32_t *")
            due = lib.tw_lookup(self.store, *sources, len(ids), now_ms, pointer(verdicts, "uint8_t *"))
            assert due == (verdicts == 1).sum()
            return verdicts.tolist()

    def damaged(self, ids: Sequence[int]) -> list[int]:
        with Outputs() as out:
            found = out.array(len(ids), np.uint64)
            source = out.input(ids, np.uint64, "uint64_t *")
            count = lib.tw_damaged(self.store, source, len(ids), pointer(found, "uint64_t *"))
            return found[:count].tolist()

    def _runs(self, function: Any, number: int, extra: tuple[int, ...], runs: Array) -> int:
        with Outputs() as out:
            return int(function(self.store, number, *extra, out.input(runs, RUN, "tw_run *"), len(runs)))

    def apply_put(self, topic_id: int, first_seq: int, runs: Array) -> int:
        return self._runs(lib.tw_apply_put, topic_id, (first_seq,), runs)

    def apply_lease(self, group_id: int, holder: int, runs: Array) -> int:
        return self._runs(lib.tw_apply_lease, group_id, (holder,), runs)

    def apply_ack(self, group_id: int, runs: Array) -> int:
        return self._runs(lib.tw_apply_ack, group_id, (), runs)

    def apply_release(self, group_id: int, runs: Array) -> int:
        return self._runs(lib.tw_apply_release, group_id, (), runs)

    def apply_return(self, group_id: int, runs: Array, time_ms: int) -> int:
        def apply(store: Any, group: int, pointer_: Any, count: int) -> int:
            return int(lib.tw_apply_return(store, group, pointer_, count, time_ms))

        return self._runs(apply, group_id, (), runs)

    def select(
        self, group_id: int, limit: int, limit_bytes: int, now_ms: int, run_limit: int = 1
    ) -> tuple[list[tuple[int, int, int]], int, int]:
        with Outputs() as out:
            seqs, epochs, until = (out.array(limit, kind) for kind in (np.uint64, np.uint32, np.int64))
            size = ffi.new("uint64_t[2]")
            count = lib.tw_select(
                self.store, group_id, limit, limit_bytes, run_limit, now_ms,
                pointer(seqs, "uint64_t *"), pointer(epochs, "uint32_t *"), pointer(until, "int64_t *"),
                size, size + 1,
            )  # fmt: skip
            taken = zip(seqs[:count].tolist(), epochs[:count].tolist(), until[:count].tolist(), strict=True)
            return list(taken), int(size[0]), int(size[1])

    def unselect(self, group_id: int, receipts: Sequence[tuple[int, int]]) -> None:
        with Outputs() as out:
            seqs, _ = columns(receipts, 2)
            lib.tw_unselect(self.store, group_id, out.input(seqs, np.uint64, "uint64_t *"), len(seqs))

    def deliver_frame(self, group_id: int, subscription: int, seqs: Sequence[int]) -> bytes:
        """In a buffer of exactly the frame's size; one byte less is refused."""
        count, source = len(seqs), np.array(seqs, np.uint64)
        content = self.rows["record_bytes"][self._ids(group_id, seqs)].astype(int) - 48 + 39
        size = 24 + int(content.sum())
        with Outputs() as out:
            frame = out.array(size, np.uint8)
            arguments = self.store, group_id, subscription, pointer(source, "uint64_t *"), count
            assert lib.tw_deliver_frame(*arguments, pointer(frame, "uint8_t *"), size - 1) == -1
            assert lib.tw_deliver_frame(*arguments, pointer(frame, "uint8_t *"), size) == size
            return frame.tobytes()

    def _ids(self, group_id: int, seqs: Sequence[int]) -> Array:
        return self.arrivals[int(self.groups[group_id]["topic_id"])]["id"][np.array(seqs, np.int64)]

    def ack_check(self, group_id: int, payload: bytes, n: int) -> tuple[list[tuple[int, int]], list[int]]:
        with Outputs() as out:
            seqs, epochs, codes = (out.array(n, kind) for kind in (np.uint64, np.uint32, np.uint32))
            accepted = lib.tw_ack_check(
                self.store, group_id, out.bytes(payload), n,
                pointer(seqs, "uint64_t *"), pointer(epochs, "uint32_t *"), pointer(codes, "uint32_t *"),
            )  # fmt: skip
            receipts = zip(seqs[:accepted].tolist(), epochs[:accepted].tolist(), strict=True)
            return list(receipts), codes.tolist()

    def unmark_acks(self, group_id: int, seqs: Sequence[int]) -> None:
        with Outputs() as out:
            lib.tw_unmark_acks(self.store, group_id, out.input(seqs, np.uint64, "uint64_t *"), len(seqs))

    def apply_dead(self, group_id: int, runs: Array) -> int:
        return self._runs(lib.tw_apply_dead, group_id, (), runs)

    def apply_nack(self, group_id: int, runs: Array) -> int:
        return self._runs(lib.tw_apply_nack, group_id, (), runs)

    def apply_redeliver(self, group_id: int, runs: Array, how: int) -> int:
        with Outputs() as out:
            source = out.input(runs, RUN, "tw_run *")
            return int(lib.tw_apply_redeliver(self.store, group_id, source, len(runs), how))

    def apply_seek(self, group_id: int, start_seq: int) -> None:
        lib.tw_apply_seek(self.store, group_id, start_seq)

    def expire(
        self, group_id: int, receipts: Sequence[tuple[int, int]], now_ms: int
    ) -> tuple[int, list[int]]:
        with Outputs() as out:
            seqs, epochs = columns(receipts, 2)
            sources = out.input(seqs, np.uint64, "uint64_t *"), out.input(epochs, np.uint32, "uint32_t *")
            exhausted, count = out.array(len(seqs), np.uint64), ffi.new("uint64_t *")
            into = pointer(exhausted, "uint64_t *"), count
            moved = lib.tw_expire(self.store, group_id, *sources, len(seqs), now_ms, *into)
            return int(moved), exhausted[: count[0]].tolist()

    def requeue(self, group_id: int, seqs: Sequence[int]) -> None:
        with Outputs() as out:
            lib.tw_requeue(self.store, group_id, out.input(seqs, np.uint64, "uint64_t *"), len(seqs))

    # -- orders.c --

    def move_orders(self, group_id: int, capacity: int) -> None:
        table = self._orders[group_id] = self.memory.array(capacity, ORDER)
        lib.tw_orders_move(self.store, group_id, pointer(table, "tw_order *"), capacity)

    def orders_clear(self, group_id: int) -> None:
        self.groups[group_id]["orders_count"] = 0
        if group_id in self._orders:
            self._orders[group_id][:] = np.zeros(1, ORDER)

    # -- change.c --

    def judge_all(self, ids: Sequence[int]) -> list[int]:
        with Outputs() as out:
            verdicts = out.array(len(ids), np.uint8)
            source = out.input(ids, np.uint64, "uint64_t *")
            lib.tw_judge_all(self.store, source, len(ids), pointer(verdicts, "uint8_t *"))
            return verdicts.tolist()

    def apply_end(self, ids: Sequence[int], state: int) -> int:
        with Outputs() as out:
            return int(lib.tw_apply_end(self.store, out.input(ids, np.uint64, "uint64_t *"), len(ids), state))

    def apply_reschedule(self, runs: Array, priority: int) -> int:
        with Outputs() as out:
            return int(
                lib.tw_apply_reschedule(self.store, out.input(runs, RUN, "tw_run *"), len(runs), priority)
            )

    def held_by(
        self, group_id: int, holder: int, from_seq: int, capacity: int
    ) -> tuple[list[tuple[int, int]], int]:
        with Outputs() as out:
            seqs, epochs = out.array(capacity, np.uint64), out.array(capacity, np.uint32)
            at = ffi.new("uint64_t *", from_seq)
            into = pointer(seqs, "uint64_t *"), pointer(epochs, "uint32_t *")
            count = lib.tw_held_by(self.store, group_id, holder, at, *into, capacity)
            return list(zip(seqs[:count].tolist(), epochs[:count].tolist(), strict=True)), int(at[0])

    # -- rebuild.c --

    def scheduled(self, from_id: int, end_id: int, capacity: int) -> tuple[list[tuple[int, int, int]], int]:
        return self._timers(lib.tw_scheduled, from_id, capacity, end_id)

    def leased(self, group_id: int, from_seq: int, capacity: int) -> tuple[list[tuple[int, int, int]], int]:
        def leased(store: Any, at: Any, *into: Any) -> int:
            return int(lib.tw_leased(store, group_id, at, *into))

        return self._timers(leased, from_seq, capacity)

    def _timers(
        self, function: Any, start: int, capacity: int, *end: int
    ) -> tuple[list[tuple[int, int, int]], int]:
        with Outputs() as out:
            times, refs, epochs = (out.array(capacity, kind) for kind in (np.int64, np.uint64, np.uint32))
            at = ffi.new("uint64_t *", start)
            into = pointer(times, "int64_t *"), pointer(refs, "uint64_t *"), pointer(epochs, "uint32_t *")
            count = function(self.store, at, *end, capacity, *into)
            found = zip(times[:count].tolist(), refs[:count].tolist(), epochs[:count].tolist(), strict=True)
            return list(found), int(at[0])

    def forecast(
        self, timers: Sequence[tuple[int, ...]], tick: int, until_ms: Sequence[int], first: int, count: int
    ) -> tuple[list[int], list[int], list[int]]:
        with Outputs() as out:
            records = np.zeros(len(timers), TIMER)
            for name, column in zip(("due_ms", "ref", "epoch", "owner"), columns(timers, 4), strict=True):
                records[name] = column
            counts, bits = (
                out.array(3 * (len(until_ms) + 1), np.uint64),
                out.array(count // 64 + 1, np.uint64),
            )
            seen = ffi.new("tw_seen *", (pointer(bits, "uint64_t *"), first, count))
            given = out.input(records, TIMER, "tw_timer *"), len(timers), tick
            until = out.input(until_ms, np.int64, "int64_t *"), len(until_ms)
            lib.tw_forecast(self.store, *given, *until, seen, pointer(counts, "uint64_t *"))
            messages, leases, gone = counts.reshape(3, -1).tolist()
            return messages, leases, gone

    def rebuild_topics(self) -> int:
        return int(lib.tw_rebuild_topics(self.store))

    def rebuild_keys(self, from_id: int, end_id: int) -> tuple[int, int, int]:
        at, need = ffi.new("uint64_t *", from_id), ffi.new("uint64_t *")
        result = int(lib.tw_rebuild_keys(self.store, at, end_id, need))
        return result, int(at[0]), int(need[0]) if result else 0

    def skip_to_start(self, group_id: int) -> None:
        lib.tw_skip_to_start(self.store, group_id)

    def rebuild_group(self, group_id: int) -> int:
        return int(lib.tw_rebuild_group(self.store, group_id))

    def rebuild_orders(self, group_id: int, from_seq: int) -> tuple[bool, int]:
        at = ffi.new("uint64_t *", from_seq)
        return bool(lib.tw_rebuild_orders(self.store, group_id, at)), int(at[0])

    # -- bulk.c --

    def check(
        self, foreign: bytes, at: int, end: int, next_id: int, end_id: int, limit: int
    ) -> tuple[int, int, int, int]:
        with Outputs() as out:
            self.store.foreign = out.bytes(foreign)
            position, number, filled = (ffi.new("uint64_t *", value) for value in (at, next_id, 0))
            why = lib.tw_bulk_check(self.store, position, end, number, end_id, limit, filled)
            self.store.foreign = ffi.NULL
            return int(why), int(position[0]), int(number[0]), int(filled[0])

    def adopt(self, first_id: int, n: int, base: int) -> int:
        return int(lib.tw_bulk_adopt(self.store, first_id, n, base))

    # -- purge.c --

    def is_dead(self, message_id: int, now_ms: int) -> bool:
        return bool(lib.tw_is_dead(self.store, message_id, now_ms))

    def purge_plan(self, at: int, limit: int, end: int, now_ms: int, capacity: int) -> Plan:
        with Outputs() as out:
            dead, damaged = (out.array(capacity, np.uint64) for _ in range(2))
            position, result = ffi.new("uint64_t *", at), ffi.new("tw_purging *")
            stop = lib.tw_purge_plan(
                self.store, position, limit, end, now_ms, capacity,
                pointer(dead, "uint64_t *"), pointer(damaged, "uint64_t *"), result,
            )  # fmt: skip
            return Plan(
                stop=int(stop),
                at=int(position[0]),
                dead=dead[: result.dead].tolist(),
                damaged=damaged[: result.damaged].tolist(),
                moved=int(result.moved),
                moved_bytes=int(result.moved_bytes),
                need=int(result.need),
            )

    def apply_moved(self, position: int) -> tuple[int, int]:
        need = ffi.new("uint64_t *")
        return int(lib.tw_apply_moved(self.store, position, need)), int(need[0])

    def purge_count(self, ids: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        with Outputs() as out:
            topics = out.array(2 * len(self.topics), np.uint64)
            groups = out.array(3 * len(self.groups), np.uint64)
            source = out.input(ids, np.uint64, "uint64_t *")
            lib.tw_purge_count(
                self.store, source, len(ids), pointer(topics, "uint64_t *"), pointer(groups, "uint64_t *")
            )
            return topics.reshape(-1, 2).tolist(), groups.reshape(-1, 3).tolist()

    def apply_purged(self, start: int, end: int) -> int:
        return int(lib.tw_apply_purged(self.store, start, end))

    def purge_survey(
        self, from_id: int, end_id: int, now_ms: int, first: int, segment_bytes: int, segments: int
    ) -> list[list[int]]:
        with Outputs() as out:
            arrays = [out.array(segments, np.uint64) for _ in range(3)]
            lib.tw_purge_survey(
                self.store, from_id, end_id, now_ms, first, segment_bytes, segments,
                *(pointer(array, "uint64_t *") for array in arrays),
            )  # fmt: skip
            return [list(row) for row in zip(*(array.tolist() for array in arrays), strict=True)]

    def raise_first_seq(self, topic_id: int, limit: int) -> int:
        return int(lib.tw_raise_first_seq(self.store, topic_id, limit))

    def raise_first_id(self, limit: int) -> int:
        return int(lib.tw_raise_first_id(self.store, limit))

    def keys_init(self) -> None:
        lib.tw_keys_init(self.store.keys)
