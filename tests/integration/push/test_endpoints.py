"""Endpoints through the real daemon: kept with their groups, also when it is killed, and shown to who may see them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import (
    BadArgument,
    BadEndpoint,
    EndpointChanged,
    EndpointInUse,
    TopicInUse,
    UnknownEndpoint,
    UnknownGroup,
    UrlNotAllowed,
)
from tickwheel.protocol.endpoint_states import ToldState
from tickwheel.protocol.targets.target_headers import Task, task_of

URL = "https://shop.example/hooks"
SECRET = "whsec_" + "c2VjcmV0" * 4


async def test_it_is_made_changed_switched_and_deleted(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.set_endpoint("shop", topic="orders", url=URL)
        assert (made.topic, made.url, made.format, made.max_in_flight) == ("orders", URL, "binary", 8)
        assert (made.timeout, made.version, made.enabled, made.disabled) == (
            timedelta(seconds=15),
            1,
            True,
            None,
        )
        assert [delay.total_seconds() for delay in made.retry_delays][:3] == [5, 300, 1_800]
        assert made.created == made.changed
        assert len(made.secrets) == 1
        assert made.secrets[0].startswith("whsec_")
        changed = await client.set_endpoint(
            "shop",
            secrets=[SECRET, *made.secrets],
            headers={"Authorization": "Bearer x"},
            format="structured",
            timeout=timedelta(seconds=30),
            rate=0.5,
            retry_delays=[timedelta(seconds=1)],
            give_up_on=[400, 422],
            may_hold=True,
            description="Orders; call Ada",
        )
        assert changed.version == 2
        assert (changed.url, changed.secrets) == (URL, [SECRET, *made.secrets])
        assert (changed.rate_per_s, changed.give_up_on, changed.may_hold) == (0.5, [400, 422], True)
        assert await client.set_endpoint("shop", format="structured") == changed, "nothing was changed"
        assert changed.description == "Orders; call Ada"
        with pytest.raises(BadEndpoint, match="description"):
            await client.set_endpoint("shop", description="x" * 501)
        unset = await client.set_endpoint("shop", unset=["rate", "headers", "secrets", "description"])
        assert (unset.rate_per_s, unset.headers, unset.description) == (None, {}, "")
        assert len(unset.secrets) == 1
        assert unset.secrets[0] not in changed.secrets
        off = await client.disable_endpoint("shop", "it answered 410")
        assert (off.enabled, off.disabled_reason) == (False, "it answered 410")
        assert off.disabled == off.changed
        assert await client.disable_endpoint("shop", "once more") == off
        on = await client.enable_endpoint("shop")
        assert (on.enabled, on.disabled_reason, on.disabled_ms) == (True, "", 0)
        assert await client.endpoint("shop") == on
        assert await client.endpoints("orders") == await client.endpoints() == [on]
        assert await client.endpoints("other") == []
        assert await client.delete_endpoint("shop") == 0
        with pytest.raises(UnknownEndpoint):
            await client.endpoint("shop")


async def test_what_is_told_of_no_endpoint_is_not_kept_for_one_that_comes(daemon: Daemon) -> None:
    async def states() -> dict[str, str]:
        return {one.name: one.state.name for one in await client.endpoints("told")}

    async with tickwheel.Client(daemon.url) as client, tickwheel.Client(daemon.url) as push:
        failing = [ToldState(endpoint=f"told-{name}", name="failing", reason="HTTP 503") for name in "abc"]
        for name in "ab":
            await client.set_endpoint(f"told-{name}", topic="told", url=URL)
        await push._tell_endpoints(failing)
        assert await states() == {"told-a": "failing", "told-b": "failing"}
        await client.delete_endpoint("told-b")
        await push._tell_endpoints(failing)
        for name in "bc":
            await client.set_endpoint(f"told-{name}", topic="told", url=URL)
        assert await states() == {"told-a": "failing", "told-b": "not_served", "told-c": "not_served"}
        await push._tell_endpoints(failing)
        assert set((await states()).values()) == {"failing"}


async def test_a_change_may_name_the_version_that_it_is_of(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint("versions", topic="versions", url=URL, expected_version=0)
        with pytest.raises(EndpointChanged, match="version 1, not 0"):
            await client.set_endpoint("versions", url=URL + "/2", expected_version=0)
        assert (await client.set_endpoint("versions", url=URL + "/2", expected_version=1)).version == 2
        for call in (
            client.disable_endpoint("versions", expected_version=1),
            client.enable_endpoint("versions", expected_version=1),
            client.delete_endpoint("versions", expected_version=1),
        ):
            with pytest.raises(EndpointChanged):
                await call
        await client.delete_endpoint("versions", expected_version=2)
        with pytest.raises(EndpointChanged, match="version 0, not 2"):
            await client.set_endpoint("versions", topic="versions", url=URL, expected_version=2)


async def test_its_group_begins_with_it_and_ends_with_it(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("starts")
        await client.send("starts", b"before")
        await client.create_group("starts", "done", start="earliest")
        async with client.subscribe("starts", "done") as subscription:
            message = await subscription.receive(PATIENCE_S)  # so it is in the topic by now
            assert message is not None
        await client.set_endpoint("from-now-on", topic="starts", url=URL)
        await client.set_endpoint("from-all", topic="starts", url=URL, start="earliest")
        await client.send("starts", b"after")
        for name, bodies in (("from-now-on", [b"after"]), ("from-all", [b"before", b"after"])):
            async with client.subscribe("starts", f"push.{name}") as subscription:
                for body in bodies:
                    message = await subscription.receive(PATIENCE_S)
                    assert message is not None
                    assert message.body == body
                with pytest.raises(EndpointInUse, match="1 subscribers"):
                    await client.delete_endpoint(name)
            with pytest.raises(EndpointInUse, match="belongs to endpoint"):
                await client.delete_group("starts", f"push.{name}")
        with pytest.raises(TopicInUse, match="2 endpoints"):
            await client.delete_topic("starts")
        assert await client.delete_endpoint("from-now-on") == 1
        assert await client.delete_endpoint("from-all", keep_group=True) == 2
        with pytest.raises(UnknownGroup):
            await client.group("starts", "push.from-now-on")
        again = await client.set_endpoint("from-all", topic="starts", url=URL)
        assert again.version == 1
        assert (await client.group("starts", again.group)).backlog == 2, "it goes on where it was"


@pytest.mark.parametrize("shards", [0, 4])
async def test_a_killed_daemon_has_both_or_none(tmp_path: Path, shards: int) -> None:
    daemon = Daemon(tmp_path / "data")
    with daemon:
        async with tickwheel.Client(daemon.url) as client:
            await client.create_topic("orders", shards=shards)
            made = await client.set_endpoint("kept", topic="orders", url=URL, headers={"X-A": "b"})
            await client.set_endpoint("gone", topic="orders", url=URL)
            await client.delete_endpoint("gone")
            off = await client.disable_endpoint("kept", "410")
            revision = (await client.endpoints_since(0)).revision  # type: ignore[union-attr]
        daemon.kill()
        daemon.start()
        async with tickwheel.Client(daemon.url) as client:
            assert await client.endpoints() == [off]
            assert off.secrets == made.secrets
            assert [group.name for group in await client.groups("orders")] == ["push.kept"]
            assert await client.endpoints_since(revision) is None


async def test_a_revision_tells_of_each_change(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        seen = {0}
        for change in (
            lambda: client.set_endpoint("told", topic="told", url=URL),
            lambda: client.set_endpoint("told", url=URL + "/other"),
            lambda: client.disable_endpoint("told"),
            lambda: client.delete_endpoint("told"),
            lambda: client.set_endpoint("told", topic="told", url=URL, secrets=[SECRET]),
        ):
            await change()
            found = await client.endpoints_since(0)
            assert found is not None
            assert found.revision not in seen
            assert await client.endpoints_since(found.revision) is None
            seen.add(found.revision)


async def test_a_revision_tells_of_other_grants(tmp_path: Path) -> None:
    """`tickwheel push` would go on with what it may see no more, and never hear of what it may see now."""
    shell, data = Shell(tmp_path), str(tmp_path / "data")
    token = str(shell.json("tokens", "create", "push", "--grant", "push:orders", "--data", data)["token"])
    all_of_it = str(shell.json("tokens", "create", "all", "--grant", "all:*", "--data", data)["token"])
    with Daemon(tmp_path / "data") as daemon:
        async with (
            tickwheel.Client(daemon.url, token=token) as push,
            tickwheel.Client(daemon.url, token=all_of_it) as client,
        ):
            for name in ("orders", "mails"):
                await client.set_endpoint(name, topic=name, url=URL)
            seen = []
            for words in ((), ("push:mails",), ("push:mails", "--remove"), ("query:mails",)):
                known = seen[-1][0] if seen else 0
                if words:
                    shell.run("tokens", "grant", "push", *words, "--data", data)
                with trio.fail_after(PATIENCE_S):
                    while (found := await push.endpoints_since(known)) is None:
                        await trio.sleep(0.05)
                seen.append((found.revision, [(one.name, one.is_shortened) for one in found.endpoints]))
                assert await push.endpoints_since(found.revision) is None
            orders = ("orders", False)
            assert [names for _, names in seen] == [
                [orders],
                [("mails", False), orders],
                [orders],
                [("mails", True), orders],
            ]
            assert seen[0][0] == seen[2][0], "with the same grants it is the same"
            whole = await client.endpoints_since(0)
            assert whole is not None
            assert whole.revision not in {revision for revision, _ in seen}


async def test_more_endpoints_than_one_answer_holds(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        names = [f"many-{number:03}" for number in range(120)]
        for name in names:
            await client.set_endpoint(name, topic="many", url=URL)
        assert [endpoint.name for endpoint in await client.endpoints("many")] == names


async def test_what_cannot_be_used_is_refused_and_changes_nothing(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for wrong, text in (
            ({"url": URL}, "topic"),
            ({"topic": "t"}, "either a url, or allow_urls"),
            (
                {"topic": "t", "url": URL, "allow_urls": ["https://a.example/*"]},
                "either a url, or allow_urls",
            ),
            ({"topic": "t", "url": "ftp://a.example"}, "https"),
            ({"topic": "t", "url": URL, "secrets": ["secret"]}, "begins with whsec_"),
            ({"topic": "t", "url": URL, "secrets": [SECRET, SECRET]}, "twice"),
            ({"topic": "t", "url": URL, "format": "xml"}, "not understood"),
            ({"topic": "t", "url": URL, "timeout": timedelta(0)}, "not understood"),
            ({"topic": "t", "url": URL, "headers": {"Host": "x"}}, "set by Tickwheel"),
            ({"topic": "t", "url": URL, "headers": {"X": "a\r\nb"}}, "value of the header"),
            ({"topic": "t", "url": URL, "headers": {f"X-{i}": "y" * 600 for i in range(30)}}, "possible"),
        ):
            with pytest.raises(BadEndpoint, match=text):
                await client.set_endpoint("wrong", **wrong)  # type: ignore[arg-type]
        with pytest.raises(BadEndpoint, match="too long"):
            await client.set_endpoint("e" * 124, topic="t", url=URL)
        assert "wrong" not in [endpoint.name for endpoint in await client.endpoints()]
        await client.set_endpoint("moved", topic="here", url=URL)
        with pytest.raises(BadEndpoint, match="cannot be changed"):
            await client.set_endpoint("moved", topic="there")
        assert "there" not in [topic.name for topic in await client.topics()]


async def test_http_tasks_go_where_the_endpoint_lets_them(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(UrlNotAllowed, match="No endpoint carries out"):
            await client.send_http_task("https://a.example/x", topic="calls")
        await client.set_endpoint("calls", topic="calls", allow_urls=["https://a.example/in/*"])
        with pytest.raises(UrlNotAllowed, match=r"may not be for https://a\.example/…"):
            await client.send_http_task("https://a.example/out", topic="calls")
        sent = await client.send_http_task(
            "https://a.example/in/x?y=1", b"{}", method="put", headers={"X-Shop": "7"}, topic="calls", key="k"
        )
        again = await client.send_http_task("https://a.example/in/x", topic="calls", key="k")
        assert (again.id, again.duplicate) == (sent.id, True)
        await client.set_endpoint("calls", allow_urls=["https://b.example/*"])
        with pytest.raises(UrlNotAllowed):
            await client.send_http_task("https://a.example/in/x", topic="calls")
        await client.send_http_task("https://b.example/", topic="calls")
        with pytest.raises(BadEndpoint, match="'calls' carries out the tasks"):
            await client.set_endpoint("more-calls", topic="calls", allow_urls=["https://c.example/*"])
        with pytest.raises(BadArgument, match="no method"):
            await client.send_http_task("https://b.example/", topic="calls", method="CONNECT")
        async with client.subscribe("calls", "push.calls") as subscription:
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            assert (message.id, message.body) == (sent.id, b"{}")
            assert task_of(message.headers) == Task("https://a.example/in/x?y=1", "PUT", {"x-shop": "7"})


async def test_a_schedule_makes_http_tasks(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.set_endpoint("nightly", topic="nightly", allow_urls=["https://a.example/*"])
        headers = tickwheel.task_headers("https://a.example/clean", method="delete")
        await client.create_schedule("nightly", "nightly", every=timedelta(milliseconds=200), headers=headers)
        async with client.subscribe("nightly", "push.nightly") as subscription:
            for _ in range(2):
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                assert task_of(message.headers) == Task("https://a.example/clean", "DELETE", {})
                await message.ack()
        await client.delete_schedule("nightly")


def test_the_command_line(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    made = shell.text(
        "endpoints", "set", "cli", "--topic", "cli", "--to", "https://a.example/in/x", "--header", "X-A=secret",
        "--rate", "5", "--retry-delay", "5s", "--retry-delay", "1m", "--give-up-on", "400",
    )  # fmt: skip
    assert "cli to https://a.example/in/x, group push.cli" in made
    assert "tried again after 5s, 1m" in made
    assert "header X-A: secret" in made
    (secret,) = [line.split()[1] for line in made.splitlines() if line.startswith("  secret ")]
    assert secret not in shell.text("endpoints", "show", "cli")
    assert secret not in shell.text("endpoints", "show", "cli", "--json")
    assert secret in shell.text("endpoints", "show", "cli", "--secrets")
    assert shell.json("endpoints", "show", "cli", "--secrets")["secrets"] == [secret]
    assert shell.text("endpoints", "disable", "cli", "--reason", "it is away") == "disabled cli\n"
    assert "paused: it is away since " in shell.text("endpoints", "list", "--topic", "cli")
    assert shell.text("endpoints", "enable", "cli") == "enabled cli\n"
    changed = shell.json("endpoints", "set", "cli", "--unset", "rate", "--unset", "retry-delay", "--unset", "to",
                         "--allow-url", "https://a.example/*")  # fmt: skip
    assert (changed["version"], changed["rate_per_s"], len(changed["retry_delays_ms"])) == (4, None, 9)
    sent = shell.text(
        "endpoints", "task", "https://a.example/x", "{}", "--topic", "cli", "--key", "k", "--in", "1h"
    )
    again = shell.json(
        "endpoints", "task", "https://a.example/x", "--topic", "cli", "--key", "k", "--in", "1h"
    )
    assert again == {"topic": "cli", "id": int(sent), "duplicate": True}
    assert (
        shell.error("endpoints", "task", "https://b.example", "--topic", "cli", code=1)["code"]
        == "url_not_allowed"
    )
    assert shell.run("endpoints", "set", "cli", code=2).stderr
    assert "0 messages are not sent" in shell.text("endpoints", "delete", "cli", "--yes")
