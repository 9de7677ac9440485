"""Recurring schedules through the real daemon and the command line, also when it is killed in between."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import (
    BadSchedule,
    ScheduleExists,
    TopicInUse,
    UnknownSchedule,
    UnknownTopic,
)
from tickwheel.watching.attention import remarks
from tickwheel_broker.documents.schedule_slots import LEAD_MS

USAGE, FAILED = 2, 1
HEADER = "tickwheel-schedule"


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


async def test_a_token_ends_with_its_schedule(tmp_path: Path) -> None:
    """One that is made again under the same name is another one, also after a restart."""
    with Daemon(tmp_path / "data") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            ids = []
            for body in (b"one", b"two", b"two"):
                await client.create_schedule("yearly", "years", cron="0 0 1 1 *", body=body)
                ids.append(await client.trigger_schedule("yearly", token="tonight"))
                assert await client.trigger_schedule("yearly", token="tonight") == ids[-1], "once"
                await client.set_schedule("yearly", cron="0 0 2 1 *")
                assert await client.trigger_schedule("yearly", token="tonight") == ids[-1], (
                    "it is the same one"
                )
                await client.delete_schedule("yearly")
            await client.create_schedule("yearly", "years", cron="0 0 1 1 *", body=b"three")
            ids.append(await client.trigger_schedule("yearly", token="tonight"))
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            assert await client.trigger_schedule("yearly", token="tonight") == ids[-1]
            async with client.subscribe("years") as subscription:
                bodies = {}
                for _ in ids:
                    message = await subscription.receive(PATIENCE_S)
                    assert message is not None
                    bodies[message.id] = message.body
            assert bodies == dict(zip(ids, (b"one", b"two", b"two", b"three"), strict=True))


async def test_skip_waits_for_the_message_before(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("slow", "slows", every=timedelta(milliseconds=150), overlap="skip")
        async with client.subscribe("slows") as subscription:
            first = await subscription.receive(PATIENCE_S)
            assert first is not None
            with trio.fail_after(PATIENCE_S):
                while (await client.schedule("slow")).skipped < 3:
                    await trio.sleep(0.05)
            assert await subscription.receive(0.5) is None
            await first.ack(confirm=True)
            second = await subscription.receive(PATIENCE_S)
            assert second is not None
        await client.delete_schedule("slow")


@pytest.mark.parametrize(
    "bad",
    [
        {"cron": "x"},
        {"cron": "* * * * *", "tz": "Nowhere"},
        {"every": 0},
        {"every": timedelta(milliseconds=5), "overlap": "maybe"},
    ],
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
            # A slot whose lease was written, and which did not leave before the kill, comes when that lease ends.
            await client.set_topic("t", ack_wait=timedelta(seconds=1))
            slots: list[int] = []

            async def take_one() -> None:
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                slots.append(message.headers[HEADER]["slot_ms"])
                await message.ack(confirm=True)

            async with client.subscribe("t") as subscription:
                for round_ in range(3):
                    for _ in range(5):
                        await take_one()
                    if round_ < 2:
                        daemon.kill()
                        daemon.start()
                with trio.fail_after(PATIENCE_S):
                    while sorted(slots) != list(range(min(slots), max(slots) + 1, 100)):
                        await take_one()
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
    assert "standup   0 9 * * MON-FRI Europe/Paris  chat " in shell.text("schedules", "list")
    assert "(paused)" in shell.text("schedules", "pause", "standup")
    assert "(paused)" not in shell.text("schedules", "resume", "standup")
    sent = shell.text("schedules", "trigger", "standup").strip()
    received = json.loads(shell.text("receive", "chat", "--count", "1", "--json"))
    assert (str(received["id"]), received["body"]) == (sent, "hi")
    named = [shell.text("schedules", "trigger", "standup", "--token", name) for name in ("a", "a", "b")]
    assert named[0] == named[1] != named[2]
    long = shell.run("schedules", "trigger", "standup", "--token", "t" * 65, code=USAGE)
    assert b"Use 1 to 64" in long.stderr
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
    changed = shell.json(
        "schedules", "set", "standup", "--cron", "30 9 * * *", "--until", "2101-01-01T00:00Z"
    )
    assert (changed["cron"], changed["tz"], changed["until_ms"]) == (
        "30 9 * * *",
        "Europe/Paris",
        4133980800000,
    )
    assert len(shell.text("schedules", "next", "standup", "--count", "7").split()) == 7
    text = shell.text("schedules", "set", "standup", "--every", "90m", "--unset", "until", "--window", "1m")
    assert "every 90m, to chat" in text
    assert "window 1m" in text
    assert "until" not in text
    refused = shell.run("schedules", "set", "standup", "--tz", "Nowhere", "--body", "x", code=FAILED)
    assert b"bad_schedule" in refused.stderr
    assert shell.json("schedules", "show", "standup")["body"] == "hi"
    assert b"nothing to change" in shell.run("schedules", "set", "standup", code=USAGE).stderr
    assert b"unknown_schedule" in shell.run("schedules", "set", "nobody", "--body", "x", code=FAILED).stderr
    assert b"topic_in_use" in shell.run("topics", "delete", "chat", "--yes", code=FAILED).stderr
    assert shell.text("schedules", "delete", "standup") == "deleted standup\n"


async def test_a_name_is_taken_once(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_schedule("once", "t", every=timedelta(hours=1), headers={"a": 1})
        again = await client.create_schedule("once", "t", every=timedelta(hours=1), headers={"a": 1})
        assert again.start_ms == made.start_ms, "to create what is there changes nothing"
        for other in ({"every": timedelta(hours=2)}, {"every": timedelta(hours=1), "body": b"x"}):
            with pytest.raises(ScheduleExists):
                await client.create_schedule("once", "t", **other)  # type: ignore[arg-type]
        await client.pause_schedule("once")
        again = await client.create_schedule("once", "t", every=timedelta(hours=1), headers={"a": 1})
        assert again.paused, "who declares it at a start does not resume what somebody has paused"
        with pytest.raises(ScheduleExists):
            await client.create_schedule("once", "t", every=timedelta(hours=2), headers={"a": 1})
        await client.delete_schedule("once")


async def test_settings_change_together_or_not_at_all(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_schedule(
            "wages",
            "wages",
            cron="0 9 1 * *",
            tz="Europe/Paris",
            body=b"pay",
            priority=3,
            window=timedelta(minutes=1),
        )
        long = timedelta(milliseconds=10**12)
        for bad in ({"cron": "0 99 * * *"}, {"tz": "Mars/Olympus"}, {"overlap": "maybe"}, {"window": long}):
            with pytest.raises(BadSchedule):
                await client.set_schedule("wages", body=b"other", topic="elsewhere", **bad)  # type: ignore[arg-type]
            assert await client.schedule("wages") == made
        assert "elsewhere" not in [topic.name for topic in await client.topics()]
        changed = await client.set_schedule(
            "wages", cron="30 8 1 * *", body=b"more", until=made.next_ms[3], unset=["priority", "window"]
        )
        assert (changed.cron, changed.tz, changed.body) == ("30 8 1 * *", "Europe/Paris", b"more")
        assert (changed.priority, changed.window_ms, changed.until_ms) == (None, 0, made.next_ms[3])
        assert [later - new for new, later in zip(changed.next_ms, made.next_ms[:4], strict=True)] == [
            30 * 60_000
        ] * 4
        timed = await client.set_schedule("wages", every=timedelta(hours=2), unset=["until"])
        assert (timed.cron, timed.every_ms, len(timed.next_ms)) == ("", 7_200_000, 5)
        assert len((await client.schedule("wages", count=100)).next_ms) == 100
        with pytest.raises(BadSchedule):
            await client.set_schedule("wages", unset=["topic"])
        with pytest.raises(UnknownSchedule):
            await client.set_schedule("nobody", body=b"x")
        await client.delete_schedule("wages")


async def test_a_change_reaches_what_was_sent_ahead(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("soon2", "before", every=timedelta(seconds=2), body=b"old")
        async with client.subscribe("before") as before, client.subscribe("after") as after:
            first = await before.receive(PATIENCE_S)
            assert first is not None
            changed = await client.set_schedule("soon2", topic="after", body=b"new")
            second = await after.receive(PATIENCE_S)
            assert second is not None
            assert (second.body, second.headers[HEADER]["slot_ms"]) == (b"new", changed.next_ms[0])
            assert await client.browse("before", states="scheduled") == []
            await client.delete_schedule("soon2")


async def test_two_schedules_of_one_topic_send_both(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        start = (await client.stats()).now_ms + 500
        for name in ("left", "right"):
            await client.create_schedule(name, "shared", every=timedelta(seconds=1), start=start)
        async with client.subscribe("shared") as subscription:
            found = set()
            while len(found) < 6:
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                found.add((message.headers[HEADER]["name"], message.headers[HEADER]["slot_ms"]))
            slots = {name: sorted(slot for one, slot in found if one == name) for name in ("left", "right")}
            assert slots["left"][0] == slots["right"][0] == start
        for name in ("left", "right"):
            await client.delete_schedule(name)


async def test_a_topic_of_a_schedule_is_not_deleted(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_schedule("keeper", "kept", every=timedelta(hours=1))
        await client.pause_schedule("keeper")
        with pytest.raises(TopicInUse, match="keeper"):
            await client.delete_topic("kept")
        await client.delete_schedule("keeper")
        assert await client.delete_topic("kept") == 0


async def test_many_schedules_with_large_bodies_are_listed(daemon: Daemon) -> None:
    """More than fits one answer."""
    body = b"x" * 900_000
    async with tickwheel.Client(daemon.url) as client:
        names = [f"large-{number:02}" for number in range(12)]
        for name in names:
            await client.create_schedule(name, "large", every=timedelta(days=1), body=body)
        found = [one for one in await client.schedules() if one.name in names]
        assert [one.name for one in found] == names
        assert all(one.body == body for one in found)
        for name in names:
            await client.delete_schedule(name)


@pytest.mark.parametrize("large", [{"body": b"x" * (4 * 1024 * 1024 + 1)}, {"headers": {"h": "x" * 32_768}}])
async def test_what_could_never_be_sent_is_refused_at_once(daemon: Daemon, large: dict[str, Any]) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(BadSchedule, match="bytes"):
            await client.create_schedule("large", "larges", every=timedelta(hours=1), **large)
        assert "larges" not in [topic.name for topic in await client.topics()]


async def test_without_automatic_topics_the_topic_must_be_there(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB", auto_create_topics=False) as daemon:
        async with tickwheel.Client(daemon.unix_url) as client:
            with pytest.raises(UnknownTopic):
                await client.create_schedule("s", "missing", every=timedelta(hours=1))
            assert await client.schedules() == []
            await client.create_topic("there")
            await client.create_schedule("s", "there", every=timedelta(hours=1))
            with pytest.raises(UnknownTopic):
                await client.set_schedule("s", topic="missing")
            assert (await client.schedule("s")).topic == "there"


async def test_a_topic_that_takes_no_such_body_any_more_makes_it_wait(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("narrow")
        await client.create_schedule(
            "wide", "narrow", every=timedelta(seconds=1), body=b"1234", overlap="skip"
        )
        await client.set_topic("narrow", max_body_bytes=3)
        while not (found := await client.schedule("wide")).trouble:
            await trio.sleep(0.05)
        assert "body_too_large" in found.trouble
        gauges = (await client.figures()).gauges
        assert gauges["schedules_in_trouble"] == 1
        assert "1 schedule has not sent" in str(remarks(await client.figures(), None))
        changed = await client.set_schedule("wide", body=b"123")
        assert changed.trouble == ""
        async with client.subscribe("narrow") as subscription:
            while True:
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                await message.ack()
                if message.body == b"123":
                    break
        await client.delete_schedule("wide")


KILLER = """
from tickwheel_broker.documents.schedules import Schedules
_plain = Schedules._commit

