"""A very small disk that fills up under load: what a start needs, and what goes on when the disk is full.

A new directory has 4.2 MiB before the first message: the wheel (2 MiB), the key index (1 MiB) and what is kept of the
log for acks and other control records (1 MiB). So 4 MiB are too little for a start, and the load here has 4 MiB of 9.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.stores.small_disk import small_tmpfs
from tickwheel.errors import DiskFull
from tickwheel_broker.exit_codes import ExitCode

TOO_SMALL_BYTES, TMPFS_BYTES = 4 << 20, 9 << 20
#: What such a disk needs: small frames, and little space held back. A segment need not be whole.
TINY = {
    "max_body_bytes": "16KiB",
    "max_frame_bytes": "64KiB",
    "segment_bytes": "9MiB",
    "disk_reserve_bytes": "256KiB",
}
BODY = bytes(1_000)


async def send_until_full(client: tickwheel.Client, ids: list[int], delay: timedelta) -> DiskFull:
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                results = await client.send_many("t", [BODY] * 20, delay=delay)
            except DiskFull as refusal:
                return refusal
            ids.extend(one.id for one in results if not isinstance(one, Exception))
            if results.errors:
                refusal = next(iter(results.errors.values()))
                assert isinstance(refusal, DiskFull)
                return refusal


async def send_when_there_is_room(client: tickwheel.Client) -> tickwheel.SendResult:
    """The broker first takes back what it keeps for accepted messages."""
    while True:
        try:
            return await client.send("t", BODY, delay_ms=3_600_000)
        except DiskFull:
            await trio.sleep(0.05)


@pytest.mark.parametrize("settings", [{}, TINY], ids=["the defaults", "tiny"])
async def test_where_it_is_too_small_it_says_what_it_needs(tmp_path: Path, settings: dict[str, str]) -> None:
    with small_tmpfs(tmp_path / "data", TOO_SMALL_BYTES) as disk:
        daemon = Daemon(disk, **settings)
        daemon.launch()
        assert await trio.to_thread.run_sync(daemon.wait_exit) == ExitCode.DISK_FULL
        told = [event for event in daemon.events() if event.get("code") == "disk_full"]
        assert told
        assert "a start needs 5 MiB" in told[0]["reason"]
        assert "Free space" in told[0]["advice"]


@pytest.mark.promise("a-full-disk")
async def test_it_fills_up_and_goes_on(tmp_path: Path) -> None:
    acked: set[int] = set()
    sent: list[int] = []
    with small_tmpfs(tmp_path / "data", TMPFS_BYTES) as disk:
        filler = disk / "filler"
        with Daemon(disk, **TINY) as daemon:
            async with (
                tickwheel.Client(daemon.url) as client,
                client.subscribe("t", group="g", credit=50) as subscription,
            ):
                filler.write_bytes(bytes(1 << 20))
                far = [(await client.send("t", BODY, delay_ms=3_600_000)).id for _ in range(5)]
                refusal = await send_until_full(client, sent, timedelta(milliseconds=300))
                assert refusal.retryable
                assert len(sent) > 100
                assert await client.cancel(ids=far[:3]) == ["cancelled"] * 3
                assert await client.reschedule(id=far[3], delay=0) == "rescheduled"
                wanted = {*sent, far[3]}
                with trio.fail_after(PATIENCE_S * 2):
                    while not wanted <= acked:
                        message = await subscription.receive()
                        assert message is not None
                        await message.ack(confirm=True)
                        acked.add(message.id)
                with pytest.raises(DiskFull):
                    await client.send("t", BODY)
                filler.unlink()
                with trio.fail_after(PATIENCE_S):  # without a restart
                    later = await send_when_there_is_room(client)
            daemon.kill()
        with Daemon(disk, **TINY) as daemon:
            async with tickwheel.Client(daemon.url) as client:
                stats = await client.stats()
                assert (stats.acked, stats.scheduled) == (len(acked), 2)
                assert await client.cancel(ids=[later.id, far[4]]) == ["cancelled"] * 2
                assert await client.cancel(ids=sorted(acked)[:50]) == ["already_acked"] * 50
            assert daemon.stop() == 0
