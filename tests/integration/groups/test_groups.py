"""Priorities, ordering keys, groups, shards and delay levels through the real daemon."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.lowlevel

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, wait_ready
from tickwheel import Message, Subscription
from tickwheel.errors import BadArgument, UnknownShard

pytestmark = pytest.mark.shared_daemon

_numbers = count()


async def get(subscription: Subscription) -> Message:
    """The next message."""
    message = await subscription.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


@pytest.mark.promise("V20", "V98", "in-which-order")
async def test_low_numbers_go_first_and_a_share_is_kept_for_who_waits_longest(
    daemon: Daemon, topic: str
) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many(topic, [b"old"] * 20, priority=200)
        await client.send_many(topic, [b"urgent"] * 200, priority=1)
        await wait_ready(client, topic, 220)
        async with client.subscribe(topic, credit=8, batch=8) as subscription:
            order = []
            for _ in range(160):
                message = await get(subscription)
                order.append(message.body)
                await message.ack(confirm=True)
        assert order[:7].count(b"urgent") >= 6, "the lower number goes first"
        assert order.count(b"old") == 20, (
            "one in eight goes to the longest-waiting, so the old ones are through"
        )


@pytest.mark.promise("V15", "R64", "S1", "in-which-order")
async def test_one_ordering_key_is_delivered_one_at_a_time_in_order(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        keys = [f"customer-{n % 7}" for n in range(140)]
        await client.send_many(
            topic, [b"%d" % n for n in range(140)], order_keys=keys, priority=[n % 3 for n in range(140)]
        )
        seen: dict[str, list[int]] = defaultdict(list)
        open_keys: Counter[str] = Counter()
        done = 0

        async def work(number: int) -> None:
            nonlocal done
            async with client.subscribe(topic, credit=20) as subscription:
                while done < 140:
                    message = await subscription.receive(0.2)
                    if message is None:
                        continue
                    assert message.order_key is not None
                    assert open_keys[message.order_key] == 0, "one in flight a key"
                    open_keys[message.order_key] += 1
                    await trio.lowlevel.checkpoint()
                    open_keys[message.order_key] -= 1
                    if message.epoch == 1 and int(message.body) % 10 == number:
                        assert await message.nack(0) == "nacked"
                        continue
                    seen[message.order_key].append(int(message.body))
                    done += 1
                    await message.ack(confirm=True)

        with trio.fail_after(PATIENCE_S * 2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, 1)
                nursery.start_soon(work, 2)
        assert len(seen) == 7
        for key, numbers in seen.items():
            assert numbers == sorted(numbers), key


@pytest.mark.promise("in-which-order")
async def test_order_holds_across_a_restart(tmp_path: Path, topic: str) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB", ack_wait="500ms") as daemon:
        async with tickwheel.Client(daemon.unix_url) as client:
            await client.send_many(topic, [b"%d" % n for n in range(10)], order_keys="k")
            async with client.subscribe(topic, max_hold=0) as subscription:  # it keeps no lease alive
                first = await get(subscription)
                assert first.body == b"0"
                assert await subscription.receive(0.2) is None, "the others wait for it"
                daemon.kill()
                daemon.start()
                bodies = []
                for _ in range(10):
                    message = await get(subscription)
                    bodies.append(message.body)
                    await message.ack(confirm=True)
                assert bodies == [b"%d" % n for n in range(10)]


@pytest.mark.promise("R65")
async def test_cancelling_the_first_of_a_key_lets_the_next_one_go(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe(topic) as subscription:
        sent = await client.send_many(topic, [b"a", b"b", b"c"], order_keys="k")
        held = await get(subscription)
        assert await client.cancel(id=sent[1].id) == "cancelled"
        assert await client.cancel(id=held.id, stop=True) == "stopped"
        assert (await get(subscription)).body == b"c"


@pytest.mark.promise("V50", "R62", "in-which-order")
@pytest.mark.parametrize("start", ["earliest", "latest", "time"])
async def test_where_a_new_group_starts(daemon: Daemon, topic: str, start: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        now_ms = int(time.time() * 1000)
        times = [now_ms - 3_000, now_ms - 2_000, now_ms - 1_000]
        await client.send_many(topic, [b"1", b"2", b"3"], deliver_at=times)
        await wait_ready(client, topic, 3)
        at: object = start if start != "time" else now_ms - 2_000
        async with client.subscribe(topic, "g", start=at) as subscription:  # type: ignore[arg-type]
            await client.send(topic, b"4")
            expected = {"earliest": [b"1", b"2", b"3", b"4"], "latest": [b"4"], "time": [b"2", b"3", b"4"]}[
                start
            ]
            assert [(await get(subscription)).body for _ in expected] == expected
            (stats,) = [one for one in await client.topics() if one.name == topic]
            assert stats.groups[0].backlog == len(expected)


@pytest.mark.promise("R61", "S11")
async def test_a_slow_subscriber_holds_up_nobody(daemon: Daemon, topic: str) -> None:
    async with (
        tickwheel.Client(daemon.url) as slow,
        tickwheel.Client(daemon.url) as client,
        slow.subscribe(topic, "g", credit=5) as stuck,
        client.subscribe(topic, "g", credit=100) as quick,
        client.subscribe(topic, "other", credit=100) as other,
    ):
        await client.send_many(topic, [b"x"] * 1_000)
        seen = 0
        while seen < 995:
            batch = await quick.receive_batch(PATIENCE_S)
            assert batch is not None
            seen += len(batch)
            await batch.ack(confirm=True)
        assert await quick.receive(0.2) is None
        held = await stuck.receive_batch(PATIENCE_S)
        assert held is not None
        assert 0 < len(held) <= 5
        seen = 0
        while seen < 1_000:
            batch = await other.receive_batch(PATIENCE_S)
            assert batch is not None
            seen += len(batch)
            await batch.ack()


@pytest.mark.promise("V1", "V10", "V52", "V53")
async def test_shards_split_a_topic_by_key(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_topic(topic, shards=4)
        assert made.shards == ["-40", "40-80", "80-c0", "c0-"]
        keys = [f"key-{n}" for n in range(400)]
        sent = await client.send_many(topic, [b"x"] * 400, keys=keys)
        assert (await client.send(topic, b"again", key="key-7")).id == sent[7].id, (
            "keys are unique over all shards"
        )
        assert await client.cancel(topic, key="key-0") == "cancelled"
        with pytest.raises(UnknownShard, match="-40, 40-80"):
            async with client.subscribe(topic, shard="-80"):
                pass
        found: dict[str, set[str | None]] = {}
        for shard in made.shards:
            async with client.subscribe(topic, "workers", shard=shard) as subscription:
                found[shard] = set()
                (stats,) = [one for one in await client.topics() if one.name == f"{topic}/{shard}"]
                while len(found[shard]) < stats.ready:
                    message = await get(subscription)
                    found[shard].add(message.key)
                    await message.ack(confirm=True)
        assert set.union(*found.values()) == set(keys[1:])
        assert sum(map(len, found.values())) == 399
        assert all(found.values()), "each has a share"
        async with client.subscribe(topic, "all") as subscription:
            every = [await get(subscription) for _ in range(399)]
            for message in every:
                await message.ack(confirm=True)
        (stats,) = [one for one in await client.topics() if one.name == topic]
        assert {group.name: (group.acked, group.backlog) for group in stats.groups} == {
            "workers": (399, 0),
            "all": (399, 0),
        }


async def test_shards_survive_a_kill(tmp_path: Path, topic: str) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.unix_url) as client:
            await client.create_topic(topic, shards=3)
            await client.send_many(topic, [b"x"] * 90, keys=[f"k{n}" for n in range(90)])
            async with client.subscribe(topic, "g") as subscription:
                for _ in range(30):
                    await (await get(subscription)).ack(confirm=True)
            daemon.kill()
            daemon.start()
            async with client.subscribe(topic, "g") as subscription:
                for _ in range(60):
                    await (await get(subscription)).ack(confirm=True)
                assert await subscription.receive(0.2) is None
            assert (await client.send(topic, b"again", key="k5")).duplicate


@pytest.mark.promise("V25", "R12", "R32", "R37")
async def test_delay_levels(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for level, delay_s in ((1, 1), (5, 60), (18, 7_200)):
            sent = await client.send(topic, b"x", delay_level=level)
            (found,) = await client.browse(topic, after_id=sent.id - 1, limit=1)
            assert found.deliver_at_ms - found.created_ms == delay_s * 1_000
        for bad in (0, 19, "1"):
            with pytest.raises(BadArgument):
                await client.send(topic, b"x", delay_level=bad)  # type: ignore[arg-type]
        with pytest.raises(tickwheel.BadTime):
            await client.send(topic, b"x", delay_level=1, delay=timedelta(seconds=1))
