"""Settling what was delivered, other than by an ack: leases that end, are extended or given back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tickwheel_native import delivery, lib
from timerlog.commitlog.records import Control, in_records, pack_nack, pack_returned
from timerlog.engine.dead_letters import DeadLetters
from timerlog.engine.groups import Groups, Holders
from timerlog.engine.state import Engine, LogWriter, check_time
from timerlog.engine.topics import Topics
from timerlog.errors import DiskFull
from timerlog.layout import (
    IN_A_CHAIN,
    MAX_BATCH,
    DeliveryState,
    Int64Array,
    RecordType,
    Runs,
    UInt32Array,
    UInt64Array,
)
from timerlog.tables.histories import MAX_ERROR_CHARS

#: What became of a receipt that could not be used, by the code of an ACK.
REFUSALS: Final = {
    lib.TW_ALREADY_ACKED: "already_acked",
    lib.TW_STALE_RECEIPT: "stale_receipt",
    lib.TW_NOT_FOUND: "not_found",
    lib.TW_NEVER_DELIVERED: "never_delivered",
    lib.TW_WAS_CANCELLED: "cancelled",
}

#: So often a message is given out before it counts as an attempt that a subscriber stood still with it.
MOST_UNSEEN: Final = 8

Ints: TypeAlias = Sequence[int]


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts of one group that still count. They are marked, so that none counts twice, until what is done with them
    is applied, or the marks are taken back."""

    group_id: int
    seqs: UInt64Array
    epochs: UInt32Array


def _returned(group_id: int, runs: Runs, now_ms: int) -> list[Control]:
    return in_records(RecordType.RETURNED, group_id, runs, lambda piece: pack_returned(piece, now_ms))


def _nacked(group_id: int, runs: Runs, error: str) -> list[Control]:
    return in_records(RecordType.NACK, group_id, runs, lambda piece: pack_nack(piece, error))


