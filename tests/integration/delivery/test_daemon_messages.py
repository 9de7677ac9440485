"""The real daemon and the real client: what a user does every day."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Message, Subscription
from tickwheel.errors import BodyTooLarge, StaleReceipt

MAX_BODY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Bodies are small, and leases end soon."""
    return {"max_body_bytes": MAX_BODY_BYTES, "ack_wait": "300ms"}


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next `count` messages, acked."""
    taken: list[Message] = []
    with trio.fail_after(PATIENCE_S):
        async for message in subscription:
            taken.append(message)
            await message.ack()
            if len(taken) == count:
                return taken
    raise AssertionError("the subscription ended")


async def stays_empty(subscription: Subscription, for_s: float) -> bool:
    """Whether nothing is delivered for a while."""
    with trio.move_on_after(for_s):
        async for _ in subscription:
            return False
    return True


@pytest.mark.promise("V26", "V39", "V44", "V45", "V79", "R3")
@pytest.mark.parametrize("kind", ["url", "unix_url"])
async def test_send_deliver_ack(daemon: Daemon, topic: str, kind: str) -> None:
    async with tickwheel.Client(getattr(daemon, kind)) as client:
        sent = await client.send(topic, b"hello", key="k", headers={"n": 1}, priority=7)
        assert not sent.duplicate
        async with client.subscribe(topic) as subscription:
            (message,) = await take(subscription, 1)
            assert message.id == sent.id
            assert message.body == b"hello"
            assert message.key == "k"
            assert message.headers == {"n": 1}
            assert message.priority == 7
            assert message.epoch == 1
            await subscription.flush()
            assert await stays_empty(subscription, 0.7)
        (stats,) = [each for each in await client.topics() if each.name == topic]
        assert [group.acked for group in stats.groups] == [1]


@pytest.mark.promise("V16", "V43", "R1", "how-early-or-late-may-it-fire")
async def test_a_future_message_is_on_time_and_never_early(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic, credit=10) as subscription:
        due = [datetime.now(UTC) + timedelta(milliseconds=200 + 50 * n) for n in range(5)]
        for number, moment in enumerate(due):
            await client.send(topic, bytes([number]), deliver_at=moment)
        for number, moment in enumerate(due):
            (message,) = await take(subscription, 1)
            lateness = datetime.now(UTC) - moment
            assert message.body == bytes([number])
            assert timedelta(0) <= lateness < timedelta(seconds=PATIENCE_S)
            assert abs(message.deliver_at - moment) <= timedelta(milliseconds=1)


@pytest.mark.promise("R51")
async def test_an_unacked_message_comes_again_with_a_higher_epoch(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        began_s = time.monotonic()  # before it can be given out
        await client.send(topic, b"again")
        async with client.subscribe(topic, max_hold=0) as subscription:
            with trio.fail_after(PATIENCE_S):
                messages = aiter(subscription)
                first = await anext(messages)
                second = await anext(messages)
            assert (first.id, first.epoch, second.id, second.epoch) == (second.id, 1, first.id, 2)
            assert time.monotonic() - began_s > 0.2
            with pytest.raises(StaleReceipt):
                await first.ack(confirm=True)
            await second.ack(confirm=True)
            assert await stays_empty(subscription, 1.0)


@pytest.mark.promise("V11", "V14")
async def test_two_groups_get_everything_each(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        results = await client.send_many(topic, [b"%d" % n for n in range(1_000)])
        for group in ("a", "b"):
            async with client.subscribe(topic, group=group) as subscription:
                taken = await take(subscription, 1_000)
            assert [message.id for message in taken] == list(results.ids())


async def test_one_group_shares_the_messages(daemon: Daemon, topic: str) -> None:
    async with (
        tickwheel.Client(daemon.url) as one,
        tickwheel.Client(daemon.unix_url) as two,
        one.subscribe(topic, credit=10) as left,
        two.subscribe(topic, credit=10) as right,
    ):
        await one.send_many(topic, [b"%d" % n for n in range(20)])
        async with trio.open_nursery() as nursery:
            seen: list[bytes] = []

            async def collect(subscription: Subscription) -> None:
                seen.extend(message.body for message in await take(subscription, 10))

            nursery.start_soon(collect, left)
            nursery.start_soon(collect, right)
        assert sorted(seen, key=int) == [b"%d" % n for n in range(20)]


async def test_a_subscriber_that_does_not_take_delays_nobody(daemon: Daemon, topic: str) -> None:
    async with (
        tickwheel.Client(daemon.url) as lazy,
        tickwheel.Client(daemon.url) as busy,
        lazy.subscribe(topic, credit=1),
        busy.subscribe(topic, credit=100) as subscription,
    ):
        await busy.send_many(topic, [b"x"] * 500)
        await take(subscription, 490)


@pytest.mark.promise("V9", "V18", "sending-twice")
async def test_a_resend_with_the_same_key_is_stored_once(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        first = await client.send(topic, b"1", key="order-17")
        again = await client.send(topic, b"2", key="order-17")
        assert (again.id, again.duplicate, again.differs) == (first.id, True, True)
        assert await client.send(topic, b"1", key="order-17") == (first.id, True, False)
        many = await client.send_many(topic, [b"3", b"4", b"5"], keys=["order-17", None, "order-18"])
        assert [result.duplicate for result in many] == [True, False, False]
        assert [result.differs for result in many] == [True, False, False]
        late = datetime.now(UTC) + timedelta(hours=1)
        timed = await client.send(topic, b"t", key="timed", deliver_at=late)
        for time, differs in (
            ({"deliver_at": late}, False),
            ({"deliver_at": late + timedelta(seconds=1)}, True),
        ):
            assert await client.send(topic, b"t", key="timed", **time) == (timed.id, True, differs)
        assert await client.cancel(id=timed.id) == "cancelled"
        async with client.subscribe(topic) as subscription:
            assert [message.body for message in await take(subscription, 3)] == [b"1", b"4", b"5"]


@pytest.mark.promise("R39", "R40", "cancel-and-reschedule-racing-delivery")
async def test_cancel_tells_the_truth(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        later = await client.send(topic, b"later", delay=timedelta(hours=1), key="k")
        now = await client.send(topic, b"now")
        async with client.subscribe(topic) as subscription:
            await take(subscription, 1)
            await subscription.flush()
        assert await client.cancel(topic, key="k") == "cancelled"
        assert await client.cancel(id=later.id) == "already_cancelled"
        assert await client.cancel(id=now.id) == "already_acked"
        assert await client.cancel(topic, key="never") == "not_found"
        assert await client.cancel(id=1 << 40) == "not_found"


@pytest.mark.promise("V68", "R42")
async def test_reschedule_moves_a_message_both_ways(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        far = await client.send(topic, b"far", delay=timedelta(days=1000))
        near = await client.send(topic, b"near", delay=timedelta(milliseconds=400))
        assert await client.reschedule(id=far.id, delay=timedelta(milliseconds=50)) == "rescheduled"
        assert await client.reschedule(id=near.id, delay=timedelta(days=1)) == "rescheduled"
        (message,) = await take(subscription, 1)
        assert message.body == b"far"
        assert await stays_empty(subscription, 0.8)
        assert await client.reschedule(id=far.id, delay=timedelta(0)) == "already_acked"


@pytest.mark.promise("S3")
async def test_body_sizes_from_nothing_to_the_limit(daemon: Daemon, topic: str) -> None:
    bodies = [b"", b"x", b"y" * 70_000, bytes(MAX_BODY_BYTES)]
    async with tickwheel.Client(daemon.url) as client:
        for body in bodies:
            await client.send(topic, body)
        with pytest.raises(BodyTooLarge):
            await client.send(topic, bytes(MAX_BODY_BYTES + 1))
        async with client.subscribe(topic) as subscription:
            assert [message.body for message in await take(subscription, len(bodies))] == bodies


@pytest.mark.promise("V87")
async def test_stats_count_what_happened(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        before = await client.stats()
        await client.send(topic, b"1")
        await client.send(topic, b"2", delay=timedelta(days=1))
        await take(subscription, 1)
        await subscription.flush()
        after = await client.stats()
        assert (after.messages - before.messages, after.scheduled - before.scheduled) == (2, 1)
        assert (after.delivered - before.delivered, after.acked - before.acked) == (1, 1)
        assert after.connections >= 1
        assert after.subscribers == 1
        assert after.uptime_ms >= before.uptime_ms
        wheel = await client.wheel()
        assert sum(level.timers for level in wheel.levels) >= 1


async def test_16_mib_bodies_when_allowed(tmp_path: Path) -> None:
    settings = {"max_body_bytes": "16MiB", "max_frame_bytes": "20MiB"}
    body = bytes(range(256)) * (1 << 16)
    why = "16 MiB are stored, and delivered, as one"
    with Daemon(tmp_path / "data", may_hold_loop=why, **settings) as daemon:
        async with tickwheel.Client(daemon.url) as client, client.subscribe("big") as subscription:
            for _ in range(3):
                await client.send("big", body)
            for message in await take(subscription, 3):
                assert message.body == body
