"""Tokens with the real daemon: logging in, what a token allows, and what happens when tokens change."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import trio

import tickwheel
from tests.support.clients.certificates import Files
from tests.support.clients.waiting import until
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection
from tests.support.processes.guarded import Place
from tickwheel.errors import (
    BadToken,
    ClientClosed,
    Forbidden,
    LoginRequired,
    TokenExpired,
    TokenNeedsTls,
    TokenRevoked,
    TooManyAttempts,
    TooManyTopics,
)
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk, encode_body, hello
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import SendColumns, encode_send


async def try_to_log_in(url: str, **options: Any) -> None:
    async with tickwheel.Client(url, **options):
        pass


async def again_and_again(request: Callable[[], Awaitable[Any]]) -> None:
    """Until it raises something."""
    with trio.fail_after(PATIENCE_S):
        while True:
            await request()


async def receive_while(
    client: tickwheel.Client, topic: str, change: Callable[..., Any], *arguments: str
) -> None:
    """Receives before and after a change of the tokens, until that raises something."""
    async with client.subscribe(topic) as sub:
        assert await sub.receive(timeout=PATIENCE_S) is not None
        await trio.to_thread.run_sync(change, *arguments)
        await again_and_again(sub.receive)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_only_with_a_token(place: Place, tmp_path: Path, backend: str) -> None:
    token = place.create("shop", "all:*")
    file = tmp_path / "token"
    file.write_text(token + "\n")

    async def main() -> None:
        for options in ({"token": token}, {"token_file": str(file)}):
            async with tickwheel.Client(daemon.url, **options) as client:
                await client.send("tea", b"x")
        with pytest.raises(LoginRequired):
            await try_to_log_in(daemon.url, token="")
        with pytest.raises(BadToken):
            await try_to_log_in(daemon.url, token=token[:-2] + "xx")
        with pytest.raises(BadToken):
            await try_to_log_in(daemon.url, token="hunter2")
        async with tickwheel.Client(daemon.unix_url, token="") as owner:  # the broker's own user
            assert (await owner.stats()).messages == 2

    with place.daemon() as daemon:
        anyio.run(main, backend=backend)
        log = (tmp_path / "data.log.jsonl").read_text()
    assert len(place.audited_as("login", "ok")) == 2
    assert [e["code"] for e in place.audited_as("login", "refused")] == [
        "login_required",
        "bad_token",
        "bad_token",
    ]
    secret = token.split("_", 2)[2]  # it may have more of them
    for text in (log, place.audit.read_text(), (place.data / "tokens.json").read_text()):
        assert secret[:20] not in text
        assert "hunter2" not in text
    assert place.audit.stat().st_mode & 0o777 == 0o600
    assert (place.data / "tokens.json").stat().st_mode & 0o777 == 0o600


def test_the_command_line_logs_in(place: Place, tmp_path: Path) -> None:
    token = place.create("shop", "publish:orders.*", "consume:orders.*")
    (tmp_path / "token").write_text(token)
    with place.daemon() as daemon:
        shell = Shell(tmp_path, daemon.url)
        assert b"login_required" in shell.run("send", "orders.new", "x", code=1).stderr
        shell.run("send", "orders.new", "hello", "--token-file", "token")
        shell.environment["TICKWHEEL_TOKEN_FILE"] = "token"
        assert "hello" in shell.text("receive", "orders.new", "--count", "1")
        refused = shell.run("send", "mails", "x", code=1).stderr.decode()
        assert "forbidden" in refused
        assert "may not publish 'mails'" in refused
        assert "tickwheel tokens grant" in refused
        assert b"No such option" in shell.run("--token", token, "stats", code=2).stderr


@pytest.mark.promise("V86")
async def test_what_a_token_allows(place: Place) -> None:
    producer = place.create("producer", "publish:orders.*")
    consumer = place.create("consumer", "consume:orders.*")
    with place.daemon() as daemon:
        async with (
            tickwheel.Client(daemon.url, token=producer) as sending,
            tickwheel.Client(daemon.url, token=consumer) as receiving,
            tickwheel.Client(daemon.unix_url, token="") as owner,
        ):
            theirs = (await owner.send("mails", b"secret", delay_ms=3_600_000, key="k")).id
            mine = (await sending.send("orders.new", b"1", delay_ms=3_600_000)).id
            with pytest.raises(Forbidden, match="may not publish 'mails'"):
                await sending.send("mails", b"x")
            with pytest.raises(Forbidden, match="may not consume 'mails'"):
                async with receiving.subscribe("mails") as sub:
                    await sub.receive(timeout=PATIENCE_S)
            with pytest.raises(Forbidden, match="may not publish"):
                await receiving.send("orders.new", b"x")
            # What is not allowed looks as if it were not there.
            results = await sending.cancel(ids=[theirs, mine, 999_999])
            assert [str(result) for result in results] == ["not_found", "cancelled", "not_found"]
            with pytest.raises(Forbidden):
                await sending.cancel("mails", key="k")
            assert str(await owner.cancel("mails", key="k")) == "cancelled"
            assert {topic.name for topic in await sending.topics()} == {"orders.new"}
            for refused in (sending.stats, sending.wheel, sending.purge):
                with pytest.raises(Forbidden):
                    await refused()
            with pytest.raises(Forbidden):
                await sending.query("SELECT * FROM messages")
            with pytest.raises(Forbidden):
                await sending.create_topic("orders.other")
            await owner.create_topic("orders.other")
    refusals = place.audited_as("request", "refused")
    assert len(refusals) == 9
    assert all(e["code"] == "forbidden" and e["token"] and e["peer"] for e in refusals)
    assert "may not publish 'mails'" in refusals[0]["reason"]
    (created,) = place.audited_as("SetTopic", "ok")
    assert (created["subject"], created["token"]) == ("orders.other", "owner")


async def test_sends_to_a_number_that_was_never_opened(place: Place) -> None:
    """A SEND names its topic by number, and numbers are easy to guess."""
    token = place.create("shop", "publish:mine")
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.unix_url, token="") as owner:
            await owner.create_topic("theirs")
            await owner.create_topic("mine")
            with RawConnection(daemon.url) as raw:
                assert raw.ask(FrameType.HELLO, encode_body(hello("raw", token))).type == FrameType.HELLO_OK
                answer = raw.request(FrameType.OPEN_TOPIC, OpenTopic("mine", False))
                mine = msgspec.msgpack.decode(answer.payload, type=OpenTopicOk).topic_id
                for topic_id in (mine - 1, mine + 1, 0, 2**32 - 1):
                    refused = raw.ask(FrameType.SEND, encode_send(topic_id, SendColumns([b"x"])))
                    assert refused.type == FrameType.ERROR
                    assert b"forbidden" in refused.payload
                    assert b"theirs" not in refused.payload
                assert (
                    raw.ask(FrameType.SEND, encode_send(mine, SendColumns([b"x"]))).type == FrameType.SEND_OK
                )
            assert (await owner.stats()).messages == 1


async def test_no_token_uses_up_the_topics_of_all(place: Place) -> None:
    shop, admin = place.create("shop", "publish:*", "consume:*", "admin:t*"), place.create("ops", "all:*")
    schedule = {"every": timedelta(hours=1)}
    with place.daemon(max_topics=12, max_topics_per_token=3) as daemon:
        async with tickwheel.Client(daemon.url, token=shop) as client:
            await client.send("t0", b"x")
            assert not await client.fetch("t1", wait=0)
            await client.delete_topic("t0")
            await client.prepare("t2", b"x")
            makes: list[Callable[[], Awaitable[Any]]] = [
                lambda: client.send("t3", b"x"),
                lambda: client.fetch("t3", wait=0),
                lambda: client.prepare("t3", b"x"),
                lambda: client.create_topic("t3"),
                lambda: client.create_topic("t4", shards=2),
                lambda: client.create_schedule("s", "t3", **schedule),  # type: ignore[arg-type]
                lambda: client.set_endpoint("e", topic="t3", url="https://example.com"),
            ]
            for make in makes:
                with pytest.raises(TooManyTopics, match="has made 3 topics of 3") as raised:
                    await make()
                assert "max_topics_per_token" in raised.value.advice
            await client.send("t1", b"x")
        async with tickwheel.Client(daemon.url, token=admin) as client:
            for number in range(4):
                await client.send(f"more-{number}", b"x")


async def test_a_revoked_token_ends_its_connections(place: Place) -> None:
    token, other = place.create("shop", "all:*"), place.create("other", "all:*")
    with place.daemon() as daemon:
        async with (
            tickwheel.Client(daemon.url, token=token) as client,
            tickwheel.Client(daemon.url, token=other) as bystander,
            tickwheel.Client(daemon.unix_url, token="") as owner,
        ):
            await bystander.send("tea", b"x")
            with pytest.raises(TokenRevoked):
                await receive_while(client, "tea", place.tokens, "revoke", "shop", "--yes")
            with pytest.raises(TokenRevoked):
                await try_to_log_in(daemon.url, token=token)
            await bystander.ping()
            # What it held is given to others at once, not after ack_wait.
            async with owner.subscribe("tea") as sub:
                again = await sub.receive(timeout=PATIENCE_S)
                assert again is not None
                assert again.epoch == 2
        assert daemon.wait_for_event("started")
    assert [e["token_name"] for e in place.audited_as("token revoked", "ok")] == ["shop"]


async def test_changes_of_grants_reach_open_connections(place: Place) -> None:
    token = place.create("shop", "publish:orders", "consume:orders")
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.url, token=token) as client:
            await client.send("orders", b"1")
            with pytest.raises(Forbidden):
                await client.send("mails", b"x")
            await trio.to_thread.run_sync(place.tokens, "grant", "shop", "publish:mails")
            await until_allowed(client)
            await trio.to_thread.run_sync(place.tokens, "grant", "shop", "--remove", "publish:orders")
            with pytest.raises(Forbidden):
                await again_and_again(lambda: client.send("orders", b"2"))
            with pytest.raises(Forbidden, match="may not consume 'orders'"):
                await receive_while(
                    client, "orders", place.tokens, "grant", "shop", "--remove", "consume:orders"
                )
            await client.send("mails", b"still here")


async def until_allowed(client: tickwheel.Client) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await client.send("mails", b"x")
            except Forbidden:
                await trio.sleep(0.02)
            else:
                return


async def test_rotation_keeps_the_old_secret_for_a_while(place: Place) -> None:
    old = place.create("shop", "all:*")
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.url, token=old) as before:
            new = (await trio.to_thread.run_sync(place.tokens, "rotate", "shop", "--grace", "1h"))["token"]
            daemon.process.send_signal(signal.SIGHUP)
            await until(lambda: bool(place.audited_as("token rotated", "ok")))
            await try_to_log_in(daemon.url, token=new)
            await try_to_log_in(daemon.url, token=old)
            await before.ping()
            newest = (await trio.to_thread.run_sync(place.tokens, "rotate", "shop", "--grace", "0s"))["token"]
            with pytest.raises(BadToken):
                await again_and_again(before.ping)
        await try_to_log_in(daemon.url, token=newest)
        for gone in (old, new):
            with pytest.raises(BadToken):
                await try_to_log_in(daemon.url, token=gone)


async def test_the_process_that_pushes_sees_secrets_and_may_disable(place: Place) -> None:
    owner, pusher = place.create("owner", "admin:tea"), place.create("pusher", "push:*", "consume:*")
    shop = place.create("shop", "publish:tea")
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.url, token=owner) as client:
            made = await client.set_endpoint(
                "house", topic="tea", url="https://a.example/hidden", headers={"Authorization": "Bearer x"}
            )
        async with tickwheel.Client(daemon.url, token=shop) as client:
            (seen,) = await client.endpoints()
            assert (seen.url, seen.headers) == ("https://a.example/…", {"Authorization": "…"})
            assert seen.is_shortened
            assert seen.secrets == [made.secrets[0][:10] + "…"]
            for call in (client.disable_endpoint("house"), client.set_endpoint("house", rate=1)):
                with pytest.raises(Forbidden):
                    await call
        async with tickwheel.Client(daemon.url, token=pusher) as client:
            assert await client.endpoint("house") == made
            async with client.subscribe("tea", made.group):
                off = await client.disable_endpoint("house", "it answered 410")
            assert off.secrets == made.secrets
            for call in (client.enable_endpoint("house"), client.delete_endpoint("house")):
                with pytest.raises(Forbidden):
                    await call
    (told,) = place.audited_as("EnableEndpoint", "ok")
    assert (told["subject"], told["enabled"], told["reason"]) == ("house", False, "it answered 410")
    assert made.secrets[0] not in place.audit.read_text()


async def test_without_a_file_the_ordinary_log_is_the_audit_log(place: Place) -> None:
    token = place.create("shop", "admin:tea")
    with Daemon(place.data) as daemon:
        async with tickwheel.Client(daemon.url, token=token) as client:
            await client.create_topic("tea")
            with pytest.raises(Forbidden):
                await client.send("tea", b"x")
            await trio.to_thread.run_sync(place.tokens, "revoke", "shop", "--yes")
            with pytest.raises(TokenRevoked):
                await again_and_again(client.ping)
        found = [e for e in daemon.events() if e["logger"] == "tickwheel.broker.audit"]
    assert [(e["event"], e["outcome"]) for e in found] == [
        ("login", "ok"),
        ("SetTopic", "ok"),
        ("request", "refused"),
        ("token revoked", "ok"),
    ]


async def test_a_token_expires(place: Place) -> None:
    place.create("other", "all:*")
    with place.daemon() as daemon:
        token = await trio.to_thread.run_sync(lambda: place.create("shop", "all:*", expires_in="3s"))

        async def work() -> None:
            async with tickwheel.Client(daemon.url, token=token) as client:
                await again_and_again(client.ping)

        with pytest.raises(TokenExpired):
            await work()
        with pytest.raises(TokenExpired):
            await try_to_log_in(daemon.url, token=token)


async def test_the_first_token_closes_the_door(place: Place) -> None:
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.url, token="") as anybody:
            await anybody.send("tea", b"x")
            token = await trio.to_thread.run_sync(place.create, "shop", "all:*")
            with pytest.raises(LoginRequired):
                await again_and_again(anybody.ping)
        await try_to_log_in(daemon.url, token=token)
        # The last one gone does not open it.
        await trio.to_thread.run_sync(place.tokens, "revoke", "shop", "--yes")
        await until(lambda: bool(place.audited_as("token revoked", "ok")))
        with pytest.raises(LoginRequired):
            await try_to_log_in(daemon.url, token="")


async def test_a_damaged_file_keeps_the_old_tokens_and_lets_no_broker_start(place: Place) -> None:
    token = place.create("shop", "all:*")
    path = place.data / "tokens.json"
    good = path.read_bytes()
    with place.daemon() as daemon:
        for bad in (good[:-30], b"", b"[]", good.replace(b"all:*", b"fly:*"), None):
            await trio.to_thread.run_sync(replace_file, path, bad)
            before = len([e for e in daemon.events() if "new tokens are not used" in e["event"]])
            daemon.process.send_signal(signal.SIGHUP)
            await until(lambda n=before: refusals_of_reload(daemon) > n)  # type: ignore[misc]
            await try_to_log_in(daemon.url, token=token)
            with pytest.raises(LoginRequired):
                await try_to_log_in(daemon.url, token="")
    await trio.to_thread.run_sync(replace_file, path, good[:-30])
    refused = place.daemon()
    refused.launch()
    assert await trio.to_thread.run_sync(refused.wait_exit) == 78
    (event,) = [event for event in refused.events() if event["level"] == "error"]
    assert event["code"] == "bad_tokens_file"
    assert "tokens.json is damaged" in event["reason"]


def replace_file(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink()
    else:
        path.with_suffix(".test").write_bytes(data)
        os.replace(path.with_suffix(".test"), path)


def refusals_of_reload(daemon: Daemon) -> int:
    return len([e for e in daemon.events() if "new tokens are not used" in e["event"]])


async def test_guessing_is_slowed_down(place: Place) -> None:
    good = place.create("shop", "all:*")
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.url, token=good):
            for number in range(10):
                with pytest.raises(BadToken):
                    await try_to_log_in(daemon.url, token=f"twk_{number:012x}_{'x' * 43}")
            with pytest.raises(tickwheel.NotConnected, match=r"10 failed log-ins from 127\.0\.0\.1"):
                await try_to_log_in(daemon.url, token=f"twk_{99:012x}_{'x' * 43}", connect_timeout=1)
            # Who was here before is known, and the same wrong token again is no new guess.
            await try_to_log_in(daemon.url, token=good)
            with pytest.raises(BadToken):
                await try_to_log_in(daemon.url, token=f"twk_{1:012x}_{'x' * 43}")
    codes = [e["code"] for e in place.audited_as("login", "refused")]
    assert codes[:10] == ["bad_token"] * 10
    assert TooManyAttempts.code in codes


def test_a_token_does_not_travel_in_plain_text() -> None:
    with pytest.raises(TokenNeedsTls, match="plain_token"):
        tickwheel.Client("tickwheel://broker.example:7411", token="twk_x")
    tickwheel.Client("tickwheel://broker.example:7411", token="twk_x", plain_token=True)
    tickwheel.Client("tickwheels://broker.example:7411", token="twk_x")
    for here in ("localhost", "127.0.0.1", "[::1]"):
        tickwheel.Client(f"tickwheel://{here}:7411", token="twk_x")


def test_other_machines_only_with_tls_and_log_ins(place: Place, tmp_path: Path) -> None:
    files = Files(tmp_path / "certificates")
    tls = {"tls_certificate": files.certificate_path, "tls_key": files.key_path}
    refused = place.daemon(listen_host="0.0.0.0", **tls)
    refused.launch()
    assert refused.wait_exit() == 78
    (event,) = [event for event in refused.events() if event["level"] == "error"]
    assert event["code"] == "insecure_listener"
    assert "tickwheel tokens create" in event["advice"]
    assert not (place.data / "commitlog").exists()
    with place.daemon(listen_host="0.0.0.0", tls_client_ca=files.client_ca_path, **tls):
        pass
    token = place.create("shop", "all:*")
    with place.daemon(listen_host="0.0.0.0", **tls) as daemon:
        url = daemon.urls[-1].replace("0.0.0.0", "127.0.0.1")
        with tickwheel.sync.Client(url, token=token, ca_file=files.ca_path) as client:
            client.send("tea", b"x")


async def test_a_client_knows_what_it_may_do(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.daemon() as daemon:
        async with tickwheel.Client(daemon.url) as client:
            assert client.grants is None
        token = place.create("worker", "consume:orders.*", "query:*")
        async with tickwheel.Client(daemon.url, token=token) as client:
            assert client.grants == ["consume:orders.*", "query:*"]
        with tickwheel.sync.Client(daemon.url, token=token) as blocking:
            assert blocking.grants == ["consume:orders.*", "query:*"]
        async with tickwheel.Client(daemon.unix_url) as owner:
            assert owner.grants is None
    with pytest.raises(ClientClosed):
        _ = client.grants