class Settle:
    """Ends, extends and gives back leases."""

    def __init__(
        self,
        *,
        engine: Engine,
        writer: LogWriter,
        topics: Topics,
        groups: Groups,
        holders: Holders,
        dead_letters: DeadLetters,
    ) -> None:
        self._engine, self._writer, self._topics = engine, writer, topics
        self._groups, self._holders, self._dead_letters = groups, holders, dead_letters
        self._tables, self._native, self._applier = engine.tables, engine.native, engine.applier

    def release_holder(self, holder: int, now_ms: int) -> int:
        """The subscriber left in good order: what it holds is given back at once. Returns how many. Raises
        ``DiskFull``: then the subscriber is gone all the same, and what it holds stays leased until its leases end."""
        released = 0
        try:
            while some := self.release_some(holder, now_ms, MAX_BATCH):
                released += some
            assert not self._holders.outstanding(holder), "who has left in good order holds nothing"
        finally:
            self._engine.changes.woken.update(self._holders.groups.get(holder, ()))
            self._holders.drop(holder)
        return released

    def release_some(self, holder: int, now_ms: int, limit: int) -> int:
        """Gives back up to ``limit`` messages that a subscriber holds, and returns how many; 0: it holds none any more.
        Raises ``DiskFull``."""
        assert 0 < limit <= MAX_BATCH, "the scratch has room for what is given back at once"
        for group_id in self._holders.groups.get(holder, ()):
            if group_id in self._tables.groups and self._holders.outstanding(holder):
                released = self._release(group_id, holder, now_ms, limit)
                if released:
                    return released
        return 0

    def _release(self, group_id: int, holder: int, now_ms: int, limit: int) -> int:
        count = delivery.held_by(
            store=self._native,
            group_id=group_id,
            holder=holder,
            from_seq=0,
            limit=limit,
            seqs=self._engine.scratch.seqs,
            epochs=self._engine.scratch.epochs,
        )
        if not count:
            return 0
        seqs, epochs = self._engine.scratch.seqs[:count].copy(), self._engine.scratch.epochs[:count].copy()
        runs = self._engine.runs_of(seqs, epochs, np.full(count, now_ms, np.int64))
        self._writer.append_all(in_records(RecordType.RELEASE, group_id, runs))
        self._applier.release(group_id, runs)
        self._engine.changes.woken.add(group_id)
        return self.end_leases(group_id, seqs, epochs, now_ms)

    def return_unseen(self, group_id: int, holder: int, ids: Ints, epochs: Ints, now_ms: int) -> int:
        """Gives messages back that a subscriber holds, or held before its connection broke, and has not looked at:
        their delivery is no attempt. Returns how many; receipts that count no more, and those of messages that another
        subscriber holds, are passed over. Raises ``UnknownGroup``, ``DiskFull``: then nothing was changed."""
        _, judged = self._judge(group_id, ids, epochs, "returned")
        receipts = [self._without_others(part, holder) for part in judged]
        self._return(group_id, receipts, now_ms)
        return sum(len(part.seqs) for part in receipts)

    def give_back(self, group_id: int, ids: Ints, epochs: Ints, now_ms: int) -> list[str]:
        """The same by receipts alone, whoever holds the messages. An answer for each: ``returned``, ``lease_ended``, or
        why the receipt counts no more. Raises ``UnknownGroup``, ``DiskFull``: then nothing was changed."""
        results, receipts = self._judge(group_id, ids, epochs, "returned")
        self._writer.decided(results)
        self._return(group_id, receipts, now_ms)
        return results

    def _return(self, group_id: int, receipts: Sequence[Receipts], now_ms: int) -> None:
        with self._unmarked_on_error(receipts):
            parts = [(part, self._unseen_runs(part)) for part in receipts]
            self._writer.append_all(
                [record for part, runs in parts for record in _returned(part.group_id, runs, now_ms)]
            )
        for part, runs in parts:
            self._applier.returned(part.group_id, runs, now_ms)
            ended = self.end_leases(part.group_id, part.seqs, part.epochs, now_ms)
            assert ended == len(part.seqs), "each receipt that counts ends one lease"
        self._engine.changes.woken.add(group_id)

    def _without_others(self, part: Receipts, holder: int) -> Receipts:
        held_by = self._tables.deliveries_of(part.group_id)["holder"][part.seqs]
        others = [one for one in np.unique(held_by).tolist() if one != holder and one in self._holders.groups]
        return self._without(part, np.isin(held_by, others))

    def _without(self, part: Receipts, which: npt.NDArray[np.bool_]) -> Receipts:
        """Takes the marks of some receipts back; returns the others."""
        self.unmark_acks(part.group_id, part.seqs[which])
        return Receipts(part.group_id, part.seqs[~which], part.epochs[~which])

    def _unseen_runs(self, part: Receipts) -> Runs:
        """One attempt less, and never less than none: what was given back right before the broker was killed may be
        given back again after its start."""
        bases = self._tables.deliveries_of(part.group_id)["base_epoch"][part.seqs]
        return self._engine.runs_of(
            part.seqs, part.epochs, np.minimum(bases.astype(np.int64) + 1, part.epochs)
        )

    def lapse(self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, now_ms: int) -> int:
        """As ``end_leases``, for leases that have run out. ``Changes`` tells who has let them. Of a subscriber that
        stands still they were no attempt, unless their message was given out often: what makes its subscribers stand
        still must become a dead letter in the end."""
        group = self._native.groups[group_id]
        known = np.flatnonzero(seqs < int(group.allocated))
        ended = self._tables.groups[group_id].deliveries.take(seqs[known])
        is_over = (ended["state"] == DeliveryState.LEASED) & (ended["epoch"] == epochs[known])
        is_over &= (ended["time_ms"] <= now_ms) & (ended["flags"] & IN_A_CHAIN == 0)
        lapsed = known[is_over]
        if len(lapsed):
            is_unseen = self._are_unseen(group_id, seqs[lapsed], epochs[lapsed], ended["holder"][is_over])
            is_unseen &= epochs[lapsed] - int(group.fence) <= MOST_UNSEEN
            if is_unseen.any():
                self._uncount(group_id, seqs[lapsed[is_unseen]], epochs[lapsed[is_unseen]], now_ms)
        return self.end_leases(group_id, seqs, epochs, now_ms)

    def _are_unseen(
        self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, holders: npt.NDArray[np.uint16]
    ) -> npt.NDArray[np.bool_]:
        """Of leases that have run out: whose subscribers stand still. Fetched messages have holder 0."""
        every = np.unique(holders[holders != 0]).tolist()
        self._engine.changes.lapsed.update(every)
        is_unseen = np.isin(holders, [one for one in every if self._holders.stands_still(one)])
        if len(fetched := np.flatnonzero(holders == 0)):
            ids = self._tables.ids_of(self._groups.record(group_id).topic_id)[seqs[fetched]]
            is_unseen[fetched] = self._holders.fetched_unseen(group_id, ids, epochs[fetched])
        return is_unseen

    def _uncount(self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, now_ms: int) -> None:
        """On a full disk they stay attempts."""
        runs = self._unseen_runs(Receipts(group_id, seqs, epochs))
        with suppress(DiskFull):
            self._writer.append_all(_returned(group_id, runs, now_ms))
            self._applier.returned(group_id, runs, now_ms)

    def end_leases(self, group_id: int, seqs: UInt64Array, epochs: UInt32Array, now_ms: int) -> int:
        """Moves messages whose lease or wait has ended back to waiting, or to the dead letters after their last
        attempt; one may have several timers. Returns how many were moved. What should be a dead letter and cannot be
        waits for delivery again."""
        assert len(seqs) == len(epochs), "each lease that ends has its epoch"
        exhausted = np.empty(len(seqs), np.uint64)
        moved, count = delivery.expire(self._native, group_id, seqs, epochs, now_ms, exhausted)
        if count:
            _, first = np.unique(exhausted[:count], return_index=True)
            self._bury_or_requeue(group_id, exhausted[np.sort(first)], now_ms)
        return moved + count

    def _bury_or_requeue(self, group_id: int, seqs: UInt64Array, now_ms: int) -> None:
        """Makes dead letters of messages whose last lease has ended. Those that were given back or called for after
        their last attempt are delivered once more, and so are those that cannot become dead letters."""
        leased = self._tables.deliveries_of(group_id)["state"][seqs] == DeliveryState.LEASED
        again = np.concatenate([seqs[~leased], self._dead_letters.bury(group_id, seqs[leased], now_ms)])
        if len(again):
            delivery.requeue(self._native, group_id, again)

    # -- given back, extended --

    def nack(
        self,
        group_id: int,
        ids: Sequence[int],
        epochs: Sequence[int],
        delay_ms: int | None,
        error: str,
        now_ms: int,
        *,
        give_up: bool = False,
        is_attempt: bool = True,
    ) -> list[str]:
        """Gives messages back: they are delivered again after ``delay_ms`` (None: the backoff of their attempt), or
        become dead letters after their last attempt, if they can. ``give_up``: this was the last one. Without
        ``is_attempt`` none of them was, and None is at once. An answer for each: ``nacked``, ``dead``, ``lease_ended``,
        or why the receipt counts no more. Raises ``BadTime``, ``DiskFull``: then nothing was changed."""
        if not is_attempt:
            delay_ms = delay_ms or 0
        check_time(now_ms + (delay_ms or 0))
        error = error[:MAX_ERROR_CHARS]
        results, receipts = self._judge(group_id, ids, epochs, "nacked")
        with self._unmarked_on_error(receipts):
            parts = [(part, self._nack_runs(part, delay_ms, now_ms)) for part in receipts]
            unseen = [] if is_attempt else [(part.group_id, self._unseen_runs(part)) for part in receipts]
            records = [one for part_id, runs in unseen for one in _returned(part_id, runs, now_ms)]
            records += [one for part, runs in parts for one in _nacked(part.group_id, runs, error)]
            self._writer.decided(results)
            self._writer.append_all(records)
        self._engine.changes.woken.add(group_id)
        for part_id, runs in unseen:
            self._applier.returned(part_id, runs, now_ms)
        dead: set[int] = set()
        for part, runs in parts:
            last = np.ones(len(part.seqs), bool) if give_up else self._had_all_attempts(part)
            self._applier.nack(part.group_id, runs, error)
            states = self._tables.deliveries_of(part.group_id)["state"][part.seqs]
            assert (states == DeliveryState.WAITING).all(), "nobody holds what was given back"
            if is_attempt:
                dead.update(self._bury_nacked(part, last, now_ms))
            # Those that could not be buried are among them; for the dead this does nothing.
            self.end_leases(part.group_id, part.seqs, part.epochs, now_ms)
        return [
            "dead" if result == "nacked" and message_id in dead else result
            for message_id, result in zip(ids, results, strict=True)
        ]

    def _nack_runs(self, part: Receipts, delay_ms: int | None, now_ms: int) -> Runs:
        """Sets the timers of messages that are given back, and returns the runs to be logged."""
        times = now_ms + self._delays(part, delay_ms)
        assert (times >= now_ms).all(), "no wait ends before it begins"
        later = times > now_ms
        self._engine.link(times[later], part.seqs[later], part.epochs[later], part.group_id)
        return self._engine.runs_of(part.seqs, part.epochs, times)

    def _bury_nacked(self, part: Receipts, last: npt.NDArray[np.bool_], now_ms: int) -> list[int]:
        """The ids of the messages that became dead letters of those that were given back after their last attempt."""
        seqs = part.seqs[last]
        dead = np.setdiff1d(seqs, self._dead_letters.bury(part.group_id, seqs, now_ms))
        topic_id = self._tables.groups[part.group_id].record.topic_id
        ids: list[int] = self._tables.ids_of(topic_id)[dead].tolist()
        return ids

    def extend(
        self, group_id: int, ids: Ints, epochs: Ints, until_ms: int, *, only_longer: bool = False
    ) -> list[str]:
        """Moves the end of leases to ``until_ms``; ``only_longer``: not of those that end later. An answer for each:
        ``extended``, ``lease_ended``, or why the receipt counts no more. Raises ``BadTime``, ``DiskFull``: then nothing
        was changed."""
        check_time(until_ms)
        results, receipts = self._judge(group_id, ids, epochs, "extended")
        if only_longer:
            receipts = [self._without_later(part, until_ms) for part in receipts]
        with self._unmarked_on_error(receipts):
            parts = [(part.group_id, self._extend_runs(part, until_ms)) for part in receipts]
            self._writer.append_all(
                [record for part, runs in parts for record in in_records(RecordType.RELEASE, part, runs)]
            )
        for part_id, runs in parts:
            self._applier.release(part_id, runs)
        for part in receipts:
            rows = self._tables.deliveries_of(part.group_id)
            assert (rows["time_ms"][part.seqs] == until_ms).all(), "a lease ends when its holder was told"
            assert not (rows["flags"][part.seqs] & lib.TW_ACKING).any(), "no receipt stays marked"
        return results

    def _without_later(self, part: Receipts, until_ms: int) -> Receipts:
        later = self._tables.deliveries_of(part.group_id)["time_ms"][part.seqs] >= until_ms
        return self._without(part, later)

    def _extend_runs(self, part: Receipts, until_ms: int) -> Runs:
        times = np.full(len(part.seqs), until_ms, np.int64)
        self._engine.link(times, part.seqs, part.epochs, part.group_id)
        return self._engine.runs_of(part.seqs, part.epochs, times)

    # -- receipts --

    def _judge(
        self, group_id: int, ids: Ints, epochs: Ints, accepted: str
    ) -> tuple[list[str], list[Receipts]]:
        """Judges receipts: an answer for each, and those that still count by the group that delivered them: for a
        topic with shards there are several. Raises ``UnknownGroup``."""
        assert len(ids) == len(epochs), "a receipt is a message and an epoch"
        if not self._topics.is_sharded(self._groups.record(group_id).topic_id):
            results, receipts = self._judge_in(group_id, ids, epochs, accepted)
            return results, [receipts]
        results, parts = ["not_found"] * len(ids), []
        for part_id, mine in self._groups.split_by_shard(group_id, np.array(ids, np.uint64)):
            indexes = mine.tolist()
            answers, receipts = self._judge_in(
                part_id, [ids[i] for i in indexes], [epochs[i] for i in indexes], accepted
            )
            parts.append(receipts)
            for index, answer in zip(indexes, answers, strict=True):
                results[index] = answer
        return results, parts

    def _judge_in(self, group_id: int, ids: Ints, epochs: Ints, accepted: str) -> tuple[list[str], Receipts]:
        count = len(ids)
        payload = np.array(ids, "<u8").tobytes() + np.array(epochs, "<u4").tobytes()
        codes = np.empty(count, np.uint32)
        seqs, kept = np.empty(count, np.uint64), np.empty(count, np.uint32)
        good = delivery.ack_check(self._native, group_id, payload, seqs, kept, codes)
        assert good == count - np.count_nonzero(codes), "what is marked is what counts"
        judged = Receipts(group_id, seqs[:good], kept[:good])
        ended = self._tables.deliveries_of(group_id)["flags"][judged.seqs] & IN_A_CHAIN != 0
        answers = iter(np.where(ended, "lease_ended", accepted).tolist())
        results = [REFUSALS[code] if code else next(answers) for code in codes.tolist()]
        return results, self._without(judged, ended)

    @contextmanager
    def _unmarked_on_error(self, receipts: Sequence[Receipts]) -> Iterator[None]:
        """Nothing may raise once a change is in the log; before that, marks are taken back."""
        try:
            yield
        except BaseException:
            for part in receipts:
                self.unmark_acks(part.group_id, part.seqs)
            raise

    def unmark_acks(self, group_id: int, seqs: UInt64Array) -> None:
        """Takes the marks of receipts back that were judged and then not used."""
        reached = int(self._native.groups[group_id].allocated)
        assert not len(seqs) or int(seqs.max()) < reached, "what was marked has a row"
        delivery.unmark_acks(self._native, group_id, np.ascontiguousarray(seqs))

    def mark_acks(
        self, group_id: int, ids: Ints, epochs: Ints
    ) -> tuple[list[Receipts], list[tuple[int, str]]]:
        """Judges receipts for a transaction: those that count, which are marked, and (message id, why) of those that
        are refused. Raises ``UnknownGroup``."""
        results, receipts = self._judge(group_id, ids, epochs, "acked")
        refused = [(i, r) for i, r in zip(ids, results, strict=True) if r != "acked"]
        marked = sum(len(part.seqs) for part in receipts)
        assert marked + len(refused) == len(ids), "each receipt is marked or refused"
        return [part for part in receipts if len(part.seqs)], refused

    def _had_all_attempts(self, part: Receipts) -> npt.NDArray[np.bool_]:
        most = int(self._native.groups[part.group_id].max_attempts)
        if not most:
            return np.zeros(len(part.seqs), bool)
        last: npt.NDArray[np.bool_] = self._attempts(part) >= most
        return last

    def _attempts(self, part: Receipts) -> UInt32Array:
        """Which attempt each receipt is for."""
        bases = self._tables.deliveries_of(part.group_id)["base_epoch"][part.seqs]
        attempts: UInt32Array = part.epochs - bases
        return attempts

    def _delays(self, part: Receipts, delay_ms: int | None) -> Int64Array:
        if delay_ms is not None:
            return np.full(len(part.seqs), delay_ms, np.int64)
        group = self._native.groups[part.group_id]
        low, high = int(group.min_backoff_ms), int(group.max_backoff_ms)
        ids = self._tables.ids_of(int(group.topic_id))[part.seqs]
        pairs = zip(ids.tolist(), self._attempts(part).tolist(), strict=True)
        return np.array([delivery.backoff_ms(low, low, high, *pair) for pair in pairs], np.int64)
