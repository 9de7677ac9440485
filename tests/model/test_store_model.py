"""The whole store against a dict: random sends, deliveries, acks, cancels, clocks and crashes.

The model knows only what a user may rely on. After each kind of restart the state hash must be what it was, and what
was synced must be there.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest import mock

import msgspec
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.native.driver import MIB, NOW_MS
from tests.support.native.driver import SMALL as SMALL_SETTINGS
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.stores.far import BEYOND_FLOATS, FAR, begin, begin_late, narrow_tables
from tickwheel_native import lib
from timerlog.commitlog import addresses
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.errors import TransactionRefused
from timerlog.layout import MessageState
from timerlog.recovery import checkpoint
from timerlog.services.batches import DueBatch, ReadyBatch
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

NOT_HELD = ("already_acked", "stale_receipt", "never_delivered", "cancelled")
SMALL = msgspec.structs.replace(SMALL_SETTINGS, purge_after_ms=5_000)
TOTALS = ("messages", "scheduled", "cancelled", "delivered", "acked", "leased")
HOLD_MS = st.sampled_from([0, 1, 7, 900, 5_000, 20_000, 20_000_000])
APART, WITH = "apart", "with"
"""A topic without messages, and a document with whose beginning and end its group begins and ends."""
KEYS = st.one_of(st.just(b""), st.integers(0, 9).map(lambda number: b"key-%d" % number))


@dataclass
class Expected:
    """What the model knows of one message."""

    topic: int
    key: bytes
    due_ms: int
    state: str = "scheduled"  # ready, cancelled
    deliveries: int = 0
    lease_ends_ms: int = 0
    acked: bool = False
    given_back: bool = False


@dataclass
class InFlight:
    """Batches between the services, as in the daemon's channels."""

    due: list[DueBatch] = field(default_factory=list)
    ready: list[ReadyBatch] = field(default_factory=list)
    collected_ms: int = 0  # the latest clock at which any of them was collected


