"""What a user of RocketMQ's scheduled messages knows, through the real daemon: where they wait, when they come."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Message, Subscription

pytestmark = pytest.mark.shared_daemon


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def get(subscription: Subscription) -> Message:
    """The next message."""
    message = await subscription.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


@pytest.mark.promise("V80", "R4", "R27", "R29")
async def test_it_waits_outside_of_its_topic_and_then_is_like_any_other(daemon: Daemon, topic: str) -> None:
    options = {"headers": {"n": 1}, "priority": 9}
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        later = await client.send(topic, b"x", key="later", delay=timedelta(seconds=2), **options)
        (found,) = await client.browse(topic)
        assert (found.state, found.groups) == ("scheduled", [])
        (stats,) = [one for one in await client.topics() if one.name == topic]
        assert (stats.scheduled, stats.ready) == (1, 0)
        at_once = await client.send(topic, b"x", key="now", **options)
        past = await client.send(
            topic, b"x", key="past", deliver_at=datetime(2020, 1, 1, tzinfo=UTC), **options
        )
        messages = [await get(subscription) for _ in range(3)]
        assert {message.id for message in messages[:2]} == {at_once.id, past.id}
        assert messages[2].id == later.id
        seen = {(m.body, m.epoch, m.priority, str(m.headers), m.topic) for m in messages}
        assert len(seen) == 1, "a consumer sees no difference"
        (stats,) = [one for one in await client.topics() if one.name == topic]
        assert (stats.scheduled, stats.ready) == (0, 3)


@pytest.mark.promise("V74", "R9", "R13", "how-early-or-late-may-it-fire")
async def test_neighbouring_milliseconds_come_in_order_and_none_early(daemon: Daemon, topic: str) -> None:
    base_ms = now_ms() + 500
    times = [base_ms + number for number in range(300)]
    random.Random(7).shuffle(times)
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        await client.send_many(topic, [b"x"] * 300, deliver_at=times)
        due = []
        for _ in range(300):
            message = await get(subscription)
            assert now_ms() >= message.deliver_at_ms
            due.append(message.deliver_at_ms)
        assert due == sorted(times)


@pytest.mark.promise("how-early-or-late-may-it-fire")
async def test_a_crowd_in_one_millisecond_comes_whole_and_in_order(daemon: Daemon, topic: str) -> None:
    at_ms = now_ms() + 1_500
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic, credit=5_000) as subscription:
        sent = await client.send_many(topic, [b"x"] * 50_000, deliver_at=at_ms)
        ids: list[int] = []
        with trio.fail_after(PATIENCE_S):
            while len(ids) < 50_000:
                batch = await subscription.receive_batch(PATIENCE_S)
                assert batch is not None
                assert now_ms() >= at_ms
                ids += batch.ids
                await batch.ack()
        assert ids == list(sent.ids())


@pytest.mark.promise("R43", "how-early-or-late-may-it-fire")
@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_what_became_due_while_the_broker_was_down(tmp_path: Path, topic: str, ending: str) -> None:
    """It comes at the start, once, in order of its time, however long that was."""
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        base_ms = now_ms() + 3_000
        times = [base_ms + number for number in range(500)]
        random.Random(7).shuffle(times)
        async with tickwheel.Client(daemon.unix_url) as client:
            await client.send_many(topic, [b"x"] * 500, deliver_at=times)
            assert {message.state for message in await client.browse(topic)} == {"scheduled"}
            getattr(daemon, ending)()
            await trio.sleep(max(0.0, (max(times) - now_ms()) / 1_000) + 0.1)
            daemon.start()
            async with client.subscribe(topic) as subscription:
                seen = []
                for _ in range(500):
                    message = await get(subscription)
                    assert message.epoch == 1
                    seen.append(message.deliver_at_ms)
                    await message.ack()
                await subscription.flush()
                assert await subscription.receive(0.5) is None
        assert seen == sorted(times)


@pytest.mark.promise("R30", "R41", "how-early-or-late-may-it-fire")
async def test_there_is_no_longest_delay(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    async with tickwheel.Client(daemon.url) as client:
        for key, at in (("41 days", datetime.now(UTC) + timedelta(days=41)), ("the end", last)):
            await client.send(topic, b"x", key=key, deliver_at=at)
        await client.send(topic, b"x", key="level", delay_level=18)
        (_, found, _) = await client.browse(topic)
        assert found.deliver_at_ms == int(last.timestamp() * 1_000)
        assert await client.reschedule(topic, key="the end", delay=timedelta(days=36_500)) == "rescheduled"
        assert await client.cancel(topic, keys=["41 days", "the end", "level", "none"]) == [
            "cancelled",
            "cancelled",
            "cancelled",
            "not_found",
        ]
    shell = Shell(tmp_path, daemon.url)
    shell.run("send", topic, "x", "--at", "9999-12-31T23:59:59Z", "--key", "shell")
    assert shell.text("cancel", topic, "--key", "shell") == "shell: cancelled\n"


@pytest.mark.promise("R66")
async def test_time_order_and_transaction_go_together(daemon: Daemon, topic: str) -> None:
    """RocketMQ's kinds of messages exclude each other; here a message may be all of them."""
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        async with client.transaction() as tx:
            for number, delay_ms in enumerate((600, 400, 200)):
                tx.send(topic, b"%d" % number, order_key="customer", delay_ms=delay_ms)
        bodies = []
        for _ in range(3):
            message = await get(subscription)
            assert message.order_key == "customer"
            if not bodies:
                assert await subscription.receive(1) is None, "the others are due, and wait for this one"
            bodies.append(message.body)
            await message.ack(confirm=True)
        assert bodies == [b"2", b"1", b"0"]


@pytest.mark.promise("R76")
async def test_an_orphan_that_nobody_decides_about_is_a_dead_letter(tmp_path: Path, topic: str) -> None:
    checks = {"check_after": "50ms", "check_interval": "100ms", "check_attempts": 2}
    with Daemon(tmp_path / "data", segment_bytes="64MiB", **checks) as daemon:
        async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
            prepared = await client.prepare(topic, b"orphan")
            async with client.check_prepared(topic) as asked:
                for epoch in (1, 2):
                    check = await asked.receive(PATIENCE_S)
                    assert check is not None
                    assert (check.id, check.body, check.epoch) == (prepared.id, b"orphan", epoch)
                async with client.subscribe(f"{topic}.prepared.dead") as dead:
                    assert (await get(dead)).body == b"orphan"
            assert await subscription.receive(0.3) is None, "it was not delivered"
