"""A disk with no more room: new sends are refused with a typed error, everything else goes on, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import tickwheel
from tests.integration.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import DiskFull

FILE_LIMIT_BYTES = 40 << 20
SMALL_DISK = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT_BYTES}, {FILE_LIMIT_BYTES}))
"""
BODY = bytes(64 << 10)


async def fill(client: tickwheel.Client) -> tuple[int, DiskFull]:
    """Send until the disk is full; how many messages were confirmed, and the refusal."""
    for sent in range(2 * FILE_LIMIT_BYTES // len(BODY)):
        try:
            await client.send("t", BODY)
        except DiskFull as refusal:
            return sent, refusal
    raise AssertionError("the disk did not become full")


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
