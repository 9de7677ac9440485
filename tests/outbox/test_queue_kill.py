"""Consumers that are killed at random moments, and servers too: what is done in the same database is done once."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
import sqlalchemy as sa

from tests.outbox.queue_worker import EFFECTS, PROGRAM
from tests.support.clients.forking import Programs
from tests.support.outbox.databases import OUTBOX, DatabaseServer
from tests.support.run.profile import amount
from tickwheel import outbox

MESSAGES = 600
ROUNDS = amount("queue_kills")
LEASE_MS = 400
PATIENCE_S = 60


def workers(url: str) -> Programs:
    """Consumers in processes of their own."""
    return Programs(PROGRAM, url, "work", str(LEASE_MS), modules=OUTBOX)


def prepare(queue: outbox.Queue) -> None:
    queue.create()
    with queue.database.begin() as connection:
        EFFECTS.create(connection)


def put(queue: outbox.Queue, first: int, count: int) -> None:
    with queue.database.begin() as connection:
        queue.put_many(connection, [str(number) for number in range(first, first + count)])


def effects(queue: outbox.Queue) -> Counter[int]:
    with queue.database.reading() as connection:
        return Counter(connection.execute(sa.select(EFFECTS.c.number)).scalars())


def wait_for(queue: outbox.Queue, numbers: range) -> None:
    """Until all of these have had an effect; what a dead consumer held is taken over after its lease."""
    end = time.monotonic() + PATIENCE_S
    while len(effects(queue)) < len(numbers):
        assert time.monotonic() < end, f"{queue.stats()}, missing {set(numbers) - set(effects(queue))}"
        time.sleep(0.05)


def check(queue: outbox.Queue) -> None:
    assert effects(queue) == Counter(range(MESSAGES))
    assert queue.stats().oldest_age_s is None


@pytest.mark.promise("S14")
def test_consumers_are_killed(database_url: str) -> None:
    """One is killed again and again while another one works on, and the effect of each message is there once."""
    rng = random.Random(17)
    with outbox.Queue(database_url, "work") as queue:
        prepare(queue)
        with workers(database_url) as consumers:
            consumers.start()
            for start in range(0, MESSAGES, MESSAGES // ROUNDS):
                victims = [consumers.start() for _ in range(3)]
                put(queue, start, MESSAGES // ROUNDS)
                for victim in victims:
                    time.sleep(rng.expovariate(50))
                    victim.kill()
            wait_for(queue, range(MESSAGES))
        check(queue)


@pytest.mark.promise("S21", "Q7")
def test_a_lease_of_a_consumer_that_was_killed_ends(database_url: str) -> None:
    """It held messages, and was killed before it had done them: a second one gets them, and nobody needs a third."""
    with outbox.Queue(database_url, "work") as queue:
        prepare(queue)
        put(queue, 0, MESSAGES)
        queue.claim(
            MESSAGES // 2, lease=timedelta(milliseconds=LEASE_MS), name="dead"
        )  # as it is after a kill
        with workers(database_url) as consumers:
            consumers.start()
            wait_for(queue, range(MESSAGES))
        check(queue)


@pytest.mark.promise("S13")
def test_the_server_is_killed(database_server: DatabaseServer) -> None:
    """While two consumers work: they wait until it is back, and go on."""
    with database_server.database() as url, outbox.Queue(url, "work") as queue:
        prepare(queue)
        with workers(url) as consumers:
            for _ in range(2):
                consumers.start()
            for part in range(3):
                put(queue, part * MESSAGES // 3, MESSAGES // 3)
                done = part * MESSAGES // 3
                while len(effects(queue)) <= done:
                    time.sleep(0.005)
                database_server.kill()
                database_server.start()
                with suppress(outbox.DatabaseUnavailable):
                    queue.stats()  # the connections that the pool had
            wait_for(queue, range(MESSAGES))
        check(queue)


def test_workers_side_by_side(database_url: str) -> None:
    """In processes: each message once, nothing lost."""
    with outbox.Queue(database_url, "work") as queue:
        prepare(queue)
        with workers(database_url) as consumers:
            for _ in range(3):
                consumers.start()
            for start in range(0, MESSAGES, 50):
                put(queue, start, 50)
            wait_for(queue, range(MESSAGES))
        check(queue)
