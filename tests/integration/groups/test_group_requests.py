"""Listing, making, moving and deleting groups, and single messages: through the real daemon, client and commands."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import PROGRAM, Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, wait_ready
from tickwheel import Message, Subscription, sync
from tickwheel.errors import BadArgument, BadTime, GroupInUse, StaleReceipt, UnknownGroup, UnknownTopic
from tickwheel.protocol.bodies.settling import Nack

pytestmark = pytest.mark.shared_daemon

FAILED = 1


class _Vanishes(Exception):
    """The subscriber is gone without a word."""


async def get(subscription: Subscription) -> Message:
    message = await subscription.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


async def test_a_mistyped_group_is_found_and_deleted(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send(topic, b"x")
        async with client.subscribe(topic, "biling") as typo, client.subscribe(topic, "billing") as right:
            assert (typo.created_topic, typo.created_group) == (False, True)
            message = await get(typo)
            with pytest.raises(GroupInUse) as refused:
                await client.delete_group(topic, "biling")
            assert "Stop its subscribers" in refused.value.advice
            assert (await client.group(topic, "biling")).subscribers == 1
            await (await get(right)).ack(confirm=True)
        listed = await client.groups(topic)
        assert [(one.topic, one.name, one.backlog) for one in listed] == [
            (topic, "biling", 1),
            (topic, "billing", 0),
        ]
        assert all(one.last_read is not None and one.created <= one.last_read for one in listed)
        assert {(one.topic, one.name) for one in await client.groups()} >= {(topic, "biling")}
        shell = Shell(tmp_path, daemon.url)
        assert "biling" in shell.text("groups", "list", topic)
        assert "give --yes" in shell.run("groups", "delete", topic, "biling", code=2).stderr.decode()
        assert shell.json("groups", "delete", topic, "biling", "--yes") == {
            "topic": topic,
            "group": "biling",
            "backlog": 1,
        }
        for act in (client.delete_group, client.group):
            with pytest.raises(UnknownGroup):
                await act(topic, "biling")
        with pytest.raises(UnknownTopic):
            await client.groups("no-such-topic")
        with pytest.raises(UnknownGroup):
            await client._session.request(Nack(group_id=listed[0].group_id, ids=[message.id], epochs=[1]))


@pytest.mark.promise("groups-that-are-deleted-or-moved")
async def test_seeking_while_somebody_reads(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        results = await client.send_many(topic, [b"0", b"1", b"2"])
        async with client.subscribe(topic, "g", credit=2) as subscription:
            first, second = await get(subscription), await get(subscription)
            await first.ack(confirm=True)
            third = await get(subscription)
            assert await client.seek_group(topic, "g", to="earliest") == 3
            with pytest.raises(StaleReceipt):
                await second.ack(confirm=True)
            again = []
            for _ in range(3):
                message = await get(subscription)
                again.append((message.id, message.epoch))
                await message.ack(confirm=True)
            assert again == [(one, 2) for one in results.ids()]
            assert third.epoch == 1
            assert await client.seek_group(topic, "g", to=datetime.now(UTC) + timedelta(days=1)) == 0
            await client.send(topic, b"3")
            assert (await get(subscription)).body == b"3"
        with pytest.raises(BadArgument):
            await client.seek_group(topic, "g", to="yesterday")  # type: ignore[arg-type]
        with pytest.raises(UnknownGroup):
            await client.seek_group(topic, "no", to="latest")


async def test_an_ephemeral_group_ends_after_its_last_subscriber(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send(topic, b"x")
        async with client.subscribe(topic, "e", ephemeral=timedelta(0)) as subscription:
            await get(subscription)
            await trio.sleep(1.2)  # a round of the housekeeping: it stays while it is read
            assert (await client.group(topic, "e")).ephemeral_ms == 1
        with trio.fail_after(PATIENCE_S):
            while await client.groups(topic):
                await trio.sleep(0.05)
        with pytest.raises(BadTime):
            client.subscribe(topic, "e", ephemeral=5)  # type: ignore[arg-type]


async def test_an_ephemeral_group_ends_also_when_the_broker_was_killed(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.send("t", b"x")
            with suppress(_Vanishes):
                async with client.subscribe("t", "e", ephemeral=timedelta(milliseconds=1)) as subscription:
                    await get(subscription)
                    daemon.kill()
                    raise _Vanishes
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            with trio.fail_after(PATIENCE_S):
                while await client.groups("t"):
                    await trio.sleep(0.05)


async def test_groups_that_are_not_there_are_refused_where_nothing_makes_them(tmp_path: Path) -> None:
    with Daemon(
        tmp_path / "data", segment_bytes="64MiB", auto_create_topics=False, auto_create_groups=False
    ) as daemon:
        async with tickwheel.Client(daemon.url) as client:
            with pytest.raises(UnknownTopic) as no_topic:
                await client.send("t", b"x")
            assert "auto_create_topics" in no_topic.value.advice
            await client.create_topic("t")
            await client.send("t", b"x")
            await wait_ready(client, "t", 1)
            with pytest.raises(UnknownGroup) as no_group:
                async with client.subscribe("t", "g"):
                    pass
            assert "tickwheel groups create" in no_group.value.advice
            assert await client.create_group("t", "g", start="latest") is True
            assert await client.create_group("t", "g") is False
            await client.send("t", b"y")
            async with client.subscribe("t", "g") as subscription:
                assert (await get(subscription)).body == b"y"
                assert not subscription.created_group


async def test_one_message_by_id_or_key(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    async with tickwheel.Client(daemon.url) as client:
        far = await client.send(
            topic, b"far", key="k", delay=timedelta(days=9), priority=7, headers={"a": 1}, order_key="o"
        )
        near = await client.send(topic, b"n" * 100)
        async with client.subscribe(topic, "g") as subscription:
            held = await get(subscription)
            await client.create_group(topic, "late", start=datetime.now(UTC) + timedelta(days=1))
            found = await client.message(topic, key="k")
            assert found is not None
            assert found == await client.message(id=far.id)
            assert (found.id, found.topic, found.state, found.key) == (far.id, topic, "scheduled", "k")
            assert (found.body, found.headers, found.groups) == (b"far", {"a": 1}, [])
            assert found.deliver_at - found.created == timedelta(days=9)
            seen = await client.message(id=near.id, max_body_bytes=3)
            assert seen is not None
            assert (seen.body, seen.body_bytes, seen.state) == (b"nnn", 100, "ready")
            by_name = {one.group: one for one in seen.groups}
            assert (by_name["g"].state, by_name["g"].epoch, by_name["g"].attempts) == ("leased", 1, 1)
            until = by_name["g"].until
            assert until is not None
            assert until > datetime.now(UTC)
            assert by_name["late"].state == "not_its_own"
            await held.ack(confirm=True)
            done = await client.message(id=near.id)
            assert done is not None
            assert [one.state for one in done.groups if one.done_ms] == ["acked"]
            assert (found.standing, seen.standing, done.standing) == ("scheduled", "leased", "acked")
            _, listed = await client.browse(topic, max_body_bytes=0, limit=2)
            states = {str(one["group"]): one["state"] for one in listed.groups}
            assert states == {"g": "acked", "late": "not_its_own"}
            assert listed.standing == "acked"
        assert await client.cancel(id=far.id) == "cancelled"
        assert await client.message(topic, key="k") is None, "its key is free"
        gone = await client.messages(ids=[far.id, 10**9, near.id])
        assert [None if one is None else one.state for one in gone] == ["cancelled", None, "ready"]
        with pytest.raises(UnknownTopic):
            await client.message("no-such-topic", key="k")
        with pytest.raises(BadArgument):
            await client.message(topic)  # type: ignore[call-overload]
        many = await client.send_many(topic, [b"b" * 20_000] * 2_100, keys=[f"k{n}" for n in range(2_100)])
        some = await client.messages(topic, keys=[f"k{n}" for n in range(2_100)])
        assert [one.id for one in some if one is not None] == list(many.ids()), (
            "in as many answers as it takes"
        )
    shell = Shell(tmp_path, daemon.url)
    assert "late" in shell.text("show", str(near.id))
    assert shell.text("show", str(near.id)).startswith(f"message {near.id} of {topic}, acked\n")
    assert shell.json("show", str(near.id))["standing"] == "acked"
    shown = shell.json("show", topic, "--key", "k7")
    assert (shown["id"], shown["key"], shown["state"]) == (many.ids()[7], "k7", "ready")
    assert "no message" in shell.run("show", topic, "--key", "no", code=FAILED).stderr.decode()


def test_the_blocking_client_has_the_same(daemon: Daemon, topic: str) -> None:
    with sync.Client(daemon.url) as client:
        sent = client.send(topic, b"x", key="k")
        assert client.created_topics == [topic]
        assert client.create_group(topic, "g")
        message = client.message(topic, key="k")
        assert message is not None
        assert message.id == sent.id
        assert [one.name for one in client.groups(topic)] == ["g"]
        end = time.monotonic() + PATIENCE_S
        while (
            next(one.ready for one in client.topics() if one.name == topic) < 1
        ):  # "latest" would be before it
            assert time.monotonic() < end
        assert client.seek_group(topic, "g", to="latest") == 0
        assert client.delete_group(topic, "g") == 0


def on_a_terminal(daemon: Daemon, *arguments: str) -> str:
    """What a command says on standard error when that is a terminal."""
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            env={**os.environ, "TICKWHEEL_URL": daemon.url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=follower,
            timeout=PATIENCE_S,
            check=True,
        )
        assert done.stdout
        os.close(follower)
        follower = -1
        os.set_blocking(leader, False)
        try:
            return os.read(leader, 65_536).decode()
        except OSError:
            return ""
    finally:
        os.close(leader)
        if follower >= 0:
            os.close(follower)


def test_commands_on_a_terminal_say_what_they_made(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    assert f"made topic '{topic}'" in on_a_terminal(daemon, "send", topic, "x")
    said = on_a_terminal(daemon, "receive", topic, "--group", "new", "--count", "1")
    assert f"made group 'new' of '{topic}'" in said
    assert "made topic" not in said
    shell = Shell(tmp_path, daemon.url)
    assert shell.run("send", f"{topic}-2", "x").stderr == b"", "a program is not told"


def test_topics_tells_of_groups_that_are_not_read(daemon: Daemon, topic: str) -> None:
    from click.testing import CliRunner

    from tickwheel.stats import GroupStats, TopicStats
    from tickwheel_cli.looking import topics as command

    day_ms = 86_400_000
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    groups = [
        GroupStats(
            name=name,
            group_id=number,
            delivered=0,
            acked=0,
            leased=0,
            backlog=backlog,
            subscribers=subscribers,
            last_read_ms=last_read_ms,
        )
        for number, (name, backlog, subscribers, last_read_ms) in enumerate(
            [
                ("forgotten", 5, 0, now_ms - 9 * day_ms),
                ("done", 0, 0, now_ms - 9 * day_ms),
                ("read", 5, 1, now_ms - 9 * day_ms),
                ("unknown", 5, 0, 0),
                ("young", 5, 0, now_ms - day_ms),
            ]
        )
    ]
    found = [TopicStats("t", 1, 0, 0, 0, groups)]
    with CliRunner().isolation() as (out, *_):
        command.tell_of_unread(found)
        said = out.getvalue().decode()
    assert said.count("\n") == 1
    assert "group 'forgotten' of 't' has not been read for 9 days" in said
    assert "tickwheel groups delete t forgotten" in said
    assert msgspec.to_builtins(found[0])["groups"][0]["last_read_ms"] == now_ms - 9 * day_ms
