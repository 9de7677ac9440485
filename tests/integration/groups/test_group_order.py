"""Groups that look at ordering keys otherwise than others of their topic."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import BadArgument, UnknownGroup

WAIT = timedelta(seconds=30)


async def bodies(client: tickwheel.Client, topic: str, group: str) -> list[bytes]:
    """Those of which nobody holds another one."""
    return [message.body for message in await client.fetch(topic, group, count=10)]


async def send(client: tickwheel.Client, topic: str) -> None:
    for body in (b"1", b"2", b"3"):
        await client.send(topic, body, order_key="k")
    async with client.subscribe(topic, "ready") as subscription:
        await (await subscription.receive()).ack(confirm=True)


@pytest.mark.promise("in-which-order")
async def test_a_group_that_ignores_ordering_keys(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await send(client, "t")
            assert await client.create_group("t", "any", ignore_ordering_keys=True)
            assert await client.create_group("t", "in-order")
            assert await client.create_group("t", "later")
            assert [await bodies(client, "t", name) for name in ("any", "in-order", "later")] == [
                [b"1", b"2", b"3"], [b"1"], [b"1"],
            ]  # fmt: skip
            assert await client.set_group("t", "later", ignore_ordering_keys=True)
            assert not await client.set_group("t", "later", ignore_ordering_keys=True), "it is so already"
            assert await bodies(client, "t", "later") == [b"2", b"3"], "what waited behind another one goes"
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            await client.send("t", b"4", order_key="k")
            found = {one.name: one.ignores_ordering_keys for one in await client.groups("t")}
            assert found == {"ready": False, "any": True, "in-order": False, "later": True}
            (message,) = await client.fetch("t", "any", wait=WAIT)
            assert message.body == b"4"
            assert [await bodies(client, "t", name) for name in ("in-order", "later")] == [[], [b"4"]]


async def test_a_subscriber_is_given_what_waited_at_once(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe("stream", "g") as subscription:
        for body in (b"1", b"2"):
            await client.send("stream", body, order_key="k")
        first = await subscription.receive()
        await client.set_group("stream", "g", ignore_ordering_keys=True)
        second = await subscription.receive()
        assert (first.body, second.body) == (b"1", b"2")
        await client.set_group("stream", "g", ignore_ordering_keys=False)
        await client.send("stream", b"3", order_key="k")
        await second.ack(confirm=True)
        assert await bodies(client, "stream", "g") == [], "in order again: the first is not done"
        await first.ack(confirm=True)
        assert (await subscription.receive()).body == b"3"


async def test_in_all_shards(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("sharded", shards=4)
        await client.create_group("sharded", "g")
        await client.set_group("sharded", "g", ignore_ordering_keys=True)
        for number in range(40):
            await client.send("sharded", b"", order_key=f"k{number % 4}")
        found = 0
        while found < 40:
            found += len(await client.fetch("sharded", "g", count=40, wait=WAIT))


async def test_what_is_refused(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("known")
        with pytest.raises(UnknownGroup):
            await client.set_group("known", "no", ignore_ordering_keys=True)
        with pytest.raises(BadArgument, match="ignore_ordering_keys"):
            await client.create_group("known", "g", ignore_ordering_keys="yes")  # type: ignore[arg-type]


async def test_over_http(daemon: Daemon) -> None:
    app = tickwheel.web.app(daemon.url)
    async with app.router.lifespan_context(app), tickwheel.Client(daemon.url) as client:
        ask = Caller(app)
        await client.create_topic("http")
        target = "/v1/topics/http/groups/g"
        answer = await ask("PUT", target, {"ignore_ordering_keys": True})
        assert (answer.status, answer.json["ignores_ordering_keys"]) == (201, True)
        answer = await ask("PATCH", target, {"ignore_ordering_keys": False})
        assert (answer.status, answer.json["ignores_ordering_keys"]) == (200, False)
        assert (await ask("GET", target)).json["ignores_ordering_keys"] is False
        assert (await ask("PATCH", target, {})).status == 400


def test_on_the_command_line(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    shell.text("topics", "create", "cli")
    shell.text("groups", "create", "cli", "g", "--ignore-ordering-keys")
    assert "ignores ordering keys" in shell.text("groups", "show", "cli", "g")
    changed = {"topic": "cli", "group": "g", "changed": True}
    assert shell.json("groups", "set", "cli", "g", "--keep-ordering-keys") == changed
    assert "ignores ordering keys" not in shell.text("groups", "show", "cli", "g")
    assert "It was so already" in shell.text("groups", "set", "cli", "g", "--keep-ordering-keys")
    assert shell.json("groups", "list", "cli")[0]["ignores_ordering_keys"] is False


async def test_several_of_a_key_at_a_time(daemon: Daemon) -> None:
    """A request that asks for it is given messages of one key that follow each other; another one none of them before
    these are back or done."""
    async with tickwheel.Client(daemon.url) as client:
        for number in range(5):
            await client.send("runs", b"%d" % number, order_key="k")
        await client.send("runs", b"other", order_key="o")
        first = await client.fetch("runs", "g", count=10, wait=WAIT, ordered_batch=3)
        while len(first) < 4:  # the broker had not put all into the topic yet
            await client.give_back(first.group_id, [(one.id, one.epoch) for one in first])
            first = await client.fetch("runs", "g", count=10, wait=WAIT, ordered_batch=3)
        given = list(first)
        assert [one.body for one in given] == [b"0", b"1", b"2", b"other"]
        assert await bodies(client, "runs", "g") == []
        await given[0].nack(delay=timedelta(0))
        await given[1].ack(confirm=True)
        assert await bodies(client, "runs", "g") == [], "one of them is still here"
        await given[2].nack(delay=timedelta(0))
        again = await client.fetch("runs", "g", count=10, wait=WAIT, ordered_batch=3)
        assert [one.body for one in again] == [b"0", b"2", b"3"], "by their places"
        for one in again:
            await one.ack(confirm=True)
        assert await bodies(client, "runs", "g") == [b"4"], "without asking for more: one at a time"
        with pytest.raises(BadArgument, match="ordered_batch"):
            await client.fetch("runs", "g", ordered_batch=257)


async def test_several_of_a_key_come_back_in_order_when_their_leases_end(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.create_topic("t")
            for number in range(4):
                await client.send("t", b"%d" % number, order_key="k")
            async with client.subscribe("t", "ready", credit=1) as subscription:
                for _ in range(4):
                    await (await subscription.receive()).ack(confirm=True)
            given = await client.fetch("t", "g", count=3, lease=timedelta(seconds=3), ordered_batch=3)
            assert [one.body for one in given] == [b"0", b"1", b"2"]
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            again = [one.body for one in await client.fetch("t", "g", count=10, wait=WAIT, ordered_batch=10)]
            assert again == [b"0", b"1", b"2", b"3"][: len(again)], "none of them before the first"
