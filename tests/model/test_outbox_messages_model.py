"""The statements of a message table against a plain dictionary, with two claimers whose candidates are old: a message
is held by one of them at most, comes when it is due and not before, and is never lost; stale deliveries change nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.run.profile import examples
from tickwheel.outbox import MessageSettings, MessageTable
from tickwheel.outbox.messages.backoff import wait_bounds_ns
from tickwheel.outbox.messages.candidates import Candidate, Candidates
from tickwheel.outbox.messages.statements import Receipt

SECOND_NS = 1_000_000_000
START_NS = 1_900_000_000 * SECOND_NS
SETTINGS = MessageSettings(
    ack_wait_ms=10_000,
    min_backoff_ms=5_000,
    max_backoff_ms=60_000,
    purge_after_ms=30_000,
    poller_interval_ms=1_000,
)


@dataclass
class Row:
    """What a message should be."""

    priority: int
    due_ns: int | None
    epoch: int = 0
    acked_ns: int | None = None
    text: str = ""


@dataclass
class Claimer:
    """Somebody who looked at some time, and claims at another."""

    candidates: Candidates = field(default_factory=Candidates)
    receipts: list[Receipt] = field(default_factory=list)


class MessagesMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tickwheel-messages-"))
        engine = sa.create_engine(f"sqlite:///{self.directory / 'messages.db'}")
        # The model is about what is committed, not about the disk.
        sa.event.listen(engine, "connect", lambda raw, _: raw.execute("pragma synchronous=off").close())
        self.table = MessageTable(engine, "messages").create(settings=SETTINGS)
        self.now_ns = START_NS
        self.rows: dict[int, Row] = {}
        self.gone: set[int] = set()
        self.claimers = [Claimer(), Claimer()]

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.database.engine.dispose()
            shutil.rmtree(self.directory)

    # -- what may happen --

    @rule(priority=st.sampled_from([1, 50, 50, 90]), wait_s=st.sampled_from([-20, 0, 0, 1, 15, 100]))
    def insert(self, priority: int, wait_s: int) -> None:
        due_ns = self.now_ns + wait_s * SECOND_NS
        with self.table.database.begin() as connection:
            number = self.table.send(
                connection, message=f"text {len(self.rows)}", priority=priority, time_next=due_ns
            )
        assert number not in self.rows
        assert number not in self.gone
        self.rows[number] = Row(priority, due_ns, text=f"text {len(self.rows)}")

    @rule(seconds=st.sampled_from([0, 1, 9, 10, 11, 40, 200]))
    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS

    @rule(who=st.integers(0, 1), limit=st.integers(1, 12))
    def look(self, who: int, limit: int) -> None:
        with self.table.database.reading() as connection:
            found = self.table.statements.look(connection, self.now_ns, limit)
        due = {one for one, row in self.rows.items() if row.due_ns is not None and row.due_ns <= self.now_ns}
        later = [
            row.due_ns for row in self.rows.values() if row.due_ns is not None and row.due_ns > self.now_ns
        ]
        for one in found.due:
            row = self.rows[int(str(one.id))]
            assert one == Candidate(one.id, row.priority, row.due_ns or 0, row.epoch)
        ids = {one.id for one in found.due}
        assert ids <= due
        assert len(ids) == len(found.due) >= min(limit, len(due))
        assert set(found.cut) <= {one.priority for one in found.due}
        if due:
            assert min(self.rows[one].due_ns or 0 for one in due) in {one.time_next for one in found.due}
        if later and not due:
            assert found.next_due_ns == min(later)
        if later and found.next_due_ns is not None:
            # A priority in which something is due hides its later ones: they are found after it.
            assert found.next_due_ns >= min(later)
        self.claimers[who].candidates.replace(found.due, found.cut)

    @rule(who=st.integers(0, 1), limit=st.integers(1, 8))
    def claim(self, who: int, limit: int) -> None:
        claimer = self.claimers[who]
        chosen = claimer.candidates.take(limit)
        with self.table.database.begin() as connection:
            claimed = self.table.statements.claim(connection, chosen, self.now_ns)
        takeable = [one for one in chosen if self._is_takeable(one)]
        assert [one.id for one in claimed] == [one.id for one in takeable]
        for one in claimed:
            row = self.rows[int(str(one.id))]
            row.epoch += 1
            assert one.epoch == row.epoch
            assert one.row == {"id": one.id, "message": row.text}
            shortest, longest = wait_bounds_ns(SETTINGS, row.epoch)
            (due_ns,) = self._stored(one.id)
            assert self.now_ns + shortest <= due_ns <= self.now_ns + longest
            row.due_ns = due_ns
            claimer.receipts.append((one.id, one.epoch))

    def _is_takeable(self, one: Candidate) -> bool:
        row = self.rows.get(int(str(one.id)))
        return (
            row is not None
            and row.epoch == one.epoch
            and row.due_ns is not None
            and row.due_ns <= self.now_ns
        )

    def _stored(self, number: object) -> tuple[int]:
        t = self.table.table
        with self.table.database.reading() as connection:
            return (connection.execute(sa.select(t.c.time_next).where(t.c.id == number)).scalar_one(),)

    def _some(self, data: st.DataObject) -> list[Receipt]:
        known = [one for claimer in self.claimers for one in claimer.receipts]
        return data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))

    def _holds(self, receipt: Receipt) -> bool:
        row = self.rows.get(int(str(receipt[0])))
        return row is not None and row.acked_ns is None and row.epoch == receipt[1]

    @precondition(lambda self: any(one.receipts for one in self.claimers))
    @rule(data=st.data())
    def ack_deliveries(self, data: st.DataObject) -> None:
        receipts = self._some(data)
        with self.table.database.begin() as connection:
            lost = self.table.statements.ack_deliveries(connection, receipts, self.now_ns)
            told = self.table.statements.were_acked(connection, receipts)
        assert sorted(lost, key=str) == sorted((one for one in receipts if not self._holds(one)), key=str)
        for one in receipts:
            if self._holds(one):
                self._acked(int(str(one[0])))
        rows = [(one, self.rows.get(int(str(one[0])))) for one in receipts]
        assert told == {one for one, row in rows if row and row.acked_ns is not None and row.epoch == one[1]}

    def _acked(self, number: int) -> None:
        row = self.rows[number]
        row.acked_ns, row.due_ns = self.now_ns, None

    @precondition(lambda self: any(one.receipts for one in self.claimers))
    @rule(data=st.data(), wait_s=st.sampled_from([0, 3, 300]))
    def postpone(self, data: st.DataObject, wait_s: int) -> None:
        receipts = self._some(data)
        due_ns = self.now_ns + wait_s * SECOND_NS
        with self.table.database.begin() as connection:
            lost = self.table.statements.postpone(connection, receipts, due_ns)
        assert sorted(lost, key=str) == sorted((one for one in receipts if not self._holds(one)), key=str)
        for one in receipts:
            if self._holds(one):
                self.rows[int(str(one[0]))].due_ns = due_ns

    @precondition(lambda self: any(one.receipts for one in self.claimers))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Nobody saw these deliveries, so nobody has their receipts either."""
        receipts = self._some(data)
        with self.table.database.begin() as connection:
            self.table.statements.give_back(connection, receipts, self.now_ns)
        for one in receipts:
            if self._holds(one):
                row = self.rows[int(str(one[0]))]
                row.due_ns, row.epoch = self.now_ns, row.epoch - 1
        for claimer in self.claimers:
            claimer.receipts = [one for one in claimer.receipts if one not in receipts]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def ack_by_id(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.rows)), min_size=1, max_size=3, unique=True))
        with self.table.database.begin() as connection:
            count = self.table.statements.ack(connection, ids, self.now_ns)
        fresh = [one for one in ids if self.rows[one].acked_ns is None]
        assert count == len(fresh)
        for one in fresh:
            self._acked(one)

    @precondition(lambda self: self.rows)
    @rule(
        data=st.data(),
        wait_s=st.sampled_from([-5, 0, 20]),
        priority=st.sampled_from([None, 7]),
        epoch=st.sampled_from([None, None, 60]),
    )
    def reschedule(self, data: st.DataObject, wait_s: int, priority: int | None, epoch: int | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.rows)))
        due_ns = self.now_ns + wait_s * SECOND_NS
        with self.table.database.begin() as connection:
            count = self.table.reschedule(
                connection, [number], deliver_at=due_ns // 1_000_000, priority=priority, epoch=epoch
            )
        row = self.rows[number]
        assert count == (row.acked_ns is None)
        if count:
            row.due_ns = due_ns
            row.priority = row.priority if priority is None else priority
            row.epoch = row.epoch if epoch is None else max(epoch, 0)
            if epoch is not None:
                # Numbers that a message had before come again: their old receipts are nobody's in this model.
                for claimer in self.claimers:
                    claimer.receipts = [one for one in claimer.receipts if one[0] != number]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.rows)))
        with self.table.database.begin() as connection:
            count = self.table.cancel(connection, [number])
        assert count == (self.rows[number].acked_ns is None)
        if count:
            self._forget({number})

    @rule(limit=st.integers(1, 3))
    def purge(self, limit: int) -> None:
        with self.table.database.begin() as connection:
            count = self.table.statements.purge(connection, self.now_ns, limit=limit)
        border_ns = self.now_ns - SETTINGS.purge_after_ms * 1_000_000
        old = {one for one, row in self.rows.items() if row.acked_ns is not None and row.acked_ns < border_ns}
        assert count == min(limit, len(old))
        left = {row[0] for row in self._all()}
        assert old - left == self.rows.keys() - left
        self._forget(self.rows.keys() - left)

    def _forget(self, numbers: set[int]) -> None:
        for one in numbers:
            del self.rows[one]
        self.gone |= numbers

    # -- what always holds --

    def _all(self) -> list[tuple[object, ...]]:
        t = self.table.table
        with self.table.database.reading() as connection:
            chosen = sa.select(t.c.id, t.c.priority, t.c.epoch, t.c.time_next, t.c.time_acked, t.c.message)
            return [tuple(row) for row in connection.execute(chosen.order_by(t.c.id))]

    @invariant()
    def the_table_is_as_the_model_says(self) -> None:
        if not hasattr(self, "table"):
            return
        model = [
            (one, row.priority, row.epoch, row.due_ns, row.acked_ns, row.text)
            for one, row in sorted(self.rows.items())
        ]
        assert self._all() == model

    @invariant()
    def one_holder_at_most(self) -> None:
        if not hasattr(self, "table"):
            return
        held = [one for claimer in self.claimers for one in claimer.receipts if self._holds(one)]
        assert len({number for number, _ in held}) == len(held)


TestMessages = MessagesMachine.TestCase
TestMessages.settings = settings(max_examples=examples(25), stateful_step_count=40)
