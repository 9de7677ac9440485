"""Rows of one table for several topics, and with keys of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

import tickwheel
from tests.support.outbox.relaying import LATER_NS, STEPS, Messages, in_topic, interrupted
from tickwheel._embedded import EmbeddedBroker
from tickwheel.outbox import BadTable, Relay


@pytest.fixture
def jobs(database_url: str) -> Iterator[Messages]:
    """A table whose rows say where they go, and as what."""
    found = Messages(
        database_url,
        "jobs",
        sa.Column("name", sa.String(400)),
        sa.Column("target", sa.String(200)),
        sa.Column("body", sa.Text),
    )
    yield found
    found.close()


class Interrupted(Exception):
    """Stands for the death of the relay."""


def relay_of(jobs: Messages, client: tickwheel.Client, topic: str, relay_class: type[Relay] = Relay) -> Relay:
    return relay_class(
        jobs.database, "jobs", client, topic, headers=[], key="name", topic_column="target", batch=4
    )


async def test_each_row_goes_to_its_topic(broker: EmbeddedBroker, jobs: Messages, topic: str) -> None:
    targets = [f"{topic}-a", None, f"{topic}-b", f"{topic}-a", f"{topic}-c", None, f"{topic}-b"]
    jobs.add(
        *(
            {"name": None if n == 5 else f"key {n}", "target": target, "body": str(n), "time_next": n}
            for n, target in enumerate(targets)
        )
    )
    async with broker.client() as client:
        relay = relay_of(jobs, client, topic)
        assert await relay.run_once() == 7
        assert await relay.run_once() == 0
        found = {
            name: [(one.key, one.body) for one in await in_topic(client, f"{topic}{name}")]
            for name in ("", "-a", "-b", "-c")
        }
    assert found == {
        "": [("key 1", b"1"), ("jobs:6", b"5")],
        "-a": [("key 0", b"0"), ("key 3", b"3")],
        "-b": [("key 2", b"2"), ("key 6", b"6")],
        "-c": [("key 4", b"4")],
    }
    assert jobs.unsent() == []


async def test_what_has_no_good_topic_or_key_holds_up_no_other(
    broker: EmbeddedBroker, jobs: Messages, topic: str
) -> None:
    jobs.add(
        {"name": "a", "target": "no topic!", "body": "x"},
        {"name": "b", "target": "tickwheel.relay", "body": "x"},
        {"name": "k" * 300, "target": topic, "body": "x"},
        {"name": "c", "target": topic, "body": "x"},
    )
    async with broker.client() as client:
        relay = relay_of(jobs, client, topic)
        assert await relay.run_once() == 1
        assert relay.stats.set_aside == 3
        assert [one.key for one in await in_topic(client, topic)] == ["c"]
    assert jobs.unsent() == [1, 2, 3]


async def test_columns_that_there_are_not(broker: EmbeddedBroker, jobs: Messages, topic: str) -> None:
    async with broker.client() as client:
        for option in ({"key": "nothing"}, {"topic_column": "nothing"}):
            with pytest.raises(BadTable, match="nothing"):
                await Relay(jobs.database, "jobs", client, topic, **option).run_once()


@pytest.mark.parametrize("step", STEPS)
async def test_an_interruption(broker: EmbeddedBroker, jobs: Messages, topic: str, step: str) -> None:
    """A batch is one topic's: what was sent of it is taken over, and changed in that topic."""

    async def die(now: str) -> None:
        if now == step:
            raise Interrupted

    targets = [f"{topic}-a", f"{topic}-b"]
    jobs.add(*({"name": f"key {n}", "target": targets[n % 2], "body": "x"} for n in range(6)))
    async with broker.client() as client:
        with pytest.raises(Interrupted):
            await relay_of(jobs, client, topic, interrupted(die)).run_once()
        moved_ns = LATER_NS + 3_600 * 10**9
        changed = jobs.change(1, time_next=moved_ns)
        await relay_of(jobs, client, topic).run_once()
        found = {one.key: one for name in targets for one in await in_topic(client, name)}
        assert len(found) == sum([len(await in_topic(client, name)) for name in targets]) == 6
        assert {found[f"key {n}"].key for n in range(6)} == found.keys()
        is_moved = found["key 0"].deliver_at_ms == -(-moved_ns // 1_000_000)
        assert is_moved == bool(changed)
    assert jobs.unsent() == []
