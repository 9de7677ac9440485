"""Dispatchers, executors and servers that are killed at random moments: the end is that of a dictionary.

Who sends and reaps is the test itself, which rolls back some of it; `tests/model` crashes these two.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from sqlalchemy.engine import Connection

from tests.outbox.keys_worker import PROGRAM
from tests.support.clients.forking import Programs
from tests.support.outbox.databases import OUTBOX, DatabaseServer
from tests.support.run.profile import amount
from tests.support.stores.key_spaces import is_done
from tickwheel.outbox import (
    DatabaseBusy,
    DatabaseUnavailable,
    Delete,
    DeleteRange,
    Increment,
    KeySpace,
    Operation,
    Put,
)
from tickwheel_bench.processes import wait_until

SERVICES = ("dispatcher", "executor")
SENDERS = (b"a", b"m", b"z")
BOXES = (b"box/1", b"box/2")
ROUNDS = amount("key_space_kills")
LEASE_S = 0.4


def workers(url: str) -> Programs:
    """Dispatchers and executors in processes of their own."""
    return Programs(PROGRAM, url, "shop", str(LEASE_S), "4", modules=OUTBOX)


@dataclass
class Ledger:
    """Sends at random, and knows what must come of it."""

    space: KeySpace
    draw: random.Random
    data: dict[bytes, bytes] = field(default_factory=dict)
    failed: list[Operation] = field(default_factory=list)
    sent: dict[tuple[bytes, bytes], list[int]] = field(default_factory=dict)
    """By recipient and sender."""
    reaped: dict[tuple[bytes, bytes], list[int]] = field(default_factory=dict)
    number: int = 0

    def send(self) -> None:
        """One transaction of messages, operations, and changes at once; one in five is undone."""
        draw, sender = self.draw, self.draw.choice(SENDERS)
        operations = [self._operation(sender) for _ in range(draw.randint(1, 4))]
        boxes = draw.choices(BOXES, k=draw.randint(1, 3))
        mark, first = b"mark/%d" % self.number, self.number
        is_undone = draw.random() < 0.2

        def work(connection: Connection) -> None:
            self.space.put(connection, mark, b"")
            for offset, box in enumerate(boxes):
                self.space.send(connection, box, b"%d" % (first + offset), sender=sender)
            for operation in operations:
                self.space.execute(connection, operation, sender=sender)
            if is_undone:
                connection.rollback()

        self.number += len(boxes)
        if not self._is_committed(work, mark) or is_undone:
            return
        self.data[mark] = b""
        for offset, box in enumerate(boxes):
            self.sent.setdefault((box, sender), []).append(first + offset)
        for operation in operations:
            self._apply(operation)

    def reap(self) -> None:
        """Reaps a little, and half of the time rolls back."""
        box, is_undone, most = self.draw.choice(BOXES), self.draw.random() < 0.5, self.draw.randint(1, 5)
        try:
            with self.space.database.begin() as connection:
                found = self.space.reap(connection, box, most)
                if is_undone:
                    connection.rollback()
        except (
            DatabaseUnavailable,
            DatabaseBusy,
        ):  # nothing was reaped: the server is killed between reaps only
            return
        for one in [] if is_undone else found:
            self.reaped.setdefault((box, one.sender), []).append(int(one.value))

    def finish(self) -> None:
        """Waits until all is done, and checks all of it."""
        wait_until(lambda: is_done(self.space), lambda: str(self.space.stats()))
        while self.space.stats().inbox_messages:
            self.reap()
        assert self.reaped == self.sent, "each once, and in order"
        with self.space.database.begin() as connection:
            assert dict(self.space.scan(connection, limit=1 << 20)) == self.data
            failed = self.space.failed(connection, limit=1 << 20)
        assert sorted(map(repr, self.failed)) == sorted(repr(one.operation) for one in failed)

    def _operation(self, sender: bytes) -> Operation:
        """Keys belong to one sender, so that the order in which ranges are worked on changes nothing; "n" to all."""
        key = sender + b"/%d" % self.draw.randrange(3)
        return self.draw.choice(
            [
                Put(key, self.draw.choice([b"7", b"x"])),
                Increment(key, self.draw.randint(-9, 9)),
                Increment(key, 1),
                Increment(b"n", 1),
                Increment(b"n", 2),
                Delete(key),
                DeleteRange(sender + b"/1", sender + b"/2"),
            ]
        )

    def _apply(self, operation: Operation) -> None:
        match operation:
            case Put(bytes(key), value):
                self.data[key] = value
            case Increment(bytes(key), by):
                if self.data.get(key) == b"x":
                    self.failed.append(operation)
                else:
                    self.data[key] = b"%d" % (int(self.data.get(key, b"0")) + by)
            case Delete(bytes(key)):
                self.data.pop(key, None)
            case DeleteRange(bytes(start), bytes(end)):
                self.data = {key: value for key, value in self.data.items() if not start <= key < end}

    def _is_committed(self, work: Callable[[Connection], None], mark: bytes) -> bool:
        try:
            self.space.database.run(work)
        except DatabaseUnavailable:
            return self.space.database.run(lambda connection: self.space.get(connection, mark)) is not None
        return True


def create(space: KeySpace, draw: random.Random) -> Ledger:
    """With a range for each of the senders, and values that are no counters."""
    space.create()
    for at in ("box", "n"):
        space.split(at)
    ledger = Ledger(space, draw, {sender + b"/%d" % at: b"x" for sender in SENDERS for at in range(3)})
    with space.database.begin() as connection:
        for key, value in ledger.data.items():
            space.put(connection, key, value)
    return ledger


@pytest.mark.promise("S9", "K10")
def test_workers_are_killed(database_url: str) -> None:
    """While others start, who take over; in the end two are left, and do the rest."""
    draw = random.Random(23)
    with KeySpace(database_url, "shop") as space, workers(database_url) as services:
        ledger = create(space, draw)
        for _ in range(ROUNDS):
            victims = [services.start(service) for service in SERVICES]
            for victim in draw.sample(victims, len(victims)):
                for _ in range(draw.randint(1, 8)):
                    ledger.send()
                    ledger.reap()
                time.sleep(draw.expovariate(50))
                victim.kill()
        for service in SERVICES:
            services.start(service)
        ledger.finish()
        assert ledger.failed


@pytest.mark.promise("K19")
def test_the_server_is_killed(database_server: DatabaseServer) -> None:
    """While two workers of each service work: they wait until it is back, and go on."""
    draw = random.Random(42)
    with (
        database_server.database() as url,
        KeySpace(url, "shop") as space,
        workers(url) as services,
    ):
        ledger = create(space, draw)
        for service in SERVICES * 2:
            services.start(service)
        for _ in range(3):
            for _ in range(draw.randint(10, 40)):
                ledger.send()
                ledger.reap()
            database_server.kill()
            database_server.start()
            ledger.reap()  # the connections that the pool had
        ledger.finish()
