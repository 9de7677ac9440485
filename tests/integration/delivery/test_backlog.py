"""Consumers that lag, crash or share, through the real daemon: nothing waits for them, and memory does not grow."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection, wait_ready
from tickwheel.protocol.bodies.requests import Subscribe
from tickwheel.protocol.frames import FrameType

MIB = 1 << 20
BACKLOG_MIB = 160
MOST_ANONYMOUS_MIB = 110
"""An idle broker has about 40 MiB; one that kept the backlog's bodies, even once, would have 200."""


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


def anonymous_mib(daemon: Daemon) -> float:
    """Memory of the daemon that no file backs."""
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1_024
    raise AssertionError("this system does not tell")


@pytest.mark.promise("V3", "S2", "S15")
async def test_a_backlog_stops_no_send_and_stays_out_of_memory(daemon: Daemon, topic: str) -> None:
    """More than the daemon may have waits for a subscriber that does nothing, and is then delivered once, in order."""
    messages = BACKLOG_MIB * 256
    body = bytes(4_096)
    async with tickwheel.Client(daemon.url) as client:
        sent: list[int] = []
        async with client.subscribe(topic, credit=10, batch=10):
            for _ in range(0, messages, 1_024):
                sent += (await client.send_many(topic, [body] * 1_024)).ids()
            assert len(sent) == messages
            await wait_ready(client, topic, messages)
            assert anonymous_mib(daemon) < MOST_ANONYMOUS_MIB
        seen: list[int] = []
        async with client.subscribe(topic, "other") as subscription:
            with trio.fail_after(PATIENCE_S * 2):
                while len(seen) < messages:
                    batch = await subscription.receive_batch(PATIENCE_S)
                    assert batch is not None
                    assert set(batch.epochs) == {1}, "a backlog makes no duplicates"
                    seen += batch.ids
                    await batch.ack()
        assert seen == sent
        assert anonymous_mib(daemon) < MOST_ANONYMOUS_MIB


def test_a_bulk_load_from_the_command_line_stays_out_of_memory(daemon: Daemon, tmp_path: Path) -> None:
    body = "x" * 16_384
    with open(tmp_path / "load.jsonl", "w", encoding="utf-8") as file:
        for number in range(BACKLOG_MIB * 64):
            file.write(json.dumps({"body": body, "key": f"k{number}"}) + "\n")
    shell = Shell(tmp_path, daemon.url)
    report = shell.json("send", "load", "--from-file", "load.jsonl")
    assert (report["sent"], report["problems"]) == (BACKLOG_MIB * 64, [])
    assert anonymous_mib(daemon) < MOST_ANONYMOUS_MIB
    received = shell.text("receive", "load", "--count", "500", "--raw").split()
    assert received == [body] * 500
    assert anonymous_mib(daemon) < MOST_ANONYMOUS_MIB


@pytest.mark.promise("V49", "V100", "R7", "R8", "S16", "S17")
async def test_many_producers_and_consumers_share_the_work(daemon: Daemon, topic: str) -> None:
    """Each message goes to exactly one consumer of the group, and every consumer has a share."""
    producers, consumers, each = 4, 3, 300
    taken: list[Counter[bytes]] = [Counter() for _ in range(consumers)]

    async def produce(number: int) -> None:
        async with tickwheel.Client(daemon.url) as client:
            for start in range(0, each, 10):
                await client.send_many(topic, [b"%d-%d" % (number, start + n) for n in range(10)])

    async def consume(number: int, scope: trio.CancelScope) -> None:
        async with (
            tickwheel.Client(daemon.unix_url) as client,
            client.subscribe(topic, credit=20, batch=5) as subscription,
        ):
            async for message in subscription:
                taken[number][message.body] += 1
                await message.ack(confirm=True)
                if sum(map(Counter.total, taken)) == producers * each:
                    scope.cancel()

    with trio.fail_after(PATIENCE_S * 2):
        async with trio.open_nursery() as nursery:
            for number in range(consumers):
                nursery.start_soon(consume, number, nursery.cancel_scope)
            async with tickwheel.Client(daemon.url) as client:
                while (
                    sum(group.subscribers for one in await client.topics() for group in one.groups)
                    < consumers
                ):
                    await trio.sleep(0.01)
            for number in range(producers):
                nursery.start_soon(produce, number)
    together = sum(taken, Counter[bytes]())
    assert together == Counter(b"%d-%d" % (p, n) for p in range(producers) for n in range(each))
    assert all(one.total() >= each // 10 for one in taken), "everybody works"


@pytest.mark.promise("S14", "S21")
async def test_what_a_crashed_consumer_held_goes_to_another(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, ack_wait_ms=400)
        sent = (await client.send_many(topic, [b"x"] * 10)).ids()
        await wait_ready(client, topic, 10)
        with RawConnection(daemon.url) as crashing:
            asked = Subscribe(topic=topic, group="default", credit=10, batch=10)
            assert crashing.greet().request(FrameType.SUBSCRIBE, asked).type == FrameType.SUBSCRIBE_OK
            assert crashing.receive().type == FrameType.DELIVER
        async with client.subscribe(topic) as subscription:
            seen = {}
            while len(seen) < 10:
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                seen[message.id] = message.epoch
                await message.ack(confirm=True)
            assert sorted(seen) == list(sent)
            assert set(seen.values()) == {2}
            assert await subscription.receive(0.5) is None
