"""Purging through the real daemon: by request, by itself, from the command line, and across a kill."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import BadArgument, BadRequest, OtherLog
from tickwheel.protocol.bodies.admin import Purge
from tickwheel.protocol.frames import FrameType

COUNT = 500
BODY = bytes(1_000)
SEGMENTS = {"segment_bytes": "64MiB"}


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Segments of the log are small."""
    return SEGMENTS


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


async def work_off(client: tickwheel.Client, topic: str, count: int = COUNT) -> None:
    """Sends, takes and acks messages."""
    keys = [f"{topic}-{number}" for number in range(count)]
    (await client.send_many(topic, [BODY] * count, keys=keys)).raise_for_errors()
    async with client.subscribe(topic, group="g") as subscription:
        with trio.fail_after(PATIENCE_S):
            for _ in range(count):
                message = await subscription.receive()
                assert message is not None
                await message.ack()
            await subscription.flush()


@pytest.mark.promise("V31", "V64", "V77", "S19")
async def test_what_is_acked_goes(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("t", purge_after=0)
        far = await client.send("t", b"far", key="far", delay=timedelta(days=9))
        await work_off(client, "t")
        before = await client.stats()
        forecast = await client.purge(dry_run=True)
        assert (forecast.purged_messages, forecast.moved_messages, forecast.segments) == (COUNT, 1, 1)
        assert (await client.browse("t", limit=10))[0].id == far.id
        result = await client.purge()
        assert result.is_done
        assert (result.purged_messages, result.moved_messages) == (COUNT, 1)
        assert result.freed_bytes == forecast.freed_bytes > 0
        (left,) = await client.browse("t", limit=10)
        assert (left.id, left.key, left.body) == (far.id, "far", b"far")
        after = await client.stats()
        assert (after.messages, after.acked, after.delivered) == (
            before.messages,
            before.acked,
            before.delivered,
        )
        await work_off(client, "t")  # the keys are free again
        assert await client.cancel("t", key="far")


async def test_the_rest_waits_for_its_time(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await work_off(client, "day", 20)
        result = await client.purge()
        assert result.purged_messages == 0
        assert len(await client.browse("day")) == 20


async def test_it_survives_a_kill(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", purge_after="0s", **SEGMENTS) as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.send("t", b"later", delay=timedelta(seconds=3))
            await work_off(client, "t")
            assert (await client.purge()).purged_messages == COUNT
            stats = await client.stats()
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            again = await client.stats()
            assert (again.messages, again.acked) == (stats.messages, stats.acked)
            async with client.subscribe("t", group="g") as subscription:
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                assert message.body == b"later"
                await message.ack(confirm=True)


async def test_what_is_kept_elsewhere_is_dropped_at_once_and_for_good(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await work_off(client, "t", 30)
        far = await client.send("t", b"far", delay=timedelta(days=9))
        place = await client.log_place()
        assert place.directory == str(daemon.directory.resolve())
        later_ms = (await client.stats()).now_ms + 60_000
        with pytest.raises(OtherLog, match="this one is"):
            await client.drop("0" * 16, [(1, 30)], done_before=later_ms)
        runs = [(1, 20), (11, 15), (far.id, 1), (10_000, 5)]
        result = await client.drop(place.log_id, runs, done_before=later_ms)
        assert (result.dropped, result.gone, result.kept) == (25, 5, [(far.id, 1)])
        with pytest.raises(BadArgument, match="More than 100,000"):
            await client.drop(place.log_id, [(1, 60_000), (1, 60_000)], done_before=later_ms)
    daemon.kill()
    daemon.start()
    async with tickwheel.Client(daemon.unix_url) as client:
        ids = [number for (number,) in (await client.query("select id from messages order by id")).rows]
        assert ids == [26, 27, 28, 29, 30, far.id]
        again = await client.drop(place.log_id, [(1, 26)], done_before=datetime(1970, 1, 1, tzinfo=UTC))
        assert (again.dropped, again.gone, again.kept) == (0, 25, [(26, 1)])
        assert (await client.purge()).purged_messages == 25, "long before purge_after"


async def test_no_wait_and_a_run_that_is_not_there(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        first = await client.purge(wait=False)
        again = await client.purge()
        assert again.run == first.run + 1
        with pytest.raises(BadRequest, match="no purge 99"):
            await client._session.request(Purge(run=99))
    assert FrameType.PURGE == 70


def test_the_command_line(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    shell.text("topics", "create", "t", "--purge-after", "0s")
    shell.text("send", "t", "one")
    shell.text("receive", "t", "--count", "1")
    planned = json.loads(shell.text("purge", "--dry-run", "--json"))
    assert (planned["is_done"], planned["purged_messages"], planned["segments"]) == (True, 1, 1)
    assert "1 message would be purged, 0 would be moved" in shell.text("purge", "--dry-run")
    assert "1 message purged, 0 moved" in shell.text("purge")
    assert "0 messages purged" in shell.text("purge")
    assert b"purge" in shell.run("purge", "--no-wait").stdout


def test_the_blocking_client(daemon: Daemon) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        assert client.purge(dry_run=True).is_done
