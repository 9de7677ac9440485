"""People whom a proxy in front has let in to the dashboard: the name is believed of listed peers, and of no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.guarded import Guarded
from tickwheel.errors import BadArgument, ConfigError
from tickwheel_broker.config.load import from_arguments
from tickwheel_web.middleware.forwarded import Proxies
from tickwheel_web.middleware.person import PERSON, Person

PROXY, OTHER = "192.0.2.1", "203.0.113.9"
LOGIN = "Log in"


@pytest.fixture
def users(tmp_path: Path, guarded: Guarded) -> Path:
    file = tmp_path / "users"
    file.write_text(
        f"# who may look\nada@example.com {guarded.tokens['monitor']}\n\nbob {guarded.tokens['publisher']}\n"
        f"jürgen {guarded.tokens['operator']}\n"
    )
    file.chmod(0o640)
    return file


@asynccontextmanager
async def visited(
    guarded: Guarded, users: Path | None, address: str = PROXY, **more: Any
) -> AsyncIterator[Visitor]:
    trusted: dict[str, Any] = {}
    if users is not None:
        trusted = {"trusted_header": "X-Forwarded-User", "trusted_from": [PROXY], "trusted_users": users}
    app = tickwheel.web.app(guarded.daemon.url, **trusted, **more)
    async with app.router.lifespan_context(app):
        yield Visitor(app, address=address)


async def test_who_comes_through_the_proxy_has_the_rights_of_a_token(guarded: Guarded, users: Path) -> None:
    async with visited(guarded, users) as visitor:
        page = await visitor.get("/", x_forwarded_user="ada@example.com")
        assert page.status == 200
        assert "Overview" in page.text
        assert "Logged in as ada@example.com" in page.text
        assert guarded.tokens["monitor"] not in page.html
        assert "/logout" not in page.html
        assert visitor.cookies == {}
        assert (await visitor.get("/", x_forwarded_user="bob")).status == 403  # may publish, and not look
        page = await visitor.get("/clients", x_forwarded_user="jürgen".encode().decode("latin-1"))
        assert "Logged in as jürgen" in page.text
        page = await visitor.get("/", x_forwarded_user="eve")
        assert page.status == 403
        assert "web_trusted_users" in page.text
        assert LOGIN in (await visitor.get("/")).text  # nobody is named: as without a proxy
        assert LOGIN in (await visitor.get("/", x_forwarded_user="  ")).text


async def test_figures_come_for_people_by_themselves(guarded: Guarded, users: Path) -> None:
    async with visited(guarded, users) as visitor:
        call = Caller(visitor.app, address=PROXY)
        enough = trio.Event()
        with trio.fail_after(PATIENCE_S):
            answer = await call(
                "GET",
                "/events",
                headers={"host": "127.0.0.1:7413", "x-forwarded-user": "ada@example.com"},
                leaves=enough,
                hears=lambda part: enough.set() if b"scheduled" in part else None,
            )
        assert answer.status == 200


@pytest.mark.parametrize("forwarded", ["", PROXY, f"{PROXY}, {PROXY}"])
async def test_a_header_from_another_address_is_ignored(
    guarded: Guarded, users: Path, forwarded: str
) -> None:
    """Also if it says that it was forwarded for the proxy, and this is believed."""
    async with visited(guarded, users, OTHER, forwarded_from=[OTHER]) as visitor:
        page = await visitor.get("/", x_forwarded_user="ada@example.com", x_forwarded_for=forwarded)
        assert LOGIN in page.text
        assert page.path.startswith("/login")


async def test_behind_a_proxy_that_tells_addresses_as_well(guarded: Guarded, users: Path) -> None:
    async with visited(guarded, users, forwarded_from=[PROXY]) as visitor:
        page = await visitor.get("/", x_forwarded_user="ada@example.com", x_forwarded_for=OTHER)
        assert "Logged in as ada@example.com" in page.text


async def test_without_the_setting_no_header_is_believed(guarded: Guarded) -> None:
    async with visited(guarded, None, forwarded_from=[PROXY]) as visitor:
        for name in ("x_forwarded_user", "remote_user", "x_remote_user"):
            assert LOGIN in (await visitor.get("/", **{name: "ada@example.com"})).text


async def test_another_header_and_the_api_know_no_person(guarded: Guarded, users: Path) -> None:
    async with visited(guarded, users) as visitor:
        assert LOGIN in (await visitor.get("/", remote_user="ada@example.com")).text
        answer = await visitor.ask("GET", "/v1/stats", x_forwarded_user="ada@example.com")
        assert answer.status == 401


async def test_the_proxy_counts_more_than_a_cookie(guarded: Guarded, users: Path) -> None:
    async with visited(guarded, users) as visitor:
        await visitor.log_in(guarded.tokens["all"])
        assert "ada@example.com" not in (await visitor.get("/")).text
        page = await visitor.get("/", x_forwarded_user="ada@example.com")
        assert "Logged in as ada@example.com" in page.text
        assert 'href="/clients"' not in page.html
        assert (await visitor.get("/", x_forwarded_user="eve")).status == 403


async def test_forms_are_guarded_as_ever(guarded: Guarded, users: Path) -> None:
    async with visited(guarded, users) as visitor:
        foreign = {"x_forwarded_user": "jürgen".encode().decode("latin-1"), "sec_fetch_site": "cross-site"}
        assert (await visitor.ask("POST", "/clients/1/disconnect", **foreign)).status == 403


async def test_the_file_is_read_again(guarded: Guarded, users: Path) -> None:
    file = anyio.Path(users)
    async with visited(guarded, users) as visitor:
        ada = {"x_forwarded_user": "ada@example.com"}
        assert (await visitor.get("/", **ada)).status == 200
        whole = await file.read_text()
        for broken in ("ada@example.com\n", "", f"{whole}bob twk_1\n"):
            await file.write_text(broken)
            assert (await visitor.get("/", **ada)).status == 403
        await file.unlink()
        assert (await visitor.get("/", **ada)).status == 403
        await file.write_text(whole)
        await file.chmod(0o604)
        assert (await visitor.get("/", **ada)).status == 403
        await file.chmod(0o600)
        assert (await visitor.get("/", **ada)).status == 200
        await file.write_text("ada@example.com twk_0123456789ab_wrong\n")
        page = await visitor.get("/", **ada)
        assert page.status == 401
        assert not page.path.startswith("/login")


@pytest.mark.parametrize(
    "given",
    [
        {"trusted_header": "X-User"},
        {"trusted_header": "X-User", "trusted_from": [PROXY]},
        {"trusted_from": [PROXY], "trusted_users": "users"},
        {"trusted_header": "X-User:", "trusted_from": [PROXY], "trusted_users": "users"},
        {"trusted_header": "X-User", "trusted_from": ["everybody"], "trusted_users": "users"},
    ],
)
def test_half_a_setting_is_none(given: dict[str, Any], users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(users.parent)
    with pytest.raises(BadArgument):
        tickwheel.web.app(**given)


@pytest.mark.parametrize(
    ("content", "mode"), [("ada twk_1", 0o644), ("ada", 0o600), ("a t\na t", 0o600), ("a t u", 0o600)]
)
def test_a_file_that_is_wrong_is_told_at_the_start(tmp_path: Path, content: str, mode: int) -> None:
    file = tmp_path / "users"
    trusted: dict[str, Any] = {"trusted_header": "X-User", "trusted_from": [PROXY], "trusted_users": file}
    with pytest.raises(ConfigError, match="cannot be read"):
        tickwheel.web.app(**trusted)
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=str(file)) as raised:
        tickwheel.web.app(**trusted)
    assert "twk_" not in str(raised.value)


@pytest.mark.parametrize(
    ("names", "person", "status"),
    [
        ([b"ada"], "ada", 200),
        ([b"ada", b"eve"], None, 400),
        ([b"eve", b"eve"], None, 400),
        ([], None, 200),
    ],
)
async def test_a_header_that_is_there_twice_is_refused(
    names: list[bytes], person: str | None, status: int
) -> None:
    """The client's own beside the proxy's."""
    seen: list[str | None] = []
    answered: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope.get(PERSON))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    headers = [(b"x-user", name) for name in names]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": (PROXY, 1)}
    await Person(app, "X-User", Proxies([PROXY]))(scope, receive, send)
    assert (seen, answered) == ([person] if status == 200 else [], [status])


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"web_trusted_header": "X-User"}, "some of"),
        (
            {"web_trusted_header": "X-User", "web_trusted_from": "proxy", "web_trusted_users": "u"},
            "no address",
        ),
    ],
)
def test_settings_that_do_not_fit_are_told(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        from_arguments(**given)
