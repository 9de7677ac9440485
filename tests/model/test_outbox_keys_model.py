"""A key space against a dictionary: whatever crashes between which two statements, whichever worker has lost its lease
without knowing, and wherever the ranges are split: all is done exactly once, in order, and nothing is lost."""

from __future__ import annotations

import copy
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

sa = pytest.importorskip("sqlalchemy")

from tests.support.run.profile import examples  # noqa: E402
from tickwheel.outbox import (  # noqa: E402
    Account,
    CounterOverflow,
    Delete,
    DeleteRange,
    Increment,
    LeaseLost,
    NotAnInteger,
    Operation,
    Put,
    Range,
    open_database,
)
from tickwheel.outbox.keys import data, leases, queues, steps  # noqa: E402
from tickwheel.outbox.keys.leases import Worker  # noqa: E402
from tickwheel.outbox.keys.operations import columns_of  # noqa: E402
from tickwheel.outbox.keys.tables import SERVICES, Service, Tables, check_tables, create_tables  # noqa: E402

T = TypeVar("T")
LEASE_NS = 1_000
KEYS = (b"a", b"b", b"b\x00", b"c", b"\xff")
LARGEST = 2**63 - 1

keys = st.sampled_from(KEYS)
ends = st.sampled_from([*KEYS, None])
numbers = st.sampled_from([1, -3, LARGEST])
values = st.sampled_from([b"", b"0", b"41", b"-8", b"x", b"%d" % LARGEST])
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Put, keys, values),
    st.builds(Increment, keys, numbers),
    st.builds(Delete, keys),
    st.builds(DeleteRange, keys, ends),
    st.builds(Account, keys, numbers, numbers),
)
actions = st.one_of(
    st.tuples(st.just("now"), operations.filter(lambda one: not isinstance(one, Account)), keys),
    st.tuples(st.just("execute"), operations, keys),
    st.tuples(st.just("execute"), operations, keys),
    st.tuples(st.just("send"), keys, keys),
    st.tuples(st.just("send"), keys, keys),
    st.tuples(st.just("time"), st.sampled_from([-5, -1, 1]), st.none()),
)
upsets = st.one_of(
    st.tuples(st.just("time"), st.sampled_from([-5, 1, LEASE_NS // 2, 2 * LEASE_NS])),
    st.tuples(st.just("beat"), st.integers(0, 5)),
    st.tuples(st.just("give_up"), st.integers(0, 5)),
    st.tuples(st.just("split"), keys),
    st.tuples(st.just("split"), keys),
    st.tuples(st.just("merge"), keys),
)
fuses = st.one_of(st.none(), st.none(), st.integers(0, 25))
"""After how many statements the process crashes, if it does."""


decisions = st.none() | st.tuples(st.booleans(), st.lists(st.integers(0, 3), unique=True))


class Crash(Exception):
    """The process ends here."""


@dataclass(order=True)
class Entry:
    """A message or an operation in a queue."""

    timestamp_ns: int
    number: int
    sender: bytes = field(compare=False)
    what: Any = field(compare=False)


class Refused(Exception):
    """The operation changes nothing."""


@dataclass
class Model:
    """What a key space should hold."""

    data: dict[bytes, bytes] = field(default_factory=dict)
    accounts: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    outbox: dict[Service, list[Entry]] = field(default_factory=lambda: {one: [] for one in SERVICES})
    inboxes: dict[bytes, list[Entry]] = field(default_factory=lambda: {key: [] for key in KEYS})
    failed: list[Entry] = field(default_factory=list)
    number: int = 0
    sent: int = 0

    def queue(self, service: Service, timestamp_ns: int, sender: bytes, what: Any) -> None:
        self.number += 1
        insort(self.outbox[service], Entry(timestamp_ns, self.number, sender, what))

    def apply(self, operation: Operation) -> None:
        match operation:
            case Put(key, value):
                self.data[key] = value
            case Increment(key, by):
                old = self.data.get(key, b"0")
                if old in (b"", b"x") or not -LARGEST - 1 <= int(old) + by <= LARGEST:
                    raise Refused
                self.data[key] = b"%d" % (int(old) + by)
            case Delete(key):
                self.data.pop(key, None)
            case DeleteRange(start, end):
                self.data = {key: value for key, value in self.data.items() if not inside(key, start, end)}
            case Account(prefix, count, size):
                sums = self.accounts.setdefault(prefix, (0, 0))
                new = sums[0] + count, sums[1] + size
                if not all(-LARGEST - 1 <= one <= LARGEST for one in new):
                    raise Refused
                self.accounts[prefix] = new

    def batch(self, held: Range, limit: int) -> int:
        queue = self.outbox[held.service]
        chosen = [one for one in queue if inside(one.sender, held.start, held.end)][:limit]
        self.outbox[held.service] = [one for one in queue if one not in chosen]
        for one in chosen:
            if held.service == "dispatcher":
                insort(self.inboxes[one.what[0]], one)
                continue
            try:
                self.apply(one.what)
            except Refused:
                insort(self.failed, one)
        return len(chosen)


def inside(key: bytes, start: bytes, end: bytes | None) -> bool:
    return start <= key and (end is None or key < end)


class Shared:
    """One database for all examples: SQLAlchemy compiles its statements once only."""

    def __init__(self, path: Path) -> None:
        self.machine: KeysMachine | None = None
        self.database = open_database(f"sqlite:///{path}")
        engine = self.database.engine
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("pragma synchronous=off"))
        sa.event.listen(engine, "before_cursor_execute", lambda *_: self.burn())
        sa.event.listen(engine, "commit", lambda _: self.burn())
        self.tables = Tables(self.database, "space")
        self.tables.now = lambda: sa.literal(
            0 if self.machine is None else self.machine.now_ns, sa.BigInteger
        )
        self.database.run(lambda connection: create_tables(connection, self.tables))
        self.database.run(lambda connection: check_tables(connection, self.tables))

    def burn(self) -> None:
        if self.machine is not None:
            self.machine.burn()


SHARED: Shared


@pytest.fixture(autouse=True, scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global SHARED
    SHARED = Shared(tmp_path_factory.mktemp("keys") / "keys.sqlite")
    yield
    SHARED.database.close()


def empty(connection: Any, tables: Tables) -> None:
    for table in tables.metadata.sorted_tables:
        connection.execute(sa.delete(table))
    create_tables(connection, tables)


class KeysMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.database, self.tables = SHARED.database, SHARED.tables
        self.now_ns = 1_000_000
        self.fuse: int | None = None
        SHARED.machine = self
        self.database.run(lambda connection: empty(connection, self.tables))
        self.model = Model()
        self.workers = [
            Worker(service, f"{service}-{i}", LEASE_NS) for service in SERVICES for i in (1, 2, 3)
        ]
        self.epochs: dict[tuple[Service, bytes], int] = {}
        self.reaped: Counter[int] = Counter()
        for index in (0, 1, 3, 4):
            self.beat(index, None)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.finish()

    def burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Crash

    def transact(self, fuse: int | None, work: Callable[[Any], T]) -> T | None:
        """The result, if it was committed; None after a crash."""
        self.fuse = fuse
        try:
            with self.database.begin() as connection:
                return work(connection)
        except Crash:
            return None
        finally:
            self.fuse = None

    # -- users --

    @rule(todo=st.lists(actions, min_size=3, max_size=10), fuse=fuses)
    def change(self, todo: list[tuple[Any, ...]], fuse: int | None) -> None:
        model = copy.deepcopy(self.model)

        def work(connection: Any) -> bool:
            for action in todo:
                self.act(connection, model, action)
            return True

        if self.transact(fuse, work):
            self.model = model

    def act(self, connection: Any, model: Model, action: tuple[Any, ...]) -> None:
        match action:
            case "time", ns, _:
                self.now_ns += ns
            case "send", key, sender:
                model.sent += 1
                queues.send(connection, self.tables, key, b"%d" % model.sent, sender)
                model.queue("dispatcher", self.now_ns, sender, (key, model.sent))
            case "execute", operation, sender:
                queues.execute(connection, self.tables, columns_of(operation), sender)
                model.queue("executor", self.now_ns, sender, operation)
            case "now", operation, _:
                try:
                    before = dict(model.data)
                    model.apply(operation)
                except Refused:
                    with pytest.raises((NotAnInteger, CounterOverflow)):
                        self.do(connection, operation)
                else:
                    answer = self.do(connection, operation)
                    match operation:
                        case Increment(key, _):
                            assert b"%d" % answer == model.data[key]
                        case Delete(key):
                            assert answer == (key in before)
                        case DeleteRange():
                            assert answer == len(before) - len(model.data)

    def do(self, connection: Any, operation: Operation) -> Any:
        match operation:
            case Put(key, value):
                return data.put(connection, self.tables, key, value)
            case Increment(key, by):
                return data.increment(connection, self.tables, key, by)
            case Delete(key):
                return data.delete(connection, self.tables, key)
            case DeleteRange(start, end):
                return data.delete_range(connection, self.tables, start, end)

    @rule(todo=st.lists(upsets, min_size=1, max_size=4), fuse=fuses)
    def upset_only(self, todo: list[tuple[str, Any]], fuse: int | None) -> None:
        self.upset(todo, fuse)

    @rule(which=st.integers(0, 4), limit=st.integers(1, 4), fuse=fuses, decision=decisions)
    def read(self, which: int, limit: int, fuse: int | None, decision: tuple[bool, list[int]] | None) -> None:
        if decision is not None and self.model.failed:
            self.decide_on_failed(*decision, fuse)
        full = [key for key, inbox in self.model.inboxes.items() if inbox] or KEYS
        self.reap(full[which % len(full)], limit, fuse)

    def reap(self, key: bytes, limit: int, fuse: int | None) -> None:
        found = self.transact(fuse, lambda connection: queues.reap(connection, self.tables, key, limit))
        if found is None:
            return
        inbox = self.model.inboxes[key]
        assert [(int(one.value), one.timestamp_ns, one.sender) for one in found] == [
            (one.what[1], one.timestamp_ns, one.sender) for one in inbox[:limit]
        ]
        self.reaped.update(int(one.value) for one in found)
        del inbox[:limit]

    def decide_on_failed(self, retry: bool, which: list[int], fuse: int | None) -> None:
        model = copy.deepcopy(self.model)
        chosen = [one for at, one in enumerate(model.failed) if at in which]
        model.failed = [one for one in model.failed if one not in chosen]
        if retry:
            for one in chosen:
                model.queue("executor", self.now_ns, one.sender, one.what)

        def work(connection: Any) -> int:
            listed = queues.failed(connection, self.tables, 100)
            sequences = [one.sequence for at, one in enumerate(listed) if at in which]
            decide = queues.retry_failed if retry else queues.drop_failed
            return decide(connection, self.tables, sequences)

        count = self.transact(fuse, work)
        if count is not None:
            assert count == len(chosen)
            self.model = model

    # -- workers --

    def upset(self, todo: list[tuple[str, Any]], fuse: int | None) -> None:
        """What may happen to workers and ranges."""
        for what, of in todo:
            match what:
                case "time":
                    self.now_ns += of
                case "beat":
                    self.beat(of, fuse)
                case "give_up":
                    worker = self.workers[of]
                    self.transact(fuse, lambda c, worker=worker: leases.give_up(c, self.tables, worker))
                case _:
                    self.reshape(of, what == "merge", fuse)

    @rule(
        index=st.integers(0, 2),
        meanwhile=st.lists(upsets, max_size=4),
        returns=st.booleans(),
        limits=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        fuse=fuses,
    )
    def work(
        self, index: int, meanwhile: list[tuple[str, Any]], returns: bool, limits: list[int], fuse: int | None
    ) -> None:
        """A service is woken and looks; something happens; then it does batches of what it thinks is its own."""
        for worker in (index, index + 3):
            self.beat(worker, None)
            found = self.look(worker)
            self.upset(meanwhile, None)
            if returns:
                self.beat(worker, None)
            for limit in limits:
                for held in found:
                    self.batch(worker, held, limit, fuse)

    def beat(self, index: int, fuse: int | None) -> None:
        worker = self.workers[index]
        self.transact(fuse, lambda connection: leases.beat(connection, self.tables, worker))

    def look(self, index: int) -> list[Range]:
        worker = self.workers[index]
        with self.database.reading() as connection:
            found, _ = leases.ranges_with_work(connection, self.tables, worker)
        senders = [one.sender for one in self.model.outbox[worker.service]]
        assert sorted(one.start for one in found) == [
            one.start
            for one in self.ranges(worker.service)
            if one.owner == worker.name and any(inside(sender, one.start, one.end) for sender in senders)
        ]
        return found

    def batch(self, index: int, held: Range, limit: int, fuse: int | None) -> None:
        worker = self.workers[index]
        is_held = any(
            (one.start, one.end, one.owner, one.epoch) == (held.start, held.end, worker.name, held.epoch)
            for one in self.ranges(worker.service)
        )
        step = steps.dispatch_batch if worker.service == "dispatcher" else steps.execute_batch
        try:
            done = self.transact(fuse, lambda c: step(c, self.tables, worker, held, limit))
        except LeaseLost:
            assert not is_held
            return
        if done is not None:
            assert is_held
            failed = len(self.model.failed)
            assert done.count == self.model.batch(held, limit)
            assert done.failed == len(self.model.failed) - failed
            assert done.more == (done.count == limit)

    def reshape(self, at: bytes, join: bool, fuse: int | None) -> None:
        begins = any(one.start == at for one in self.ranges("executor"))
        change = leases.merge if join else leases.split
        changed = self.transact(fuse, lambda connection: change(connection, self.tables, at))
        if changed is not None:
            assert changed == (begins if join else not begins)

    def ranges(self, service: Service) -> list[Range]:
        with self.database.reading() as connection:
            return leases.all_ranges(connection, self.tables, service)

    # -- always --

    @invariant()
    def is_as_in_the_model(self) -> None:
        if not hasattr(self, "workers"):
            return
        model, tables = self.model, self.tables
        with self.database.reading() as connection:
            assert data.scan(connection, tables, b"", None, 100) == sorted(model.data.items())
            for service in SERVICES:
                outbox = tables.outbox(service)
                rows = connection.execute(
                    sa.select(outbox).order_by(outbox.c.timestamp_ns, outbox.c.sequence)
                )
                assert [row.sender for row in rows] == [one.sender for one in model.outbox[service]]
            waiting = queues.waiting_keys(connection, tables, b"", None, 100)
            assert waiting == sorted(key for key, inbox in model.inboxes.items() if inbox)
            assert [one.operation for one in queues.failed(connection, tables, 100)] == [
                one.what for one in model.failed
            ]
            for prefix, sums in model.accounts.items():
                stored = queues.accounted(connection, tables, prefix)
                assert (stored.count, stored.size_bytes) == sums

    @invariant()
    def ranges_cover_all_keys(self) -> None:
        if not hasattr(self, "model"):
            return
        for service in SERVICES:
            ranges = self.ranges(service)
            assert [one.start for one in ranges] == [b"", *(one.end for one in ranges[:-1])]
            assert ranges[-1].end is None
            for one in ranges:
                assert one.epoch >= self.epochs.get((service, one.start), 0)
                self.epochs[service, one.start] = one.epoch

    def is_accounted_for(self) -> None:
        model = self.model
        with self.database.reading() as connection:
            counted = queues.accounting(connection, self.tables, b"", None)
        assert counted.key_count == len(model.data)
        assert counted.value_bytes == sum(map(len, model.data.values()))
        assert counted.inbox_count == sum(map(len, model.inboxes.values()))
        assert counted.deliverable_count == len(model.outbox["dispatcher"])
        assert counted.executable_count == len(model.outbox["executor"])

    def finish(self) -> None:
        """All others have died: one worker of each service does what is left, and everything is reaped."""
        self.is_accounted_for()
        self.now_ns += 10 * LEASE_NS
        for index in (0, 3):
            worker = self.workers[index]
            self.beat(index, None)
            assert {one.owner for one in self.ranges(worker.service)} == {worker.name}
            while found := self.look(index):
                for held in found:
                    self.batch(index, held, 3, None)
        for key in KEYS:
            while self.model.inboxes[key]:
                self.reap(key, 3, None)
        self.is_as_in_the_model()
        self.is_accounted_for()
        assert self.reaped == Counter(range(1, self.model.sent + 1))


TestKeys = KeysMachine.TestCase
TestKeys.settings = settings(stateful_step_count=12, max_examples=examples(40))
