"""Recurring schedules through the real daemon and the command line, also when it is killed in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import tickwheel
from tests.integration.cli_harness import Shell
from tests.integration.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import BadSchedule, ScheduleExists, UnknownSchedule

USAGE, FAILED = 2, 1
HEADER = "tickwheel-schedule"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("schedules") / "data", segment_bytes="64MiB") as running:
        yield running


async def test_it_sends_at_its_times(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_schedule(
            "tick", "ticks", every=timedelta(milliseconds=200), body=b"tick", priority=7
        )
        assert len(made.next_ms) == 5
        async with client.subscribe("ticks") as subscription:
            slots = []
            for _ in range(5):
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                assert (message.body, message.priority) == (b"tick", 7)
                assert message.headers[HEADER]["name"] == "tick"
                assert message.deliver_at_ms == message.headers[HEADER]["slot_ms"]
                slots.append(message.deliver_at_ms)
                await message.ack()
        assert [later - earlier for earlier, later in pairwise(slots)] == [200] * 4
        await client.delete_schedule("tick")
        with pytest.raises(UnknownSchedule):
            await client.schedule("tick")


async def test_pause_calls_back_what_waits_and_resume_goes_on(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("soon", "soons", every=timedelta(seconds=4))
        paused = await client.pause_schedule("soon")
        assert paused.next_ms == []
        assert await client.browse("soons", states="scheduled") == []
        resumed = await client.resume_schedule("soon")
        assert (resumed.missed, len(resumed.next_ms)) == (0, 5)
        await client.delete_schedule("soon")


async def test_trigger_sends_one_now(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("yearly", "years", cron="0 0 1 1 *", tz="Europe/Paris", body=b"happy")
        ids = [await client.trigger_schedule("yearly") for _ in range(2)]
        async with client.subscribe("years") as subscription:
            taken = [await subscription.receive(PATIENCE_S) for _ in ids]
        assert [message.id for message in taken if message is not None] == ids
        await client.delete_schedule("yearly")


async def test_skip_waits_for_the_message_before(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("slow", "slows", every=timedelta(milliseconds=150), overlap="skip")
        async with client.subscribe("slows") as subscription:
            first = await subscription.receive(PATIENCE_S)
            assert first is not None
            assert await subscription.receive(1) is None
            await first.ack(confirm=True)
            second = await subscription.receive(PATIENCE_S)
            assert second is not None
            found = await client.schedule("slow")
            assert found.skipped >= 3
        await client.delete_schedule("slow")


@pytest.mark.parametrize(
    "bad",
    [{"cron": "x"}, {"cron": "* * * * *", "tz": "Nowhere"}, {"every": 0}, {"every": 5, "overlap": "maybe"}],
)
async def test_bad_schedules_are_refused(daemon: Daemon, bad: dict[str, object]) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(BadSchedule):
            await client.create_schedule("bad", "t", **bad)  # type: ignore[arg-type]
        assert "bad" not in [one.name for one in await client.schedules()]


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
async def test_a_kill_neither_loses_nor_doubles_a_slot(tmp_path: Path, catch_up: str) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.unix_url, auto_key=False) as client:
            await client.create_schedule("s", "t", every=timedelta(milliseconds=100), catch_up=catch_up)
            slots: list[int] = []
            async with client.subscribe("t") as subscription:
                for round_ in range(3):
                    for _ in range(5):
                        message = await subscription.receive(PATIENCE_S)
                        assert message is not None
                        slots.append(message.headers[HEADER]["slot_ms"])
                        await message.ack(confirm=True)
                    if round_ < 2:
                        daemon.kill()
                        daemon.start()
            assert len(set(slots)) == len(slots), "no slot twice"
            # The down time was shorter than what counts as missed, so every policy sends them all.
            found = await client.schedule("s")
            assert found.missed == 0
            assert sorted(slots) == list(range(min(slots), max(slots) + 1, 100))


def test_from_the_command_line(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    text = shell.text(
        "schedules",
        "create",
        "standup",
        "--cron",
        "0 9 * * MON-FRI",
        "--tz",
        "Europe/Paris",
        "--topic",
        "chat",
        "--body",
        "hi",
    )
    assert "0 9 * * MON-FRI Europe/Paris, to chat" in text
    times = shell.text("schedules", "next", "standup").split()
    assert len(times) == 5
    assert all("T09:00:00+0" in time for time in times)
    assert "standup  0 9 * * MON-FRI Europe/Paris  to chat" in shell.text("schedules", "list")
    assert "(paused)" in shell.text("schedules", "pause", "standup")
    assert "(paused)" not in shell.text("schedules", "resume", "standup")
    sent = shell.text("schedules", "trigger", "standup").strip()
    received = json.loads(shell.text("receive", "chat", "--count", "1", "--json"))
    assert (str(received["id"]), received["body"]) == (sent, "hi")
    assert (
        b"schedule_exists"
        in shell.run("schedules", "create", "standup", "--every", "1h", "--topic", "chat", code=FAILED).stderr
    )
    assert (
        b"either --cron or --every"
        in shell.run("schedules", "create", "x", "--topic", "t", code=USAGE).stderr
    )
    wrong = shell.run("schedules", "create", "x", "--cron", "99 * * * *", "--topic", "t", code=FAILED)
    assert b"bad_schedule" in wrong.stderr
    assert shell.text("schedules", "delete", "standup") == "deleted standup\n"


async def test_a_name_is_taken_once(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("once", "t", every=timedelta(hours=1))
        with pytest.raises(ScheduleExists):
            await client.create_schedule("once", "t", every=timedelta(hours=1))
        await client.delete_schedule("once")
