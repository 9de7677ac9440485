"""Fetching through the real daemon, with both clients: what is fetched is held without a subscription, and settled by
its receipts from anywhere."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.losing import Losing
from tickwheel.errors import BadArgument, BadTopicName, RequestUncertain, StaleReceipt
from tickwheel.protocol.frames import FrameType

pytestmark = pytest.mark.shared_daemon

LONG = timedelta(seconds=PATIENCE_S)


async def test_what_is_fetched_is_settled_like_any_message(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        assert not await client.fetch(topic, count=5)
        await client.send_many(topic, [b"a", b"b", b"c", b"d"], keys=["1", "2", "3", "4"])
        fetched = await client.fetch(topic, count=3, wait=LONG)
        assert len(fetched) in (1, 2, 3)
        while len(fetched) < 3:
            await fetched.give_back()
            fetched = await client.fetch(topic, count=3, wait=LONG)
        one, two, three = fetched
        assert (one.topic, one.body, one.key) == (topic, b"a", "1")
        assert fetched.attempts == (1, 1, 1)
        await one.ack(confirm=True)
        assert await two.nack(give_up=True, error="no") == "dead"
        assert await three.extend(timedelta(hours=1)) == "extended"
        assert await fetched.give_back() == ["already_acked", "stale_receipt", "returned"]
        with pytest.raises(StaleReceipt):
            await two.ack(confirm=True)
        rest = await client.fetch(topic, count=5, wait=LONG)
        assert sorted(rest.bodies()) == [b"c", b"d"]
        await rest.ack(confirm=True)
        assert (await client.group(topic, "default")).backlog == 0


async def test_receipts_are_good_on_any_connection(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
        await client.fetch(topic, "g", count=0)
        await client.send_many(topic, [b"%d" % n for n in range(4)])
        receipts: list[tuple[int, int]] = []
        while len(receipts) < 4:
            fetched = await client.fetch(topic, "g", count=4, wait=LONG, lease=timedelta(hours=1))
            receipts += zip(fetched.ids, fetched.epochs, strict=True)
        group_id = fetched.group_id
    async with tickwheel.Client(daemon.url) as client:
        assert not await client.fetch(topic, "g", count=4), "the leases outlive the client"
        a, b, c, d = sorted(receipts)
        assert await client.ack(group_id, [a, a, (10**9, 1)]) == ["acked", "already_acked", "not_found"]
        assert await client.nack(group_id, [b], timedelta(0), "busy") == ["nacked"]
        assert await client.extend(group_id, [b, c], timedelta(hours=2)) == ["stale_receipt", "extended"]
        assert await client.give_back(group_id, [d, a]) == ["returned", "already_acked"]
        assert await client.ack(group_id, []) == []
        with pytest.raises(BadArgument):
            await client.ack(group_id, [1, 2])  # type: ignore[list-item]
        again: list[tuple[bytes, int]] = []
        while len(again) < 2:
            fetched = await client.fetch(topic, "g", count=4, wait=LONG)
            again += zip(fetched.bodies(), fetched.attempts, strict=True)
        assert sorted(again) == [(b"1", 2), (b"3", 1)]


def test_the_blocking_client_fetches_too(daemon: Daemon, topic: str) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        client.send_many(topic, [b"a", b"b"])
        bodies: list[bytes] = []
        while len(bodies) < 2:
            fetched = client.fetch(topic, count=1, wait=LONG)
            (message,) = fetched
            bodies.append(message.body)
            if message.body == b"a":
                message.ack(confirm=True)
            else:
                assert fetched.attempts == (1,)
                assert fetched.give_back() == ["returned"]
        (again,) = client.fetch(topic, count=5, wait=LONG)
        assert client.ack(client.group(topic, "default").group_id, [(again.id, again.epoch)]) == ["acked"]
        assert not client.fetch(topic, count=5)


async def test_bad_arguments_are_refused_before_anything_is_asked(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(BadTopicName):
            await client.fetch("no topic")
        with pytest.raises(BadArgument):
            await client.fetch(topic, count=-1)
        with pytest.raises(BadArgument):
            await client.fetch(topic, wait=timedelta(hours=1))
        assert all(one.name != topic for one in await client.topics())


@pytest.mark.promise("when-an-answer-is-lost")
async def test_a_fetch_that_is_cancelled_holds_nothing(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, tickwheel.Client(daemon.url) as other:
        await other.create_topic(topic)
        with trio.move_on_after(0.2):
            await client.fetch(topic, wait=LONG)
        await other.send(topic, b"x")
        fetched = await other.fetch(topic, wait=LONG)
        assert (fetched.bodies(), fetched.attempts) == ([b"x"], (1,))


@pytest.mark.promise("when-an-answer-is-lost")
async def test_an_answer_that_was_lost_is_not_asked_for_again(daemon: Daemon, topic: str) -> None:
    losing = Losing()
    async with tickwheel.Client(daemon.url, dial=losing.dial) as client:
        await client.create_topic(topic, ack_wait_ms=500)
        await client.send_many(topic, [b"a", b"b"])
        with anyio.fail_after(PATIENCE_S):
            while (await client.topic(topic)).ready < 2:
                await anyio.sleep(0.01)
        losing.lose = FrameType.FETCH_OK
        with pytest.raises(RequestUncertain, match="comes again"):
            await client.fetch(topic, wait=LONG)
        (group,) = await client.groups(topic)
        assert (group.leased, losing.lost) == (1, 1), (
            "one was lost on its way, and no other given out in its place"
        )
        found = set()
        while len(found) < 2:
            found |= set((await client.fetch(topic, count=2, wait=LONG)).bodies())
        assert found == {b"a", b"b"}, "it came again when its lease had ended"
