"""Ordering keys under everything that can happen to a message: whatever is redelivered, given back, cancelled, put off
or interrupted by a restart, of a key a group has only what one request was given together, gets new ones in order when
it is done with those before, and gets all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered
from tests.support.run.profile import examples
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.deliver import AsAnswer, NoFrame
from timerlog.layout import IN_A_CHAIN, DeliveryState
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

KEYS = (b"ada", b"bob")
PARKED = 4


class OrderingMachine(RuleBasedStateMachine):
    @initialize(
        max_attempts=st.sampled_from([0, 3]),
        start=st.sampled_from([0, 3]),
        is_in_order=st.sampled_from([True, True, False]),
    )
    def open(self, max_attempts: int, start: int, is_in_order: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tickwheel-ordering-"))
        self.now_ms = NOW_MS
        self.is_in_order = is_in_order
        self.store = Store.open(self.directory, SMALL, self.now_ms)
        self.topic = self.store.topics.create("t", {"max_attempts": max_attempts}, 0, self.now_ms).topic_id
        self.key_of: dict[int, bytes] = {}
        if start:
            self.send([(b"ada", 50, 0)] * start)
            pump(self.store, self.now_ms)
        self.group = self.store.groups.open(self.topic, "g", self.now_ms, "latest" if start else "earliest")
        self.before = set(self.key_of)
        self.holder = self.store.holders.acquire(self.group)
        self.held: dict[int, int] = {}
        self.batch = 0
        self.batch_of: dict[int, int] = {}
        #: Messages that were called for, or moved: their place in the order of their key is another one since.
        self.displaced: set[int] = set()
        self.seen: set[int] = set()
        self.in_order: dict[bytes, list[int]] = {key: [] for key in KEYS}
        self.ended: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close(clean=False)
            shutil.rmtree(self.directory)

    @rule(
        items=st.lists(
            st.tuples(
                st.sampled_from([*KEYS, b""]), st.sampled_from([20, 50, 90]), st.sampled_from([0, 0, 5])
            ),
            min_size=1,
            max_size=6,
        )
    )
    def send(self, items: list[tuple[bytes, int, int]]) -> None:
        for key, priority, wait_ms in items:
            message = Outbound(b"x", b"", b"", key, priority)
            tx = self.store.transactions.begin(bytes(15) + b"x", self.now_ms)
            tx.send(send_payload(self.topic, [message], self.now_ms + wait_ms))
            ((first, _),) = tx.commit()
            tx.close()
            self.key_of[first] = key

    @precondition(lambda self: not self.is_in_order)
    @rule(ignores_order=st.booleans())
    def ignore_order(self, ignores_order: bool) -> None:
        """What is held then comes in any order afterwards, but nothing is lost or given twice."""
        self.store.groups.ignore_order("t", "g", ignores_order=ignores_order)

    @precondition(lambda self: not self.is_in_order)
    @rule()
    def nothing_waits_for_another_one(self) -> None:
        self.ignore_order(True)
        while self.store.deliver.fetch(self.group, 0, 1, 100, 1 << 20, self.now_ms) is not NoFrame.NOTHING:
            pass
        native = self.store.tables.native.groups[self.group]
        rows = self.store.tables.groups[self.group].deliveries.items
        assert native.orders_count == 0
        assert not (rows["flags"][: native.high_seq] & PARKED).any()

    @rule(limit=st.integers(1, 5), run=st.sampled_from([1, 1, 2, 3]))
    def fetch(self, limit: int, run: int = 1) -> None:
        asked = AsAnswer(1, None, run)
        frame = self.store.deliver.fetch(self.group, 0, self.group, limit, 1 << 20, self.now_ms, asked=asked)
        if not frame:
            return
        self.batch += 1
        given: dict[bytes, list[int]] = {}
        for message_id, epoch in zip(*delivered(frame), strict=True):
            assert message_id not in self.ended
            assert message_id not in self.before
            key = self.key_of[message_id]
            self.batch_of[message_id] = self.batch
            if key and self.is_in_order:
                given.setdefault(key, []).append(message_id)
                assert len(given[key]) <= run
                self._nothing_was_passed_over(message_id, given[key])
            if key and message_id not in self.seen:
                self.in_order[key].append(self._seq(message_id))
            self.seen.add(message_id)
            self.held[message_id] = epoch

    def _nothing_was_passed_over(self, message_id: int, given: list[int]) -> None:
        """What was delivered before, and reached the topic before, is done, or comes with it."""
        if message_id in self.displaced:
            return
        rows = self.store.tables.groups[self.group].deliveries.items
        for other in self.seen - self.displaced - self.ended - set(given):
            if self.key_of[other] == self.key_of[message_id] and self._seq(other) < self._seq(message_id):
                assert rows["state"][self._seq(other)] in (DeliveryState.ACKED, DeliveryState.DEAD)
        together = [self._seq(one) for one in given if one not in self.displaced]
        assert together == sorted(together)

    def _seq(self, message_id: int) -> int:
        return int(self.store.tables.rows["topic_seq"][message_id])

    def _some(self, data: st.DataObject, ids: list[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(ids)), min_size=1, max_size=4, unique=True))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        ids = self._some(data, list(self.held))
        self.store.deliver.ack(ack_payload(self.group, ids, [self.held[i] for i in ids]), 1, self.now_ms)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 3_000]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        ids = self._some(data, list(self.held))
        self.store.settle.nack(self.group, ids, [self.held[i] for i in ids], delay_ms, "no", self.now_ms)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def return_unseen(self, data: st.DataObject) -> None:
        ids = self._some(data, list(self.held))
        self.store.settle.give_back(self.group, ids, [self.held[i] for i in ids], self.now_ms)

    @precondition(lambda self: self.key_of)
    @rule(
        data=st.data(), acked=st.booleans(), reset=st.booleans(), delay_ms=st.sampled_from([None, 0, 2_000])
    )
    def redeliver(self, data: st.DataObject, acked: bool, reset: bool, delay_ms: int | None) -> None:
        at_ms = None if delay_ms is None else self.now_ms + delay_ms
        ids = self._some(data, list(self.key_of))
        self.displaced.update(ids)
        self.store.change.redeliver(ids, None, at_ms, self.now_ms, acked=acked, reset_attempts=reset)

    @precondition(lambda self: self.key_of)
    @rule(data=st.data(), stop=st.booleans())
    def cancel(self, data: st.DataObject, stop: bool) -> None:
        ids = self._some(data, list(self.key_of))
        for message_id, answer in zip(
            ids, self.store.change.cancel(ids, self.now_ms, stop=stop), strict=True
        ):
            if answer in ("cancelled", "stopped"):
                self.ended.add(message_id)

    @precondition(lambda self: self.key_of)
    @rule(data=st.data(), wait_ms=st.sampled_from([0, 1_000]), priority=st.sampled_from([None, 10, 90]))
    def reschedule(self, data: st.DataObject, wait_ms: int, priority: int | None) -> None:
        ids = self._some(data, list(self.key_of))
        answers = self.store.change.reschedule(ids, self.now_ms + wait_ms, self.now_ms, priority=priority)
        self.displaced |= {i for i, answer in zip(ids, answers, strict=True) if answer == "rescheduled"}
        self.before -= {i for i, answer in zip(ids, answers, strict=True) if answer == "rescheduled"}

    @rule(step_ms=st.sampled_from([0, 1, 10, 1_500, 20_000]))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        pump(self.store, self.now_ms)

    @rule(how=st.sampled_from(["killed", "clean", "no derived files"]))
    def restart(self, how: str) -> None:
        self.store.sync()
        state = self.store.look.state_hash()
        self.store.close(clean=how == "clean")
        if how == "no derived files":
            remove_derived_files(self.directory)
        self.store = Store.open(self.directory, SMALL, self.now_ms)
        assert self.store.look.state_hash() == state
        self.holder = self.store.holders.acquire(self.group)

    @invariant()
    def of_a_key_one_batch_is_held(self) -> None:
        if not hasattr(self, "ended") or not self.is_in_order:
            return
        rows = self.store.tables.groups[self.group].deliveries.items
        for key in KEYS:
            ids = [i for i, k in self.key_of.items() if k == key and i in self.seen]
            seqs = np.array([self._seq(i) for i in ids], int)
            leased = (rows["state"][seqs] == DeliveryState.LEASED) & (rows["flags"][seqs] & IN_A_CHAIN == 0)
            batches = {self.batch_of[ids[index]] for index in np.flatnonzero(leased)}
            assert len(batches) <= 1, "what was not given together is with subscribers at the same time"

    @invariant()
    def new_ones_come_in_order(self) -> None:
        if not getattr(self, "is_in_order", False):
            return
        for seqs in self.in_order.values():
            assert seqs == sorted(seqs)

    @rule()
    def all_get_done(self) -> None:
        """Whatever happened: who goes on asking and acking gets everything that is left."""
        if not hasattr(self, "ended"):
            return
        for _ in range(200):
            self.now_ms += 10_000
            pump(self.store, self.now_ms)
            self.fetch(5, 2)
            ids = list(self.held)
            if ids:
                self.store.deliver.ack(
                    ack_payload(self.group, ids, [self.held[i] for i in ids]), 1, self.now_ms
                )
            self.held.clear()
            if not int(self.store.tables.native.groups[self.group].pending):
                break
        assert not int(self.store.tables.native.groups[self.group].pending), "messages are stuck"


TestOrdering = OrderingMachine.TestCase
TestOrdering.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
