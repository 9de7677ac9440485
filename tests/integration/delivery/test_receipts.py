"""Leases and what ends them, through the real daemon: nack, extend, dead letters, and changes to what was delivered."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Message, Subscription
from tickwheel.errors import BadArgument, MessageCancelled, StaleReceipt

HEADER = "tickwheel-dead"


async def get(subscription: Subscription, patience_s: float = PATIENCE_S) -> Message:
    """The next message."""
    message = await subscription.receive(patience_s)
    assert message is not None, "nothing came"
    return message


@pytest.mark.promise("R56", "R57")
async def test_nack_brings_a_message_back_after_its_delay(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        await client.send(topic, b"x")
        message = await get(subscription)
        before = trio.current_time()
        assert await message.nack(timedelta(milliseconds=300), error="not yet") == "nacked"
        assert await message.nack() == "stale_receipt"
        with pytest.raises(StaleReceipt):
            await message.ack(confirm=True)
        again = await get(subscription)
        assert again.epoch == 2
        assert trio.current_time() - before >= 0.299
        await again.ack(confirm=True)
        assert await again.nack() == "already_acked"


@pytest.mark.promise("V105", "R52")
async def test_extend_keeps_a_message_longer_than_its_lease(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, ack_wait_ms=400)
        await client.send(topic, b"x")
        async with client.subscribe(topic) as subscription:
            message = await get(subscription)
            assert await message.extend(timedelta(seconds=30)) == "extended"
            assert await subscription.receive(1.5) is None, "the lease was extended"
            await message.ack(confirm=True)


@pytest.mark.promise("V106", "R58")
async def test_after_its_last_attempt_a_message_is_a_dead_letter_with_its_history(
    daemon: Daemon, topic: str
) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=3, min_backoff_ms=1, ack_wait_ms=5_000)
        sent = await client.send(topic, b"body", key="order-1", headers={"n": 1})
        async with client.subscribe(topic, "billing") as subscription:
            results = [await (await get(subscription)).nack(0, error=f"try {n}") for n in (1, 2, 3)]
        assert results == ["nacked", "nacked", "dead"]
        async with client.subscribe(f"{topic}.dead", "operators") as dead:
            letter = await get(dead)
        story = letter.headers[HEADER]
        assert (letter.body, letter.headers["n"]) == (b"body", 1)
        assert (story["topic"], story["group"], story["id"], story["key"]) == (
            topic,
            "billing",
            sent.id,
            "order-1",
        )
        assert (story["attempts"], story["error"]) == (3, "try 3")
        assert [(attempt, error) for attempt, _, error in story["history"]] == [
            (1, "try 1"),
            (2, "try 2"),
            (3, "try 3"),
        ]
        (stats,) = [one for one in await client.topics() if one.name == topic]
        assert (stats.groups[0].dead, stats.groups[0].backlog) == (1, 0)


async def test_what_is_given_up_is_a_dead_letter_at_once(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
        sent = await client.send_many(topic, [b"poison", b"a", b"b"])
        async with client.subscribe(topic, "billing") as subscription:
            poison, one, two = [await get(subscription) for _ in range(3)]
            assert await poison.nack(error="no such customer", give_up=True) == "dead"
            assert await poison.nack(give_up=True) == "stale_receipt"
            with pytest.raises(BadArgument):
                await one.nack(timedelta(seconds=1), give_up=True)
            with pytest.raises(BadArgument):
                await one.nack(give_up=True, uncounted=True)
            assert [await one.ack(confirm=True), await two.ack(confirm=True)] == [None, None]
        (letter,) = await client.browse(f"{topic}.dead")
        assert letter.body == b"poison"
        story = letter.headers[HEADER]
        assert (story["id"], story["attempts"], story["error"]) == (sent.ids()[0], 1, "no such customer")


def test_what_is_uncounted_was_no_attempt(daemon: Daemon, topic: str) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        client.create_topic(topic, max_attempts=1)
        client.send(topic, b"x")
        with client.subscribe(topic) as subscription:
            for epoch, delay in ((1, None), (2, timedelta(milliseconds=50)), (3, None)):
                message = subscription.receive(PATIENCE_S)
                assert message is not None
                assert message.epoch == epoch
                with pytest.raises(BadArgument):
                    message.nack(error="failed", uncounted=True)
                assert message.nack(delay, uncounted=True) == "nacked"
            (batch,) = [next(subscription.batches())]
            assert batch.epochs == (4,)
            assert batch.nack(give_up=True) == ["dead"]


async def test_what_a_subscriber_fetched_ahead_and_nobody_saw_was_no_attempt(
    daemon: Daemon, topic: str
) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=1)
        await client.send_many(topic, [b"%d" % index for index in range(10)])
        for index in range(9):
            async with client.subscribe(topic) as subscription:
                message = await get(subscription)
                assert (message.body, message.epoch) == (b"%d" % index, index + 1)
                await message.ack(confirm=True)
        async with client.subscribe(topic) as subscription:
            await get(subscription)  # seen and not acked: that was its one attempt
        (letter,) = await client.browse(f"{topic}.dead")
        assert letter.body == b"9"


async def test_a_lease_that_ends_the_last_time_buries_the_message_too(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=2, ack_wait_ms=50, max_backoff_ms=100)
        await client.send(topic, b"x")
        async with client.subscribe(topic) as subscription, client.subscribe(f"{topic}.dead") as dead:
            assert [(await get(subscription)).epoch for _ in range(2)] == [1, 2]
            assert (await get(dead)).headers[HEADER]["attempts"] == 2
            assert await subscription.receive(0.5) is None


@pytest.mark.promise("R60")
async def test_replaying_a_dead_letter_gives_it_back_to_its_group_alone(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=1)
        await client.send(topic, b"x")
        async with client.subscribe(topic, "fails") as fails, client.subscribe(topic, "works") as works:
            await (await get(works)).ack(confirm=True)
            assert await (await get(fails)).nack() == "dead"
            assert await client.replay_dead(topic) == {"replayed": 1}
            message = await get(fails)
            assert message.epoch == 2, "receipts of the attempts before stay fenced off"
            await message.ack(confirm=True)
            assert await works.receive(0.3) is None
        assert await client.browse(f"{topic}.dead") == []


@pytest.mark.promise("V66", "V67", "cancel-and-reschedule-racing-delivery")
async def test_a_message_that_is_stopped_comes_no_more_and_leaves_the_subscribers_queue(
    daemon: Daemon, topic: str
) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        sent = await client.send_many(topic, [b"a", b"b", b"c"])
        first = await get(subscription)
        while (await client.stats()).leased < 3:
            await trio.sleep(0.01)
        assert await client.cancel(id=sent[1].id) == "already_delivered"
        results = await client.cancel(ids=[sent[0].id, sent[1].id], stop=True)
        assert results == ["stopped", "stopped"]
        with pytest.raises(MessageCancelled):
            await first.ack(confirm=True)
        bodies = []
        while (message := await subscription.receive(0.5)) is not None:
            bodies.append(message.body)
            await message.ack(confirm=True)
        assert bodies == [b"c"]


@pytest.mark.promise("S12")
async def test_redeliver(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        sent = await client.send(topic, b"x")
        held = await get(subscription)
        assert await client.redeliver(id=sent.id) == ["redelivered"]
        again = await get(subscription)
        assert again.epoch == 2
        with pytest.raises(StaleReceipt):
            await held.ack(confirm=True)
        await again.ack(confirm=True)
        assert await client.redeliver(id=sent.id) == ["already_acked"]
        assert await client.redeliver(id=sent.id, acked=True, delay=timedelta(milliseconds=200)) == [
            "redelivered"
        ]
        third = await get(subscription)
        assert third.epoch == 3
        await third.ack(confirm=True)
        assert await client.redeliver(id=1 << 40) == ["not_found"]


@pytest.mark.promise("V69")
async def test_changes_by_filter(daemon: Daemon, topic: str) -> None:
    hour = timedelta(hours=1)
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many(
            topic, [b"%d" % n for n in range(100)], delay=hour, priority=[n % 10 for n in range(100)]
        )
        counted = await client.cancel_where(topic, priority_max=4, dry_run=True)
        assert (counted.matched, counted.results) == (50, {})
        assert await client.cancel_where(topic, priority_max=4) == (50, {"cancelled": 50})
        assert await client.cancel_where(topic, priority_max=4) == (0, {})
        moved = await client.reschedule_where(topic, states="scheduled", delay=0, limit=20)
        assert moved == (20, {"rescheduled": 20})
        async with client.subscribe(topic, "g") as subscription:
            taken = [await get(subscription) for _ in range(20)]
            assert await client.redeliver_where(topic, states=["leased"], group="g") == (
                20,
                {"redelivered": 20},
            )
            again = [await get(subscription) for _ in range(20)]
            assert sorted(m.id for m in again) == sorted(m.id for m in taken)
            assert {m.epoch for m in again} == {2}
            assert (await client.cancel_where(topic, epoch_min=2, dry_run=True)).matched == 20
        assert (await client.cancel_where(topic, states="scheduled")).results == {"cancelled": 30}


@pytest.mark.promise("cancel-and-reschedule-racing-delivery")
async def test_a_message_in_a_lane_can_still_be_cancelled_and_rescheduled(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        sent = await client.send_many(topic, [b"a", b"b", b"c"])
        while next(one for one in await client.topics() if one.name == topic).ready < 3:
            await trio.sleep(0.01)
        assert await client.cancel(id=sent[0].id) == "cancelled"
        assert await client.reschedule(id=sent[1].id, delay=timedelta(milliseconds=400)) == "rescheduled"
        async with client.subscribe(topic) as subscription:
            assert [(await get(subscription)).body for _ in range(2)] == [b"c", b"b"]


async def test_a_restart_keeps_nacks_dead_letters_and_attempts(tmp_path: Path, topic: str) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.create_topic(topic, max_attempts=2, ack_wait_ms=60_000)
            await client.send(topic, b"x")
            async with client.subscribe(topic) as subscription:
                await (await get(subscription)).nack(timedelta(seconds=1), error="first")
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            async with client.subscribe(topic) as subscription:
                message = await get(subscription)
                assert message.epoch == 2
                assert await message.nack(error="second") == "dead"
            async with client.subscribe(f"{topic}.dead") as dead:
                story = (await get(dead)).headers[HEADER]
        assert [error for _, _, error in story["history"]] == ["first", "second"]
