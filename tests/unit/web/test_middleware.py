"""What is around every request: other origins, their pages, and proxies."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.support.clients.asgi import Caller
from tests.support.run.cases import table
from tickwheel.errors import BadArgument
from tickwheel_web.middleware import guard
from tickwheel_web.middleware.cors import Cors, checked
from tickwheel_web.middleware.forwarded import Forwarded, Proxies
from tickwheel_web.middleware.guard import Guard, Hosts
from tickwheel_web.problems import Refused

SHOP = "https://shop.example"


async def who(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the address of who asks."""
    client = Request(scope).client
    assert client is not None
    await PlainTextResponse(client.host, headers={"vary": "Accept-Encoding"})(scope, receive, send)


# Other origins -----------------------------------------------------------------------------------


async def test_a_page_of_a_listed_origin_may_read_the_answer() -> None:
    answer = await Caller(Cors(who, [SHOP]))("GET", "/", headers={"origin": SHOP})
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert "access-control-allow-credentials" not in answer.headers
    assert "Location" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "Accept-Encoding, Origin"
    assert answer.body == b"127.0.0.1"


@pytest.mark.parametrize(
    "origin", ["", "null", "http://shop.example", "https://shop.example.evil", "https://SHOP.example"]
)
async def test_others_may_not(origin: str) -> None:
    ask = Caller(Cors(who, [SHOP]))
    headers = {"origin": origin} if origin else {}
    answer = await ask("GET", "/", headers=headers)
    before = await ask("OPTIONS", "/", headers={**headers, "access-control-request-method": "POST"})
    for one in (answer, before):
        assert not any(name.startswith("access-control") for name in one.headers)
        assert "Origin" in one.headers["vary"]


async def test_what_a_browser_asks_first() -> None:
    answer = await Caller(Cors(who, [SHOP]))(
        "OPTIONS",
        "/v1/topics/t/messages",
        headers={
            "origin": SHOP,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,tw-header-x",
        },
    )
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type,tw-header-x"


@table("origin", ["*", "https://shop.example/", "shop.example", "https://*.example"])
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(BadArgument, match="is no origin"):
        checked([SHOP, origin])


# Pages of other sites ----------------------------------------------------------------------------


def test_examples_in_the_text() -> None:
    found = doctest.testmod(guard)
    assert (found.failed, found.attempted > 0) == (0, True)


def request(method: str = "POST", host: str = "a.localhost:7413", **headers: str) -> Request:
    named = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = [(name.encode(), value.encode()) for name, value in named.items()]
    return Request({"type": "http", "method": method, "path": "/", "headers": pairs})


def refusal(check: Callable[[Request], None], asked: Request) -> str:
    """Its code; empty if there is none."""
    try:
        check(asked)
    except Refused as refused:
        return refused.code
    return ""


OWN = "http://a.localhost:7413"


@table(
    ("headers", "is_ours"),
    [
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site", "origin": OWN}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "cross-site", "origin": SHOP}, False),
        ({"origin": OWN}, True),
        ({"origin": "http://a.localhost"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://["}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
def test_forms_come_from_pages_of_ours(headers: dict[str, str], is_ours: bool) -> None:
    found = refusal(Guard([], [SHOP]).check_page, request(**headers))
    assert found == ("" if is_ours else "foreign_origin")


@table("method", ["GET", "POST"])
@table(
    ("headers", "is_foreign"),
    [
        ({}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "same-origin", "origin": OWN}, False),
        ({"origin": OWN.upper()}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "origin": SHOP}, False),
        ({"origin": SHOP}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, True),
        ({"sec_fetch_site": "same-site", "origin": "http://b.localhost"}, True),
        ({"sec_fetch_site": "cross-site", "origin": "null"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://["}, True),
        ({"origin": "http://evil.example"}, True),
    ],
)
def test_calls_come_from_programs_and_from_pages_that_may(
    method: str, headers: dict[str, str], is_foreign: bool
) -> None:
    found = refusal(Guard([], [SHOP]).check_call, request(method, **headers))
    assert found == ("foreign_origin" if is_foreign else "")


@table(
    ("host", "is_known"),
    [
        ("broker.example", True),
        ("BROKER.example.:80", True),
        ("broker.example.evil.example", False),
        ("192.0.2.1:7413", True),
        ("[2001:db8::1]", True),
        ("dash.localhost", True),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_names_that_are_known(host: str, is_known: bool) -> None:
    assert Hosts(["broker.example"]).have(host) is is_known


# Proxies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7:5123", "192.0.2.7"),
        ("10.0.0.1", "[2001:db8::7]:5123", "2001:db8::7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("::ffff:10.0.0.1", "::ffff:192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("10.0.0.1", "203.0.113.9, 192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "nonsense, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.1", "192.0.2.7", "192.0.2.1"),
        ("192.0.2.1", "10.0.0.1", "192.0.2.1"),
    ],
)
async def test_who_asks(peer: str, forwarded: str, found: str) -> None:
    app = Forwarded(who, Proxies(["10.0.0.0/8", "2001:db8:1::1"]))
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    assert (await Caller(app).at(peer)("GET", "/", headers=headers)).body.decode() == found


async def test_who_asks_by_a_unix_socket() -> None:
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope["client"])

    async def nothing(*_: object) -> None:
        """Not called."""

    headers = [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", b"192.0.2.7")]
    scope: Scope = {"type": "http", "client": None, "headers": headers}
    for believed in (["unix"], ["10.0.0.0/8"]):
        await Forwarded(app, Proxies(believed))(scope, nothing, nothing)  # type: ignore[arg-type]
    assert found == [("192.0.2.7", 0), None]


def test_what_is_no_proxy() -> None:
    with pytest.raises(BadArgument, match=r"forwarded_from: 10\.0\.0\.1/8 has host bits set"):
        Proxies(["10.0.0.1/8"])
