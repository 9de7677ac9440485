"""The queue against a plain list, on SQLite with a clock of the test's: whatever consumers do, in whatever order.

Each message is claimed by one at a time and in order; what a holder does to a message counts if, and only if, nobody
has claimed it since; and nothing is lost.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.support.run.profile import examples
from tickwheel import outbox
from tickwheel.outbox import LeaseLost

LEASE_MS = 10
START_NS = 1_000_000_000_000


@dataclass
class Entry:
    """What the model knows of a message that is in the queue."""

    epoch: int = 0
    until_ns: int = 0
    is_owned: bool = False


def lost_by(work: Callable[[], None]) -> set[Any]:
    try:
        work()
    except LeaseLost as error:
        return set(error.ids)
    return set()


class QueueMachine(RuleBasedStateMachine):
    batches = Bundle("batches")

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="tickwheel-queue-")
        self.queue = outbox.Queue(f"sqlite:///{Path(self.directory.name) / 'queue.db'}", "work")
        self.now_ns = START_NS
        self.queue.sql.now = sa.bindparam("clock", callable_=lambda: self.now_ns, type_=sa.BigInteger)
        self.queue.create()
        self.model: dict[int, Entry] = {}
        self.finished: list[int] = []

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            self.directory.cleanup()

    @rule(count=st.integers(1, 5), commit=st.booleans())
    def put(self, count: int, commit: bool) -> None:
        with self.queue.database.engine.connect() as connection:
            transaction = connection.begin()
            ids = self.queue.put_many(connection, ["x"] * count)
            if not commit:
                transaction.rollback()
                return
            transaction.commit()
        assert ids == sorted(ids)
        assert min(ids) > max([0, *self.model, *self.finished])
        self.model.update((id_, Entry()) for id_ in ids)

    @rule(target=batches, limit=st.integers(1, 6))
    def claim(self, limit: int) -> outbox.ClaimedBatch:
        ready = [id_ for id_, entry in sorted(self.model.items()) if entry.until_ns <= self.now_ns]
        batch = self.queue.claim(limit, lease=timedelta(milliseconds=LEASE_MS))
        assert list(batch.ids) == ready[:limit]
        for message in batch:
            entry = self.model[message.id]
            assert message.epoch == entry.epoch + 1
            self.model[message.id] = Entry(message.epoch, self.now_ns + LEASE_MS * 10**6, True)
        return batch

    @rule(milliseconds=st.sampled_from([1, LEASE_MS - 1, LEASE_MS, 3 * LEASE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * 10**6

    def held(self, messages: list[outbox.ClaimedMessage]) -> list[int]:
        """Those that are this claim's still, also if the lease is over."""
        return [
            message.id
            for message in messages
            if (entry := self.model.get(message.id)) is not None
            and entry.is_owned
            and entry.epoch == message.epoch
        ]

    def finish(self, ids: list[int]) -> None:
        for id_ in ids:
            del self.model[id_]
        self.finished += ids

    @rule(batch=batches, index=st.integers(0, 5), ending=st.sampled_from(["commit", "rollback"]))
    def delete_one(self, batch: outbox.ClaimedBatch, index: int, ending: str) -> None:
        if index >= len(batch):
            return
        message = batch[index]
        held = self.held([message])
        with self.queue.database.engine.connect() as connection:
            transaction = connection.begin()
            if held:
                message.ack_in(connection)
                message.ack_in(connection)
            else:
                with pytest.raises(LeaseLost):
                    message.ack_in(connection)
            getattr(transaction, ending)()
        if ending == "commit":
            self.finish(held)

    @rule(batch=batches, index=st.integers(0, 5))
    def one_is_done(self, batch: outbox.ClaimedBatch, index: int) -> None:
        if index >= len(batch):
            return
        held = self.held([batch[index]])
        assert not lost_by(batch[index].ack) & set(held)
        self.finish(held)

    @rule(batch=consumes(batches))
    def all_are_done(self, batch: outbox.ClaimedBatch) -> None:
        """What is lost, of what this batch has not settled itself, is told."""
        held = self.held(list(batch))
        assert not lost_by(batch.ack) & set(held)
        self.finish(held)

    @rule(batch=batches, delay=st.sampled_from([0, 2, LEASE_MS]))
    def release(self, batch: outbox.ClaimedBatch, delay: int) -> None:
        held = self.held(list(batch))
        batch.nack(delay_ms=delay)
        for id_ in held:
            entry = self.model[id_]
            until_ns = self.now_ns + delay * 10**6 if delay else 0
            self.model[id_] = Entry(entry.epoch, until_ns, False)

    @rule(batch=batches)
    def extend(self, batch: outbox.ClaimedBatch) -> None:
        held = self.held(list(batch))
        assert not lost_by(lambda: batch.extend(timedelta(milliseconds=LEASE_MS))) & set(held)
        for id_ in held:
            self.model[id_].until_ns = self.now_ns + LEASE_MS * 10**6

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "queue"):
            return
        stats = self.queue.stats()
        ready = sum(entry.until_ns <= self.now_ns for entry in self.model.values())
        leased = sum(entry.until_ns > self.now_ns and entry.is_owned for entry in self.model.values())
        assert (stats.ready, stats.leased, stats.delayed) == (ready, leased, len(self.model) - ready - leased)
        with self.queue.database.reading() as connection:
            columns = self.queue.sql.table.c
            rows = connection.execute(sa.select(columns.id, columns.epoch)).all()
        assert {row.id: row.epoch for row in rows} == {id_: one.epoch for id_, one in self.model.items()}
        assert len(self.finished) == len(set(self.finished))


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(stateful_step_count=40, max_examples=examples(40))
