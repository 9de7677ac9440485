"""A disk with no more room: new sends are refused with a typed error, everything else goes on, and nothing is lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.stores.small_disk import small_tmpfs
from tickwheel.errors import DiskFull

FILE_LIMIT_BYTES = 40 << 20
SMALL_DISK = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT_BYTES}, {FILE_LIMIT_BYTES}))
"""
BODY = bytes(64 << 10)
TMPFS_BYTES = 64 << 20
SMALL_BODY = bytes(500)
DELAY = timedelta(seconds=2)


async def fill(client: tickwheel.Client) -> tuple[int, DiskFull]:
    """Send until the disk is full; how many messages were confirmed, and the refusal."""
    for sent in range(2 * FILE_LIMIT_BYTES // len(BODY)):
        try:
            await client.send("t", BODY)
        except DiskFull as refusal:
            return sent, refusal
    raise AssertionError("the disk did not become full")


@pytest.mark.promise("a-full-disk")
async def test_a_full_disk_refuses_sends_and_delivers_on(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", prelude=SMALL_DISK, segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            sent, refusal = await fill(client)
            assert sent > 100
            assert refusal.retryable
            assert "space" in refusal.advice
            acked = 0
            async with client.subscribe("t") as subscription:
                with trio.fail_after(PATIENCE_S):
                    async for message in subscription:
                        assert message.body == BODY
                        await message.ack()
                        acked += 1
                        if acked == sent:
                            break
                await subscription.flush()
            with pytest.raises(DiskFull):
                await client.send("t", BODY)
            assert (await client.stats()).acked == sent
        assert any(event.get("code") == "disk_full" for event in daemon.events())
        assert daemon.stop() == 0
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            assert (await client.stats()).acked == sent
            assert (await client.send("t", BODY)).id > sent


async def send_until_full(client: tickwheel.Client, topic: str) -> int:
    """How many messages were confirmed."""
    sent = 0
    while True:
        try:
            results = await client.send_many(topic, [SMALL_BODY] * 500, delay=DELAY, auto_key=True)
        except DiskFull:
            return sent
        sent += 500 - len(results.errors)


def take_the_rest(disk: Path) -> None:
    """Not a byte is left."""
    with open(disk / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4_096))
        except OSError:
            return


async def consume(client: tickwheel.Client, group: str, count: int) -> None:
    """Takes so many messages, gives every hundredth back once, and acks all."""
    async with client.subscribe("t", group=group) as subscription:
        with trio.fail_after(PATIENCE_S * 3):
            acked = taken = 0
            while acked < count:
                message = await subscription.receive()
                assert message is not None
                taken += 1
                if message.epoch == 1 and taken % 100 == 0:
                    await message.nack(delay=0)
                else:
                    await message.ack()
                    acked += 1
            await subscription.flush()


@pytest.mark.promise("a-full-disk")
async def test_not_a_block_is_left(tmp_path: Path) -> None:
    """On a real file system, and through a kill."""
    with small_tmpfs(tmp_path / "data", TMPFS_BYTES) as disk:
        with Daemon(disk, segment_bytes="64MiB", disk_reserve_bytes="1GiB") as daemon:
            async with tickwheel.Client(daemon.url) as client:
                await client.create_topic("t", purge_after=0)
                await client.create_topic("other", purge_after=0)
                sent = await send_until_full(client, "t")
                assert sent > 10_000
                take_the_rest(disk)
                daemon.kill()
        with Daemon(disk, segment_bytes="64MiB", disk_reserve_bytes="1GiB") as daemon:
            async with tickwheel.Client(daemon.url) as client:
                sent += await send_until_full(client, "t")  # a start may win a little
                take_the_rest(disk)
                await consume(client, "g", sent)
                stats = await client.stats()
                assert (stats.acked, stats.scheduled) == (sent, 0)
                await client.purge()
                assert await send_until_full(client, "t") > 1_000
            assert daemon.stop() == 0
