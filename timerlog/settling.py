"""Settling what was delivered, other than by an ack: leases that end, are extended or given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from native import ffi, lib
from timerlog.apply import Runs, pack_nack
from timerlog.core import Int64Array, UInt32Array, UInt64Array
from timerlog.dead_letters import DeadLetters
from timerlog.errors import DiskFull
from timerlog.failures import MAX_ERROR_CHARS, Failure
from timerlog.layout import MAX_BATCH, RECORD_HEAD_BYTES, RUN, RecordType

#: What became of a receipt that could not be used, by the code of an ACK.
REFUSALS: Final = ("", "already_acked", "stale_receipt", "not_found", "never_delivered", "cancelled")
_IN_RETRY: Final = 1

Ints: TypeAlias = Sequence[int]


class Settling(DeadLetters):
    #: (message id, why) of the receipts that ``mark_acks`` refused last.
    last_refusals: list[tuple[int, str]]

    def release_holder(self, holder: int, now_ms: int) -> int:
        """The subscriber left in good order: what it holds is given back at once. Returns how many."""
        released = 0
        for group_id in self._holder_groups.get(holder, ()):
            if group_id in self.tables.groups:
                released += self._release(group_id, holder, now_ms)
        self.drop_holder(holder)
        return released

    def _release(self, group_id: int, holder: int, now_ms: int) -> int:
        released = 0
        self._out[0] = 0
        while self.outstanding(holder):
            count = lib.tw_held_by(
                self._native, group_id, holder, self._out, self._seqs_pointer, self._epochs_pointer, MAX_BATCH
            )
            if not count:
                break
            seqs, epochs = self._seqs[:count], self._epochs[:count]
            self._times[:count] = now_ms
            runs = self._runs(seqs, epochs, self._times[:count])
            self._append_runs(RecordType.RELEASE, group_id, runs)
            self._applier.release(group_id, runs)
            released += self._expire(group_id, seqs.copy(), epochs.copy(), now_ms)
        return released

    def _expire(self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, now_ms: int) -> int:
        """Moves messages whose lease or wait has ended back to waiting, or to the dead letters after their last
        attempt. Returns how many were moved."""
        exhausted = np.empty(len(seqs), np.uint64)
        count = ffi.new("uint64_t *")
        moved = lib.tw_expire(
            self._native, group_id, ffi.from_buffer("uint64_t[]", seqs), ffi.from_buffer("uint32_t[]", epochs),
            len(seqs), now_ms, ffi.from_buffer("uint64_t[]", exhausted), count,
        )  # fmt: skip
        if count[0]:
            self._bury_or_requeue(group_id, exhausted[: count[0]], now_ms)
        return int(moved) + int(count[0])

    def _bury_or_requeue(self, group_id: int, seqs: UInt64Array, now_ms: int) -> None:
        """Makes dead letters of messages; when the disk is full they are delivered once more instead."""
        try:
            self.bury(group_id, seqs, now_ms)
        except DiskFull:
            lib.tw_requeue(self._native, group_id, ffi.from_buffer("uint64_t[]", seqs), len(seqs))

    # -- given back, extended --

    def nack(
        self,
        group_id: int,
        ids: Sequence[int],
        epochs: Sequence[int],
        delay_ms: int | None,
        error: str,
        now_ms: int,
    ) -> list[str]:
        """Gives messages back: they are delivered again after ``delay_ms`` (None: the backoff of their attempt), or
        become dead letters after their last attempt. An answer for each: ``nacked``, ``dead``, ``lease_ended``,
        or why the receipt counts no more. Raises ``DiskFull``: then nothing was changed."""
        error = error[:MAX_ERROR_CHARS]
        return self._in_parts(
            group_id, ids, epochs, lambda part, i, e: self._nack(part, i, e, delay_ms, error, now_ms)
        )

    def _in_parts(
        self,
        group_id: int,
        ids: Sequence[int],
        epochs: Sequence[int],
        act: Callable[[int, Ints, Ints], list[str]],
    ) -> list[str]:
        """Does something with receipts in the group that delivered each: for a topic with shards there are several."""
        if not self._is_sharded(self.group_record(group_id).topic_id):
            return act(group_id, ids, epochs)
        results = ["not_found"] * len(ids)
        for part, mine in self._split_by_shard(group_id, np.array(ids, np.uint64)):
            indexes = mine.tolist()
            if indexes:
                answers = act(part, [ids[i] for i in indexes], [epochs[i] for i in indexes])
                for index, answer in zip(indexes, answers, strict=True):
                    results[index] = answer
        return results

    def _nack(
        self, group_id: int, ids: Ints, epochs: Ints, delay_ms: int | None, error: str, now_ms: int
    ) -> list[str]:
        results, seqs, kept_epochs = self._judge(group_id, ids, epochs, "nacked")
        try:
            last = self._had_all_attempts(group_id, seqs, kept_epochs)
            self._give_back(group_id, seqs[~last], kept_epochs[~last], delay_ms, error, now_ms)
            if last.any():
                self._remember_last(group_id, seqs[last], kept_epochs[last], error, now_ms)
                self.bury(group_id, seqs[last], now_ms)
        except DiskFull:
            self.unmark_acks(group_id, seqs)
            raise
        dead = iter(last.tolist())
        return ["dead" if result == "nacked" and next(dead) else result for result in results]

    def extend(self, group_id: int, ids: Ints, epochs: Ints, until_ms: int) -> list[str]:
        """Moves the end of leases to ``until_ms``. An answer for each: ``extended``, ``lease_ended``, or why the
        receipt counts no more. Raises ``DiskFull``: then nothing was changed."""
        return self._in_parts(group_id, ids, epochs, lambda part, i, e: self._extend(part, i, e, until_ms))

    def _extend(self, group_id: int, ids: Ints, epochs: Ints, until_ms: int) -> list[str]:
        results, seqs, kept_epochs = self._judge(group_id, ids, epochs, "extended")
        if len(seqs):
            times = np.full(len(seqs), until_ms, np.int64)
            try:
                self._set_timers(group_id, seqs, kept_epochs, times)
                runs = self._runs(seqs, kept_epochs, times)
                self._append_runs(RecordType.RELEASE, group_id, runs)
            except DiskFull:
                self.unmark_acks(group_id, seqs)
                raise
            self._applier.release(group_id, runs)
        return results

    def _judge(
        self, group_id: int, ids: Sequence[int], epochs: Sequence[int], accepted: str
    ) -> tuple[list[str], UInt64Array, UInt32Array]:
        """Judges receipts: an answer for each, and topic_seq and epoch of those that still count."""
        count = len(ids)
        payload = np.array(ids, "<u8").tobytes() + np.array(epochs, "<u4").tobytes()
        codes = np.empty(count, np.uint32)
        seqs, kept = np.empty(count, np.uint64), np.empty(count, np.uint32)
        good = lib.tw_ack_check(
            self._native, group_id, ffi.from_buffer("uint8_t[]", payload), count,
            ffi.from_buffer("uint64_t[]", seqs), ffi.from_buffer("uint32_t[]", kept),
            ffi.from_buffer("uint32_t[]", codes),
        )  # fmt: skip
        seqs, kept = seqs[:good], kept[:good]
        ended = self.tables.groups[group_id].deliveries.items["flags"][seqs] & _IN_RETRY != 0
        self.unmark_acks(group_id, seqs[ended])
        answers = iter(np.where(ended, "lease_ended", accepted).tolist())
        return [REFUSALS[code] or next(answers) for code in codes.tolist()], seqs[~ended], kept[~ended]

    def unmark_acks(self, group_id: int, seqs: UInt64Array) -> None:
        """Takes the marks of receipts back that were judged and then not used."""
        seqs = np.ascontiguousarray(seqs)
        lib.tw_unmark_acks(self._native, group_id, ffi.from_buffer("uint64_t[]", seqs), len(seqs))

    def mark_acks(self, group_id: int, ids: Ints, epochs: Ints) -> list[tuple[int, UInt64Array, UInt32Array]]:
        """Judges receipts for a transaction: (group, topic_seqs, epochs) of those that count, which are marked; what is
        refused is left in ``last_refusals``. Raises ``UnknownGroup``."""
        self.last_refusals = []
        marked: list[tuple[int, UInt64Array, UInt32Array]] = []

        def act(part: int, some_ids: Ints, some_epochs: Ints) -> list[str]:
            results, seqs, kept = self._judge(part, some_ids, some_epochs, "acked")
            if len(seqs):
                marked.append((part, seqs, kept))
            return results

        results = self._in_parts(group_id, ids, epochs, act)
        self.last_refusals = [(i, r) for i, r in zip(ids, results, strict=True) if r != "acked"]
        return marked

    def runs_of(self, seqs: UInt64Array, epochs: UInt32Array, times: Int64Array) -> Runs:
        """Runs that stay valid."""
        return self._runs(seqs, epochs, times).copy()

    def _had_all_attempts(self, group_id: int, seqs: UInt64Array, epochs: UInt32Array) -> np.ndarray:
        most = int(self._native.groups[group_id].max_attempts)
        if not most:
            return np.zeros(len(seqs), bool)
        last: np.ndarray = epochs - self.tables.groups[group_id].deliveries.items["base_epoch"][seqs] >= most
        return last

    def _give_back(
        self,
        group_id: int,
        seqs: UInt64Array,
        epochs: UInt32Array,
        delay_ms: int | None,
        error: str,
        now_ms: int,
    ) -> None:
        if not len(seqs):
            return
        times = now_ms + self._delays(group_id, seqs, epochs, delay_ms)
        self._set_timers(group_id, seqs, epochs, times)
        runs = self._runs(seqs, epochs, times).copy()
        pieces = [runs[start : start + MAX_BATCH // 16] for start in range(0, len(runs), MAX_BATCH // 16)]
        room = len(error.encode()) + RECORD_HEAD_BYTES + 16
        self.log.ensure_room(len(runs) * RUN.itemsize + len(pieces) * room)
        for piece in pieces:
            self.log.append(RecordType.NACK, group_id, pack_nack(piece, error))
        self.log.flush()
        for piece in pieces:
            self._applier.nack(group_id, piece, error)
        at_once = times <= now_ms
        if at_once.any():
            self._expire(group_id, seqs[at_once], epochs[at_once], now_ms)

    def _delays(
        self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, delay_ms: int | None
    ) -> Int64Array:
        if delay_ms is not None:
            return np.full(len(seqs), delay_ms, np.int64)
        group = self._native.groups[group_id]
        low, high = int(group.min_backoff_ms), int(group.max_backoff_ms)
        attempts = epochs - self.tables.groups[group_id].deliveries.items["base_epoch"][seqs]
        ids = self.tables.topics[int(group.topic_id)].arrivals.items["id"][seqs]
        pairs = zip(ids.tolist(), attempts.tolist(), strict=True)
        return np.array([lib.tw_backoff_ms(low, low, high, *pair) for pair in pairs], np.int64)

    def _set_timers(self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, times: Int64Array) -> None:
        """A timer without its change is harmless, a change without its timer would never end."""
        ahead = times > self.wheel.tick_ms
        owners = np.full(int(ahead.sum()), group_id, np.uint32)
        self.wheel.link(times[ahead], seqs[ahead], epochs[ahead], owners)

    def _remember_last(
        self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, error: str, now_ms: int
    ) -> None:
        """The last failure goes into the dead letter only, so it needs no record of its own."""
        if not error:
            return
        bases = self.tables.groups[group_id].deliveries.items["base_epoch"][seqs]
        for seq, attempt in zip(seqs.tolist(), (epochs - bases).tolist(), strict=True):
            self.tables.failures.add(group_id, seq, Failure(attempt, now_ms, error))