def _commit(self, schedule, *, send=None, **others):
    is_third = send is not None and schedule.sent == 3
    if is_third and {before}:
        os.kill(os.getpid(), 9)
    _plain(self, schedule, send=send, **others)
    if is_third:
        if {synced}:
            self._broker.store.sync()
        os.kill(os.getpid(), 9)

Schedules._commit = _commit
"""


@pytest.mark.parametrize(("before", "synced"), [(True, False), (False, False), (False, True)])
async def test_killed_around_the_sending_of_a_slot(tmp_path: Path, *, before: bool, synced: bool) -> None:
    """Before it, after it, and after it is on the disk: the slot is sent once."""
    dying = Daemon(
        tmp_path / "data", prelude=KILLER.format(before=before, synced=synced), segment_bytes="64MiB"
    )
    every = timedelta(milliseconds=200)
    with dying:
        async with tickwheel.Client(dying.unix_url) as client:
            start = (await client.stats()).now_ms + LEAD_MS + 1_000  # so that it is created before it sends
            await client.create_schedule("s", "t", every=every, start=start, catch_up="all")
            await trio.to_thread.run_sync(dying.wait_exit)
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.unix_url) as client:
            async with client.subscribe("t") as subscription:
                slots = []
                for _ in range(20):
                    message = await subscription.receive(PATIENCE_S)
                    assert message is not None
                    slots.append(message.headers[HEADER]["slot_ms"])
                    await message.ack()
            assert slots == list(range(start, start + 20 * 200, 200))
