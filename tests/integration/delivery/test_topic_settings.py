"""Topic settings through the real daemon: live, whole or not at all, and still there after a restart."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import BadTopicSettings, BodyTooLarge, TopicExists, TopicInUse, UnknownTopic

pytestmark = pytest.mark.shared_daemon

VITESS = "vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30"


@pytest.mark.promise("V28", "V88")
async def test_create_show_change_delete(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_topic(topic, ack_wait=timedelta(seconds=5), max_attempts=3)
        assert made.settings == {"ack_wait_ms": 5_000, "max_attempts": 3}
        assert made.effective["ack_wait_ms"] == made.effective["min_backoff_ms"] == 5_000
        with pytest.raises(TopicExists):
            await client.create_topic(topic)
        changed = await client.set_topic(topic, unset=["max_attempts"], rate=10)
        assert changed.settings == {"ack_wait_ms": 5_000, "rate": 10}
        assert await client.topic(topic) == changed
        await client.send(topic, b"x")
        async with client.subscribe(topic):
            with pytest.raises(TopicInUse):
                await client.delete_topic(topic)
        assert await client.delete_topic(topic) == 1
        with pytest.raises(UnknownTopic):
            await client.topic(topic)
        assert (await client.create_topic(topic)).messages == 0, "a new topic of the same name starts empty"


@pytest.mark.parametrize(
    "bad",
    [
        {"ack_wait": -1},
        {"ack_wait": 0},
        {"priority": 256},
        {"batch_size": 0},
        {"rate": -1},
        {"max_attempts": "many"},
        {"min_backoff": 1_000, "max_backoff": 10},
        {"no_such_setting": 1},
    ],
)
async def test_one_bad_value_refuses_them_all(daemon: Daemon, topic: str, bad: dict[str, object]) -> None:
    async with tickwheel.Client(daemon.url) as client:
        before = await client.create_topic(topic)
        with pytest.raises((BadTopicSettings, tickwheel.BadTime)):
            await client.set_topic(topic, cache_size=77, **bad)
        assert (await client.topic(topic)).settings == before.settings


@pytest.mark.promise("V17", "V29", "V35")
async def test_the_comment_of_a_vitess_table(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_topic(topic, vitess=VITESS + ",vt_min_backoff=1.5")
        assert made.settings == {
            "ack_wait_ms": 30_000,
            "purge_after_ms": 86_400_000,
            "batch_size": 10,
            "cache_size": 10_000,
            "min_backoff_ms": 1_500,
            "max_backoff_ms": 0,
        }


async def test_settings_survive_a_kill(tmp_path: Path, topic: str) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.create_topic(topic, rate=5, spread_ms=100)
            made = await client.pause_topic(topic)
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            assert await client.topic(topic) == made


@pytest.mark.promise("V75", "R53")
async def test_a_change_counts_at_once_and_drops_no_subscriber(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, ack_wait_ms=60_000)
        async with client.subscribe(topic, max_hold=0) as subscription:
            await client.pause_topic(topic)
            await client.send(topic, b"x")
            assert await subscription.receive(0.5) is None
            await client.set_topic(topic, ack_wait_ms=100, max_backoff_ms=200)
            await client.resume_topic(topic)
            first = await subscription.receive(PATIENCE_S)
            again = await subscription.receive(PATIENCE_S)
            assert first is not None
            assert again is not None
            assert (first.epoch, again.epoch) == (1, 2)
            await again.ack(confirm=True)


async def test_priority_and_size_of_a_topic(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, priority=7, max_body_bytes=3)
        await client.send(topic, b"own")
        await client.send(topic, b"set", priority=9)
        with pytest.raises(BodyTooLarge):
            await client.send(topic, b"long")
        async with client.subscribe(topic) as subscription:
            taken = [await subscription.receive(PATIENCE_S) for _ in range(2)]
        assert [message.priority for message in taken if message is not None] == [7, 9]


@pytest.mark.promise("V32", "V33", "R63")
async def test_batches_and_what_is_out_at_once_are_bounded(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, batch_size=5, cache_size=12)
        await client.send_many(topic, [b"x"] * 40)
        seen = 0
        async with client.subscribe(topic, credit=1_000) as subscription:
            while seen < 40:
                batch = await subscription.receive_batch(PATIENCE_S)
                assert batch is not None
                assert len(batch) <= 5
                (stats,) = [one for one in await client.topics() if one.name == topic]
                assert stats.groups[0].leased <= 12
                seen += len(batch)
                await batch.ack(confirm=True)


@pytest.mark.promise("V76")
async def test_the_rate_holds(daemon: Daemon, topic: str) -> None:
    """Never above the rate; how near it comes from below depends on the machine, and is measured in bench/."""
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, rate=500)
        await client.send_many(topic, [b"x"] * 2_000)
        started, seen = (
            time.monotonic(),
            0,
        )  # messages come from the subscription on, whatever stands still meanwhile
        async with client.subscribe(topic, credit=10_000) as subscription:
            while (spent := time.monotonic() - started) < 2:
                batch = await subscription.receive_batch(PATIENCE_S)
                assert batch is not None
                seen += len(batch)
                await batch.ack()
            assert 0 < seen <= 500 * (spent + 0.1) + 1


@pytest.mark.promise("R28")
async def test_spread_makes_a_ramp_of_a_herd(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, spread=timedelta(seconds=2))
        took_ms = 0
        for _ in range(5):  # one that stands still when the first ones come sees less than there was
            at_ms = int(time.time() * 1000) + 500
            await client.send_many(topic, [b"x"] * 2_000, deliver_at=at_ms)
            arrived: list[int] = []
            async with client.subscribe(topic, credit=10_000) as subscription:
                with trio.fail_after(PATIENCE_S):
                    while len(arrived) < 2_000:
                        batch = await subscription.receive_batch(PATIENCE_S)
                        assert batch is not None
                        assert set(batch.deliver_at_ms) == {at_ms}, "what was asked for stays known"
                        arrived += [int(time.time() * 1000)] * len(batch)
                        await batch.ack()
            assert min(arrived) >= at_ms, "never early"
            assert max(arrived) >= at_ms + 1_900
            if (took_ms := max(arrived) - min(arrived)) >= 1_900:
                break
        assert took_ms >= 1_900, "the herd takes its two seconds"


async def test_retention_ends_what_nobody_acks(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, retention=timedelta(milliseconds=300))
        sent = await client.send(topic, b"x", key="k")
        with trio.fail_after(PATIENCE_S + 60):
            while await client.browse(topic):
                await trio.sleep(0.1)
        assert await client.cancel(id=sent.id) == "expired"
        assert not (await client.send(topic, b"y", key="k")).duplicate, "its key is free"
