"""Jobs of bulk scheduling through the real daemon, beside what it delivers anyway."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.stores.bulk import JOB, columns, prepare
from tickwheel.client.admin.pipeline import JobRefused
from tickwheel.errors import BadArgument, BadJob
from tickwheel.sync import Client
from timerlog.bulk.write import Columns

COUNT = 20_000


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


def part(due_ms: int) -> Columns:
    return columns(
        [due_ms + number % 100 for number in range(COUNT)], keys=[b"k%d" % n for n in range(COUNT)]
    )


async def test_a_job_comes_in_beside_a_stream(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        now_ms = int(time.time() * 1000)
        await client.send("jobs", b"first", key="k5", delay=timedelta(hours=1))
        for number in range(1_000):
            await client.send("stream", b"%d" % number, deliver_at=now_ms + number)

        def adopt() -> tickwheel.AdoptResult:
            with Client(daemon.url) as pipeline:
                prepare(pipeline, "jobs", part(now_ms + 500))
                with pytest.raises(JobRefused, match="1 messages have a key") as caught:
                    pipeline.adopt_job(JOB)
                refused = caught.value.result
                assert (refused.messages, refused.rejected, refused.inside) == (0, 1, 0)
                assert [key for key, _, _ in refused.samples] == ["k5"]
                result = pipeline.adopt_job(JOB, max_rejects=1)
                assert pipeline.adopt_job(JOB).messages == result.messages, "asking again changes nothing"
                return result

        async with client.subscribe("stream") as stream, client.subscribe("jobs") as jobs:
            result = await trio.to_thread.run_sync(adopt)
            assert (result.messages, result.rejected) == (COUNT - 1, 1)
            assert [(key, topic) for key, topic, _ in result.samples] == [("k5", "jobs")]
            keys: set[str | None] = set()
            with trio.fail_after(PATIENCE_S):
                for _ in range(1_000):
                    message = await stream.receive()
                    assert message is not None
                while len(keys) < COUNT - 1:
                    message = await jobs.receive()
                    assert message is not None
                    assert message.deliver_at_ms <= time.time() * 1000, "never early"
                    assert message.key not in keys
                    keys.add(message.key)
                    await message.ack()
                await jobs.flush()
        assert "k5" not in keys
        assert await client.cancel("jobs", key="k5") == "cancelled"


async def test_a_job_is_there_after_a_kill(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        with Client(daemon.url) as client:
            directory = prepare(client, "jobs", part(4_000_000_000_000))
            assert client.adopt_job(JOB).messages == COUNT
            assert not directory.exists()
        daemon.kill()
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon, Client(daemon.url) as client:
        (stats,) = client.topics()
        assert stats.scheduled == COUNT
        result = client.adopt_job(JOB)
        assert (result.messages, result.repeated) == (COUNT, True)
        planned = client.plan_job(["jobs"], job=JOB).adopted
        assert planned is not None
        assert (planned.messages, planned.repeated) == (COUNT, True)
        assert not directory.exists(), "nothing is left to do"
        assert client.cancel("jobs", key="k7") == "cancelled"


def test_what_is_not_there_or_not_complete(daemon: Daemon) -> None:
    with Client(daemon.url) as client:
        with pytest.raises(BadJob, match="not complete"):
            client.adopt_job("0" * 32)
        with pytest.raises(BadArgument, match="16,777,216"):
            client.reserve_ids((1 << 24) + 1)
        first_id = client.reserve_ids(10)
        assert client.reserve_ids(1) == first_id + 10
        assert client.send("t", b"x").id == first_id + 11