class StoreMachine(RuleBasedStateMachine):
    @initialize(
        position=st.sampled_from([0, FAR, BEYOND_FLOATS]),
        late=st.sampled_from([None, ((1 << 32) - 90, 1_000), (1_000, (1 << 32) - 30), (1 << 37, 1 << 37)]),
    )
    def open(self, position: int, late: tuple[int, int] | None) -> None:
        """``late``: the first id, and the first number in each topic, of a directory that is years old."""
        self.directory = Path(tempfile.mkdtemp(prefix="tickwheel-model-"))
        self.patches = ExitStack()
        # So little room that the log and its tables move again and again.
        self.patches.enter_context(mock.patch.object(addresses, "ROOM_BYTES", 2 * SMALL.segment_bytes))
        self.patches.enter_context(narrow_tables())
        if late is not None:
            begin_late(self.directory, *late, ("a", "b"), SMALL)
        elif position:
            begin(self.directory, position, SMALL)
        self.now_ms = NOW_MS
        self.messages: dict[int, Expected] = {}
        self.gone: list[Expected] = []  # purged
        self.flight = InFlight()
        self.table_is_gone = False  # since the last checkpoint, one that it names
        self.store = Store.open(self.directory, SMALL, self.now_ms)
        self.store.topics.open(APART, self.now_ms)
        self.topics = [self.store.topics.open(name, self.now_ms) for name in ("a", "b")]
        self.groups = {t: self.store.groups.open(t, "g", self.now_ms) for t in self.topics}
        self.holders = {t: self.store.holders.acquire(group) for t, group in self.groups.items()}

    def teardown(self) -> None:
        self.patches.close()
        self.store.close(clean=False)
        shutil.rmtree(self.directory)

    # -- producing --

    @rule(
        topic=st.integers(0, 1),
        items=st.lists(st.tuples(KEYS, HOLD_MS, st.binary(max_size=40)), min_size=1, max_size=8),
    )
    def send(self, topic: int, items: list[tuple[bytes, int, bytes]]) -> None:
        topic_id = self.topics[topic]
        times = [self.now_ms + hold for _, hold, _ in items]
        data = send(topic_id, [body for *_, body in items], keys=[key for key, *_ in items], times_ms=times)
        live = {(m.topic, m.key) for m in self.messages.values() if m.key and m.state != "cancelled"}
        first = self.store.tables.next_id
        ingested = self.store.produce.ingest(data, self.now_ms)
        assert ingested.consumed_bytes == len(data)
        number = first
        for (key, _, _), due_ms in zip(items, times, strict=True):
            if key and (topic_id, key) in live:
                continue
            live.add((topic_id, key))
            self.messages[number] = Expected(topic_id, key, due_ms)
            number += 1
        assert self.store.tables.next_id == number

    @rule()
    def sync(self) -> None:
        self.store.sync()

    # -- the services, with batches on their way between them --

    @rule(limit=st.integers(1, 20))
    def enqueue(self, limit: int) -> None:
        batch = self.store.enqueue_get.take(limit)
        if batch is not None:
            due = self.store.enqueue_put.link(batch, self.now_ms)
            if due is not None:
                self._collected(due)

    @rule(limit=st.integers(1, 20))
    def turn(self, limit: int) -> None:
        due = self.store.dequeue_get.turn(self.now_ms, limit)
        if due is not None:
            assert (due.due_ms <= self.now_ms).all(), "never early"
            self._collected(due)

    def _collected(self, due: DueBatch) -> None:
        if not self.flight.due and not self.flight.ready:
            self.flight.collected_ms = 0
        self.flight.collected_ms = max(self.flight.collected_ms, self.now_ms)
        self.flight.due.append(due)

    @precondition(lambda self: self.flight.due)
    @rule()
    def look_up(self) -> None:
        self.flight.ready.append(self.store.dequeue_get_message.look_up(self.flight.due.pop(0), self.now_ms))

    @precondition(lambda self: self.flight.ready)
    @rule()
    def put(self) -> None:
        ready = self.flight.ready.pop(0)
        assert not len(ready.damaged)
        counts = self.store.tables.native.topics
        before = {topic_id: int(counts[topic_id].count) for topic_id in self.topics}
        self.store.dequeue_put_message.move(ready, self.now_ms)
        arrived = [i for topic_id in self.topics for i in self._arrivals(topic_id, before[topic_id]).tolist()]
        for message_id in arrived:
            message = self.messages[message_id]
            assert message.state == "scheduled", "into its topic once, and never when cancelled"
            # What became due before the clock went back is not un-fired.
            assert message.due_ms <= max(self.now_ms, self.flight.collected_ms), "never early"
            message.state = "ready"

    def _arrivals(self, topic_id: int, first: int = 0) -> np.ndarray:
        count = int(self.store.tables.native.topics[topic_id].count)
        arrivals = self.store.tables.topics[topic_id].arrivals
        return arrivals.items["id"][max(first, arrivals.start) : count]

    # -- delivery --

    @rule(topic=st.integers(0, 1), limit=st.integers(1, 5))
    def fetch(self, topic: int, limit: int) -> None:
        topic_id = self.topics[topic]
        frame = self.store.deliver.fetch(
            self.groups[topic_id], self.holders[topic_id], 1, limit, MIB, self.now_ms
        )
        if not frame:
            return
        for message_id, epoch in zip(*delivered(frame), strict=True):
            message = self.messages[message_id]
            assert message.topic == topic_id
            assert message.state == "ready"
            assert not message.acked, "an acked message never comes again"
            assert message.lease_ends_ms <= self.now_ms, "one holder at a time"
            message.deliveries += 1
            message.given_back = False
            assert epoch == message.deliveries
            seq = int(self.store.tables.messages.at(message_id)["topic_seq"])
            row = self.store.tables.groups[self.groups[topic_id]].deliveries.at(seq)
            message.lease_ends_ms = int(row["time_ms"])
            assert 1_000 <= message.lease_ends_ms - self.now_ms <= 8_000

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.messages)))
        message = self.messages[message_id]
        epoch = message.deliveries - data.draw(st.sampled_from([0, 0, 0, 1]))
        payload = ack_payload(self.groups[message.topic], [message_id], [max(0, epoch)])
        answer = self.store.deliver.ack(payload, 1, self.now_ms)
        accepted = answer.accepted
        if message.acked:  # by its last delivery: to another one it is stale
            wanted = lib.TW_ALREADY_ACKED if epoch == message.deliveries else lib.TW_STALE_RECEIPT
            assert int.from_bytes(answer.reply[28:32], "little") == wanted
        counts = message.deliveries > 0 and epoch == message.deliveries and not message.acked
        counts = counts and message.state == "ready" and not message.given_back
        assert accepted == counts
        message.acked = message.acked or counts

    @rule(topic=st.integers(0, 1))
    def leave_and_return(self, topic: int) -> None:
        topic_id = self.topics[topic]
        self.store.settle.release_holder(self.holders[topic_id], self.now_ms)
        assert self.store.holders.outstanding(self.holders[topic_id]) == 0
        self.holders[topic_id] = self.store.holders.acquire(self.groups[topic_id])
        for message in self.messages.values():
            if message.topic == topic_id and not message.acked and not message.given_back:
                message.lease_ends_ms = min(message.lease_ends_ms, self.now_ms)

    # -- changing --

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.messages)))
        message = self.messages[message_id]
        stop = data.draw(st.booleans())
        expected = self._refusal(message) or "cancelled"
        if expected == "already_delivered" and stop:
            expected = "stopped"
        assert self.store.change.cancel([message_id], self.now_ms, stop=stop) == [expected]
        if expected in ("cancelled", "stopped"):
            message.state = "cancelled"

    def _refusal(self, message: Expected) -> str:
        """Why a message cannot be changed before its delivery any more; empty when it can."""
        if message.state == "cancelled":
            return "already_cancelled"
        if not message.deliveries:
            return ""
        return "already_acked" if message.acked else "already_delivered"

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), hold_ms=HOLD_MS)
    def reschedule(self, data: st.DataObject, hold_ms: int) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.messages)))
        message = self.messages[message_id]
        expected = self._refusal(message) or "rescheduled"
        due_ms = self.now_ms + hold_ms
        priority = data.draw(st.sampled_from([None, 3, 200]))
        assert self.store.change.reschedule([message_id], due_ms, self.now_ms, priority=priority) == [
            expected
        ]
        if expected == "rescheduled":
            message.due_ms, message.state = due_ms, "scheduled"

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 5, 3_000]), is_attempt=st.booleans())
    def nack(self, data: st.DataObject, delay_ms: int, is_attempt: bool) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.messages)))
        message = self.messages[message_id]
        receipt = self.groups[message.topic], [message_id], [message.deliveries]
        (answer,) = self.store.settle.nack(*receipt, delay_ms, "no", self.now_ms, is_attempt=is_attempt)
        held = (
            message.deliveries > 0
            and not message.acked
            and message.state == "ready"
            and not message.given_back
        )
        assert answer in (("nacked", "lease_ended") if held else NOT_HELD), answer
        if answer == "nacked":
            message.given_back = True
            message.lease_ends_ms = self.now_ms + delay_ms

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.messages)))
        message = self.messages[message_id]
        until_ms = self.now_ms + 7_000
        receipt = self.groups[message.topic], [message_id], [message.deliveries]
        (answer,) = self.store.settle.extend(*receipt, until_ms)
        held = (
            message.deliveries > 0
            and not message.acked
            and message.state == "ready"
            and not message.given_back
        )
        assert answer in (("extended", "lease_ended") if held else NOT_HELD), answer
        if answer == "extended":
            message.lease_ends_ms = until_ms

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), acked=st.booleans(), delay_ms=st.sampled_from([None, 0, 3_000]))
    def redeliver(self, data: st.DataObject, acked: bool, delay_ms: int | None) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.messages)))
        message = self.messages[message_id]
        at_ms = None if delay_ms is None else self.now_ms + delay_ms
        (answer,) = self.store.change.redeliver([message_id], None, at_ms, self.now_ms, acked=acked)
        if message.state == "cancelled":
            assert answer == "already_cancelled"
        elif not message.deliveries:
            assert answer == "waiting"
        elif message.acked and not acked:
            assert answer == "already_acked"
        else:
            assert answer in ("redelivered", "waiting")
        if answer == "redelivered":
            message.given_back, message.acked = True, False
            message.lease_ends_ms = self.now_ms + (delay_ms or 0)

    @rule(
        topic=st.integers(0, 1),
        items=st.lists(st.tuples(KEYS, st.binary(max_size=20)), min_size=1, max_size=3),
        data=st.data(),
    )
    def transaction(self, topic: int, items: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
        """Keys of what it cancels are free for what it sends."""
        topic_id = self.topics[topic]
        known = st.lists(st.sampled_from(sorted(self.messages) or [0]), unique=True, max_size=2)
        cancelled = [i for i in data.draw(known) if i]
        staying = [m for i, m in self.messages.items() if i not in cancelled and m.state != "cancelled"]
        taken = [m.key for m in staying if m.topic == topic_id and m.key] + [key for key, _ in items if key]
        is_refused = len(set(taken)) < len(taken) or any(self._refusal(self.messages[i]) for i in cancelled)
        first, tx = self.store.tables.next_id, self.store.transactions.begin(bytes(15) + b"x", self.now_ms)
        try:
            if cancelled:
                tx.cancel(cancelled)
            sent = [Outbound(body, key) for key, body in items]
            tx.send(send_payload(topic_id, sent, self.now_ms + 50))
            stored = tx.commit()
        except TransactionRefused:
            assert is_refused
            assert self.store.tables.next_id == first, "nothing was stored"
            return
        finally:
            tx.close()
        assert not is_refused
        assert stored == [(first, len(items))]
        for i in cancelled:
            self.messages[i].state = "cancelled"
        for number, (key, _) in enumerate(items, first):
            self.messages[number] = Expected(topic_id, key, self.now_ms + 50)

    @rule(content=st.one_of(st.none(), st.binary(max_size=9)))
    def document(self, content: bytes | None) -> None:
        self.store.change.put_document("note", content, self.now_ms)
        assert self.store.tables.documents.get("note") == content

    @rule(content=st.one_of(st.none(), st.binary(max_size=9)), start=st.sampled_from(["earliest", "latest"]))
    def document_with_a_group(self, content: bytes | None, start: Literal["earliest", "latest"]) -> None:
        """They are made and deleted together, in a topic that is nobody else's."""
        has_group = WITH in self.store.tables.documents
        controls = []
        if content is not None and not has_group:
            topic_id = self.store.tables.topic_ids[APART]
            controls = self.store.groups.opening(topic_id, "with", self.now_ms, start)
        if content is None and has_group:
            controls = self.store.groups.deleting(APART, "with")
            self.table_is_gone = True
        self.store.change.put_document(WITH, content, self.now_ms, controls=controls)
        assert self.store.tables.documents.get(WITH) == content

    @rule(topic=st.integers(0, 1), paused=st.booleans())
    def settings_of_a_topic(self, topic: int, paused: bool) -> None:
        record = self.store.topics.set("ab"[topic], {"rate": 9.0}, [], paused, self.now_ms)
        assert self.store.topics.record("ab"[topic]) == record

    # -- time --

    @rule(step_ms=st.sampled_from([1, 10, 1_000, 4_096, 30_000, 20_000_000]))
    def advance(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(step_ms=st.sampled_from([2_000, 3_600_000]))
    def clock_goes_back(self, step_ms: int) -> None:
        self.now_ms -= step_ms
        self.store.fill_wheel.clock_went_back(self.now_ms)
        # Leases end by the same clock.
        for message in self.messages.values():
            if message.deliveries and not message.acked:
                message.lease_ends_ms = min(message.lease_ends_ms, self.now_ms)

    # -- purging, and keeping house --

    @rule()
    def housekeeping(self) -> None:
        self.store.housekeeping(self.now_ms)
        if not self.store.dropper.is_dropping:
            self.table_is_gone = False

    @rule(later_ms=st.sampled_from([0, 0, 10_000]))
    def purge(self, later_ms: int) -> None:
        before = self.store.look.stats(self.now_ms)
        self.store.purge(self.now_ms + later_ms)
        known = np.array(list(self.messages), np.int64)
        states = self.store.tables.messages.take(known, "state")
        for message_id in known[states == MessageState.NONE].tolist():
            message = self.messages.pop(message_id)
            assert message.acked or message.state == "cancelled", "only what nobody needs is purged"
            self.gone.append(message)
        after = self.store.look.stats(self.now_ms)
        assert [after[name] for name in TOTALS] == [before[name] for name in TOTALS]

    # -- crashes --

    @rule(how=st.sampled_from(["killed", "clean", "no derived files", "power loss after sync"]))
    def restart(self, how: str) -> None:
        self.store.sync()
        state = self.store.look.state_hash()
        self.store.close(clean=how == "clean")
        if how == "no derived files":
            remove_derived_files(self.directory)
        # After a power loss nothing but a clean checkpoint counts.
        judge = (lambda found: found.clean) if how == "power loss after sync" else checkpoint.is_trustworthy
        with mock.patch.object(checkpoint, "is_trustworthy", judge):
            self.store = Store.open(self.directory, SMALL, self.now_ms)
        assert self.store.look.state_hash() == state
        # A table that a group's end removed is named by the last checkpoint still: then a start reads the log.
        if not self.table_is_gone or how != "killed":
            assert self.store.recovery.from_checkpoint == (how in ("killed", "clean"))
        self.table_is_gone = False
        assert self.store.recovery.torn_tail_bytes == 0
        self.flight = InFlight()
        self.holders = {t: self.store.holders.acquire(group) for t, group in self.groups.items()}

    # -- always --

    @invariant()
    def counters_equal_a_recount(self) -> None:
        if not hasattr(self, "store"):
            return
        stats = self.store.look.stats(self.now_ms)
        states = [message.state for message in self.messages.values()]
        ever = [*self.messages.values(), *self.gone]
        assert stats["messages"] == len(ever)
        assert stats["scheduled"] == states.count("scheduled")
        assert stats["ready"] == states.count("ready")
        assert stats["cancelled"] == sum(message.state == "cancelled" for message in ever)
        assert stats["acked"] == sum(message.acked for message in ever)
        assert stats["delivered"] == sum(message.deliveries for message in ever)

    @invariant()
    def each_message_is_in_its_topic_at_most_once(self) -> None:
        if not hasattr(self, "store"):
            return
        for topic_id in self.topics:
            arrivals = self._arrivals(topic_id)
            rows = self.store.tables.messages.take(arrivals)
            start = self.store.tables.topics[topic_id].arrivals.start
            # A message that was rescheduled after it had come is there again, under another number.
            is_live = (rows["state"] == MessageState.READY) & (
                rows["topic_seq"] == np.arange(len(arrivals)) + start
            )
            mine = [i for i, m in self.messages.items() if m.topic == topic_id and m.state == "ready"]
            assert sorted(arrivals[is_live].tolist()) == mine

    @invariant()
    def backlogs_equal_a_recount(self) -> None:
        if not hasattr(self, "store"):
            return
        for entry in self.store.look.topics():
            if entry["name"] == APART:
                has_document = WITH in self.store.tables.documents
                assert [group["name"] for group in entry["groups"]] == ["with"] * has_document
                continue
            mine = [m for m in self.messages.values() if m.topic == entry["topic_id"] and m.state == "ready"]
            (group,) = entry["groups"]
            assert group["backlog"] == sum(not m.acked for m in mine)

    @invariant()
    def keys_find_their_message(self) -> None:
        if not hasattr(self, "store"):
            return
        for name, topic_id in zip(("a", "b"), self.topics, strict=True):
            keys = [f"key-{number}" for number in range(10)]
            live = {
                message.key.decode(): message_id
                for message_id, message in self.messages.items()
                if message.topic == topic_id and message.key and message.state != "cancelled"
            }
            assert self.store.select.find(name, keys) == [live.get(key, 0) for key in keys]

    @rule()
    def everything_due_arrives(self) -> None:
        """Pumps until nothing is left to do: then all that is due must be in its topic."""
        self.store.sync()
        while self.store.enqueue_get.pending:
            self.enqueue(20)
        while True:
            self.turn(20)
            while self.flight.due:
                self.look_up()
            while self.flight.ready:
                self.put()
            wakeup_ms = self.store.dequeue_get.next_wakeup_ms()
            if wakeup_ms is None or wakeup_ms > self.now_ms:
                break
        for message_id, message in self.messages.items():
            # A timer that is linked when its time has come goes to the next tick.
            if message.due_ms < self.now_ms and message.state != "cancelled":
                assert message.state == "ready", f"message {message_id} is overdue"
        first = self.store.tables.messages.start
        states = self.store.tables.rows["state"][first : self.store.tables.next_id]
        assert not (states == MessageState.DAMAGED).any()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(settings(), stateful_step_count=60)
