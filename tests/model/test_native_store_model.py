"""Any sequence of what the engine does to a store: after each step the invariants hold, and where C has a twin, both
returned and hold the same.

All choices follow from a seed: most sequences that hypothesis would make up by itself end before a message has gone
all the way from a frame to a second delivery. It chooses the seed, and shortens the sequence when one fails.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_frames import Item, SendFrame, filler
from tests.support.native.native_pair import GROUP_TOPICS, LOG_START, NOW_MS, TOPICS, Pair, Sizes
from tests.twins import delivery
from tests.twins.ingest import Stop
from tests.twins.store import (
    CANCELLED,
    DAMAGED,
    DROPPED,
    EXPIRED,
    IS_READY,
    IS_SCHEDULED,
    ORDERED,
    RUN,
    SCHEDULED,
    UNTOUCHED,
)

HOLDERS = [1, 2, 65_535]
GROUPS = sorted(GROUP_TOPICS)
PRIORITIES = [0, 50, 50, 50, 63, 64, 255]
SIZES = Sizes(rows=160, log_bytes=32_768, staging_bytes=4_096, arrivals=90, deliveries=90)
Receipt = tuple[int, int, int]  # (group, id, epoch)


class Engine:
    """Each public method is a step; what one step passes on, others also repeat, forget and forge."""

    def __init__(self) -> None:
        self.pair = Pair(SIZES)
        self.now_ms = NOW_MS
        self.receipts: list[Receipt] = []
        self.purged = LOG_START
        self.is_damaged = False
        for group_id in GROUPS:
            self.pair.allow("groups", group_id, 6)

    @property
    def rows(self) -> Any:
        return self.pair.twin.rows[: self.pair.twin.next_id]

    def ids_in(self, *states: int) -> list[int]:
        return np.flatnonzero(np.isin(self.rows["state"], states)).tolist()

    # -- sending --

    def send(self, detail: random.Random) -> None:
        sent = [
            Item(
                body=filler(detail.randrange(30)),
                key=detail.choice([b"", b"", b"a", b"b", b"%d" % detail.randrange(40)]),
                headers=filler(detail.randrange(3)),
                time=detail.randrange(50),
                priority=detail.choice(PRIORITIES),
                order=detail.choice([b"", b"", b"o", b"p"]),
            )
            for _ in range(detail.randint(1, 12))
        ]
        columns = detail.choice([63, 47, 31, 15, 7, 6, 0])
        data = SendFrame(detail.choice(TOPICS), sent, columns, detail.choice(PRIORITIES)).encode()
        if self.pair.ingest(data, self.now_ms).stop is Stop.NEED_FLUSH:
            self.pair.flush()
            assert self.pair.ingest(data, self.now_ms).stop is not Stop.NEED_FLUSH

    def look_log_and_grow(self, detail: random.Random) -> None:
        for key in (b"a", b"%d" % detail.randrange(40), filler(detail.choice([255, 256, 70_000]))):
            self.pair.call("find", detail.choice(TOPICS), key)
        self.pair.call("count")
        self.pair.call("log_append", 2, 1, filler(detail.randrange(40)))
        self.pair.flush()
        partition = detail.randrange(1_024)
        self.pair.call("bytes_to_grow", partition)
        self.pair.call("grow", partition)

    # -- into the topic --

    def put_some(self, detail: random.Random) -> None:
        """Looks timers up, some of them stale or forged, and puts what is due into its topic."""
        ids = [detail.randint(0, self.pair.twin.next_id + 1) for _ in range(detail.randrange(12))]
        self._put(ids, [detail.choice([0, 0, 0, 1]) for _ in ids])

    def put_all(self, detail: random.Random) -> None:
        if detail.random() < 0.9:
            self.pair.flush()
        ids = self.ids_in(SCHEDULED)
        self._put(ids, self.rows["version"][ids].tolist())

    def _put(self, ids: list[int], versions: list[int]) -> None:
        verdicts = self.pair.call("lookup", ids, versions, self.now_ms + 50)
        due = dict.fromkeys(i for i, verdict in zip(ids, verdicts, strict=True) if verdict == delivery.DUE)
        for topic_id in TOPICS:
            of_topic = [i for i in due if self.rows["topic_id"][i] == topic_id]
            first_seq = int(self.pair.twin.topics[topic_id]["count"])
            self.pair.call("apply_put", topic_id, first_seq, delivery.runs(of_topic, None, None))

    def change(self, detail: random.Random) -> None:
        ids = [detail.randint(1, max(1, self.pair.twin.next_id - 1)) for _ in range(detail.randint(1, 4))]
        verdicts = self.pair.call("judge_all", ids)
        if self.pair.twin.next_id == 1:
            return
        if detail.random() < 0.5:
            self.pair.call("apply_end", ids, detail.choice([CANCELLED, CANCELLED, DAMAGED, EXPIRED, DROPPED]))
        else:
            # The engine gives no other time to what was delivered.
            ids = [i for i, how in zip(ids, verdicts, strict=True) if how in (IS_SCHEDULED, IS_READY)]
            versions = [int(self.rows["version"][i]) + 1 for i in ids]
            runs = np.array([(i, 1, v, self.now_ms + 7) for i, v in zip(ids, versions, strict=True)], RUN)
            self.pair.call("apply_reschedule", runs, detail.choice([256, 256, 0, 200]))

    def nack_or_redeliver(self, detail: random.Random) -> None:
        group_id = detail.choice(GROUPS)
        allocated = int(self.pair.twin.groups[group_id]["allocated"])
        seqs = sorted({detail.randrange(allocated) for _ in range(detail.randint(1, 4))})
        rows, start_seq = self.pair.twin.deliveries[group_id], self.pair.twin.groups[group_id]["start_seq"]
        # Only what was delivered, and is there, is given up.
        seqs = [seq for seq in seqs if seq >= start_seq and self.pair.twin.is_in_topic(group_id, seq)]
        seqs = [seq for seq in seqs if rows["state"][seq] != UNTOUCHED]
        epochs = [int(rows["epoch"][seq]) for seq in seqs]
        runs = delivery.runs(seqs, epochs, [self.now_ms + detail.choice([0, 0, 40])] * len(seqs))
        match detail.randrange(5):
            case 4:
                count = int(self.pair.twin.topics[GROUP_TOPICS[group_id]]["count"])
                self.pair.call("apply_seek", group_id, detail.choice([0, count, detail.randint(0, count)]))
            case 0:
                self.pair.call("apply_redeliver", group_id, runs, detail.randrange(4))
            case 1:
                self.pair.call("apply_dead", group_id, runs)
            case _:
                self.pair.call("apply_nack", group_id, runs)

    def damage(self, detail: random.Random) -> None:
        """The disk forgets a bit of a message that waits, and the next look at it says so."""
        self.pair.flush()
        waiting = [i for i in self.ids_in(SCHEDULED) if not self.rows["key_hash"][i]]
        if waiting:
            message_id = detail.choice(waiting)
            row = self.rows[message_id]
            place = int(row["position"]) + detail.randrange(int(row["record_bytes"]))
            bit = detail.randrange(8)
            self.is_damaged = True
            for side in self.pair.sides:
                side.log[place] ^= 1 << bit
            assert self.pair.call("lookup", [message_id], [int(row["version"])], self.now_ms + 10_000) == [
                delivery.BROKEN
            ]
            assert self.pair.call("apply_end", [message_id], DAMAGED) == 0

    # -- to a subscriber --

    def fetch(self, detail: random.Random) -> None:
        self._fetch(detail, is_logged=detail.random() < 0.8)

    def _fetch(self, detail: random.Random, *, is_logged: bool) -> None:
        group_id, holder = detail.choice(GROUPS), detail.choice(HOLDERS)
        limit, limit_bytes = detail.choice([1, 3, 12]), detail.choice([100_000, 100_000, 200, 60, 0])
        taken, frame_bytes, need = self.pair.call("select", group_id, limit, limit_bytes, self.now_ms)
        if need == delivery.NEED_ORDERS:
            self.pair.grow_orders(group_id)
        elif need:
            self.pair.allow("groups", group_id, min(need + 3, SIZES.deliveries))
        seqs, epochs, until_ms = ([lease[column] for lease in taken] for column in range(3))
        if not is_logged:
            self.pair.call("unselect", group_id, list(zip(seqs, epochs, strict=True)))
            again, _, _ = self.pair.call("select", group_id, limit, limit_bytes, self.now_ms)
            rows = self.pair.twin.rows
            ordered = any(
                rows[i]["flags"] & ORDERED for i in self._ids(group_id, [lease[0] for lease in taken])
            )
            # What waited behind an ordering key is given back to its lane, so it need not come in the same order.
            assert ordered or again[: len(taken)] == taken
            assert len({lease[0] for lease in again}) == len(again), "nothing is selected twice"
            self.pair.call("unselect", group_id, [lease[:2] for lease in again])
            return
        leases = delivery.runs(seqs, epochs, until_ms)
        assert self.pair.call("apply_lease", group_id, holder, leases) == 0
        assert len(self.pair.call("deliver_frame", group_id, 9, seqs)) == frame_bytes
        ids = self._ids(group_id, seqs)
        self.receipts += [(group_id, i, epoch) for i, epoch in zip(ids, epochs, strict=True)]

    def _ids(self, group_id: int, seqs: list[int]) -> list[int]:
        return [int(self.pair.twin.arrivals[GROUP_TOPICS[group_id]]["id"][seq]) for seq in seqs]

    # -- back --

    def ack_in_order(self, detail: random.Random) -> None:
        """What a well-behaved subscriber does."""
        count = min(len(self.receipts), detail.randint(1, 8))
        done, self.receipts = self.receipts[:count], self.receipts[count:]
        for group_id in GROUPS:
            self._ack(group_id, [(i, epoch) for group, i, epoch in done if group == group_id], True)

    def ack_anything(self, detail: random.Random) -> None:
        """Receipts of this group and of others, some twice, some never given."""
        given = [receipt[1:] for receipt in detail.choices(self.receipts, k=6)] if self.receipts else []
        forged = [(detail.randrange(170), detail.randrange(4)) for _ in range(3)] + [((1 << 64) - 1, 1)]
        self._ack(detail.choice(GROUPS), given + forged, detail.random() < 0.7)

    def _ack(self, group_id: int, receipts: list[tuple[int, int]], is_logged: bool) -> None:
        n = len(receipts)
        ids, epochs = [i for i, _ in receipts], [epoch for _, epoch in receipts]
        payload = struct.pack(f"<{n}Q", *ids) + struct.pack(f"<{n}I", *epochs)
        accepted, codes = self.pair.call("ack_check", group_id, payload, n)
        assert len(accepted) == codes.count(0)
        seqs = [seq for seq, _ in accepted]
        if is_logged:
            runs = delivery.runs(seqs, [epoch for _, epoch in accepted], [self.now_ms] * len(seqs))
            assert self.pair.call("apply_ack", group_id, runs) == 0
        else:
            self.pair.call("unmark_acks", group_id, seqs)

    def leases_end(self, detail: random.Random) -> None:
        self.now_ms += detail.choice([0, 999, 1_000, 60_000, 60_000])
        group_id = detail.choice(GROUPS)
        timers = self._timers(group_id)
        some = detail.choices(timers, k=8) if timers and detail.random() < 0.5 else timers
        forged = [(detail.randrange(100), detail.randrange(3)), ((1 << 64) - 1, 1)]
        self.pair.call("expire", group_id, some + forged, self.now_ms)

    def _timers(self, group_id: int) -> list[tuple[int, int]]:
        found, at = self.pair.call("leased", group_id, 0, 5)
        timers = list(found)
        while len(found) == 5:
            found, at = self.pair.call("leased", group_id, at, 5)
            timers += found
        return [(seq, epoch) for _, seq, epoch in timers]

    def release(self, detail: random.Random) -> None:
        group_id, holder, capacity = detail.choice(GROUPS), detail.choice(HOLDERS), detail.randint(1, 5)
        at, held = 0, [(0, 0)] * capacity
        while len(held) == capacity:
            held, at = self.pair.call("held_by", group_id, holder, at, capacity)
            seqs, epochs = [seq for seq, _ in held], [epoch for _, epoch in held]
            if detail.random() < 0.5:
                runs = delivery.runs(seqs, epochs, [self.now_ms] * len(held))
                assert self.pair.call("apply_release", group_id, runs) == 0
            else:
                runs = delivery.runs(seqs, epochs, [detail.randrange(3) for _ in held])
                assert self.pair.call("apply_return", group_id, runs, self.now_ms) == 0
            assert self.pair.call("expire", group_id, held, self.now_ms)[0] <= len(held)

    # -- a start --

    def rebuild(self, detail: random.Random) -> None:
        """What follows from the tables is derived again; the subscribers of before are gone."""
        for side in self.pair.sides:
            side.outstanding[:] = 0
        for group_id in GROUPS:
            self.pair.orders_clear(group_id)
        assert self.pair.call("rebuild_topics") == 0
        for group_id in GROUPS:
            self.pair.call("rebuild_group", group_id)
            at = 0
            while (found := self.pair.call("rebuild_orders", group_id, at))[0]:
                self.pair.grow_orders(group_id)
                at = found[1]
        before = self.pair.call("count")
        self.pair.clear_keys()
        assert self.pair.call("rebuild_keys", 1, self.pair.twin.next_id)[0] == 0
        assert self.pair.call("count") == before
        self.pair.call("scheduled", detail.randrange(20), self.pair.twin.next_id, detail.randrange(20))

    def purge(self, detail: random.Random) -> None:
        """Moves or forgets what a part of the log holds, as the engine does: plan, write, apply."""
        pair = self.pair
        pair.flush()
        end = pair.twin.staging_position
        now_ms = self.now_ms + detail.choice([0, 5, 100])
        for side in pair.sides:
            for topic_id in TOPICS:
                side.topics[topic_id]["purge_after_ms"] = 5
        pair.call("purge_survey", 1, pair.twin.next_id, now_ms, 64, 4_096, 8)
        limit = detail.choice([end, end, min(end, self.purged + detail.randrange(600))])
        plan = pair.call("purge_plan", self.purged, limit, end, now_ms, detail.choice([1, 3, 100]))
        assert self.is_damaged or (plan.stop != -1 and not plan.damaged)
        pair.flush()
        at = end
        while at < pair.twin.staging_position:
            assert pair.call("replay", at, pair.twin.staging_position)[0] == 0
            at = pair.twin.staging_position
        assert pair.call("apply_end", plan.damaged, DAMAGED) == 0
        of_topics, of_groups = pair.call("purge_count", plan.dead + plan.damaged)
        assert pair.call("apply_purged", self.purged, plan.at) == 0
        for side in pair.sides:
            for topic_id in TOPICS:
                topic = side.topics[topic_id]
                topic["purged_messages"] += of_topics[topic_id][0]
                topic["purged_cancelled"] += of_topics[topic_id][1]
            for group_id in GROUPS:
                group = side.groups[group_id]
                for name, more in zip(("acked", "dead", "deliveries"), of_groups[group_id], strict=True):
                    group[f"purged_{name}"] += more
        assert not any(self.rows["state"][plan.dead])
        self.purged = end if plan.stop == -1 else plan.at
        for topic_id in TOPICS:
            pair.call("raise_first_seq", topic_id, detail.choice([2, 100]))
        pair.call("raise_first_id", detail.choice([2, 100]))


STEPS = {
    Engine.send: 4,
    Engine.put_all: 4,
    Engine.fetch: 8,
    Engine.ack_in_order: 2,
    Engine.ack_anything: 2,
    Engine.leases_end: 4,
    Engine.release: 2,
    Engine.put_some: 1,
    Engine.change: 2,
    Engine.nack_or_redeliver: 3,
    Engine.damage: 1,
    Engine.look_log_and_grow: 1,
    Engine.rebuild: 1,
    Engine.purge: 3,
}


@given(st.integers(0, 1 << 64), st.integers(20, 100))
def test_native_store(seed: int, steps: int) -> None:
    detail, engine = random.Random(seed), Engine()
    for step in detail.choices(list(STEPS), list(STEPS.values()), k=100)[:steps]:
        step(engine, detail)
        engine.pair.check_invariants(check_log=not engine.is_damaged)
