"""Whom a proxy speaks for: log-ins and the audit log go by that, where the broker can believe it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import BadArgument, BadToken, LoginRequired, NotConnected

ONE, OTHER = "192.0.2.1", "2001:db8::2"


def guess(number: int) -> str:
    """Without the form of a token, so that no hash is computed for it; it counts all the same."""
    return f"nonsense-{number}"


class Place:
    """A broker with tokens, and its audit log."""

    def __init__(self, tmp_path: Path) -> None:
        self._shell = Shell(tmp_path)
        self._data = tmp_path / "data"
        self._audit = tmp_path / "audit.jsonl"

    def create(self, name: str) -> str:
        words = ("tokens", "create", name, "--grant", "all:*", "--data", str(self._data))
        return str(self._shell.json(*words)["token"])

    def daemon(self) -> Daemon:
        return Daemon(self._data, audit_log=str(self._audit))

    def audited(self, event: str, outcome: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._audit.read_text().splitlines()]
        return [line for line in lines if (line["event"], line["outcome"]) == (event, outcome)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def log_in(url: str, token: str, peer: str) -> None:
    async with tickwheel.Client(url, token=token, peer=peer, connect_timeout=1):
        pass


@asynccontextmanager
async def http(url: str) -> AsyncIterator[Caller]:
    app = tickwheel.web.app(url)
    async with app.router.lifespan_context(app):
        yield Caller(app)


async def test_wrong_tokens_count_for_whom_a_proxy_speaks(place: Place) -> None:
    good = place.create("good")
    with place.daemon() as daemon:
        for number in range(10):
            with pytest.raises(BadToken):
                await log_in(daemon.unix_url, guess(number), ONE)
        with pytest.raises(NotConnected, match=r"10 failed log-ins from 192\.0\.2\.1"):
            await log_in(daemon.unix_url, good, ONE)
        await log_in(daemon.unix_url, good, OTHER)
        await log_in(daemon.unix_url, good, "unknown")
    assert {line["peer"] for line in place.audited("login", "refused")} == {f"{ONE}:0"}
    assert [line["peer"] for line in place.audited("login", "ok")] == [f"{OTHER}:0", "unknown:0"]


async def test_over_tcp_it_is_not_believed(place: Place) -> None:
    good = place.create("good")
    with place.daemon() as daemon:
        for number in range(10):
            with pytest.raises(BadToken):
                await log_in(daemon.url, guess(number), f"192.0.2.{number}")
        with pytest.raises(NotConnected, match=r"10 failed log-ins from 127\.0\.0\.1"):
            await log_in(daemon.url, good, OTHER)
    peers = {line["peer"].rpartition(":")[0] for line in place.audited("login", "refused")}
    assert peers == {"127.0.0.1"}


async def test_whom_a_proxy_speaks_for_is_not_the_owner(place: Place) -> None:
    place.create("any")
    with place.daemon() as daemon:
        await log_in(daemon.unix_url, "", "")
        with pytest.raises(LoginRequired):
            await log_in(daemon.unix_url, "", ONE)


@pytest.mark.parametrize("peer", ["localhost", "192.0.2.1:80", "unix", "192.0.2.300"])
def test_what_is_no_address(peer: str) -> None:
    with pytest.raises(BadArgument, match="peer"):
        tickwheel.Client(peer=peer)


# HTTP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_wrong_tokens_of_one_address_lock_no_other_one_out(place: Place, way: str) -> None:
    good = place.create("good")
    with place.daemon() as daemon:
        async with http(daemon.unix_url if way == "unix" else daemon.url) as ask:
            codes = []
            for number in range(12):
                answer = await ask.at(ONE).with_token(guess(number))("GET", "/v1/stats")
                codes.append((answer.status, answer.code))
            assert codes == [(401, "bad_token")] * 5 + [(429, "too_many_attempts")] * 7
            assert answer.headers["retry-after"] == "1"
            assert (await ask.at(ONE).with_token(good)("GET", "/v1/stats")).status == 429
            assert (await ask.at(OTHER).with_token(guess(99))("GET", "/v1/stats")).code == "bad_token"
            assert (await ask.at(OTHER).with_token(good)("GET", "/v1/stats")).status == 200


async def test_the_audit_log_has_the_address_of_who_asked(place: Place) -> None:
    token = place.create("shared")
    with place.daemon() as daemon:
        async with http(daemon.unix_url) as ask:
            for address in (ONE, OTHER, "testclient"):
                answer = await ask.at(address).with_token(token)("GET", "/v1/stats")
                assert answer.status == 200
            async with tickwheel.Client(daemon.unix_url, token=token) as owner:
                clients = await owner.clients()
            assert [(one.name, one.peer) for one in clients][:-1] == [
                ("web", f"{ONE}:0"),
                ("web", f"{OTHER}:0"),
                ("web", "unknown:0"),
            ]
            async with tickwheel.Client(daemon.unix_url, token=token, peer=ONE) as proxied:
                await proxied.create_topic("seen")
    peers = [line["peer"] for line in place.audited("login", "ok")]
    assert peers == [f"{ONE}:0", f"{OTHER}:0", "unknown:0", "unix", f"{ONE}:0"]
    assert [line["peer"] for line in place.audited("SetTopic", "ok")] == [f"{ONE}:0"]


async def test_a_broker_without_tokens(tmp_path: Path) -> None:
    """Who can reach it may do everything, as over TCP."""
    with Daemon(tmp_path / "data") as daemon:
        async with http(daemon.unix_url) as ask:
            assert (await ask("GET", "/v1/stats")).status == 200
