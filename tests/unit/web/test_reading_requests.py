"""What a connection of `tickwheel web` takes for requests, however its bytes arrive, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.server import ServerState

from tests.support.run.cases import table
from tests.unit.web.wire import Wire
from tickwheel_web.server import Protocol, Serving

MOST_BYTES = 2_000
SERVING = Serving(max_header_bytes=MOST_BYTES)
GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"


async def _echo(request: Request) -> Response:
    try:
        body = await request.body()
    except ClientDisconnect:
        return Response(b"the body never came", 400)
    return JSONResponse(
        {"path": request.url.path, "names": sorted(set(request.headers.keys())), "body": body.decode()}
    )


async def _deaf(request: Request) -> Response:
    """It reads no body."""
    return Response(b"tea")


async def _slow(request: Request) -> Response:
    await asyncio.sleep(0.01)
    return Response(b"slow")


def conversation(parts: Sequence[bytes], kind: type[Protocol] = Protocol) -> tuple[bytes, bool]:
    """All that is answered to bytes that arrive in these parts, and whether the connection ends."""

    async def run() -> tuple[bytes, bool]:
        routes = [Route(path, answer, methods=["GET", "POST"]) for path, answer in PATHS.items()]
        config = uvicorn.Config(
            Starlette(routes=routes), http=Protocol, ws="none", log_config=None, lifespan="off"
        )
        config.load()
        wire, state = Wire(), ServerState()
        protocol = kind(config, state, {}, SERVING)
        protocol.connection_made(wire)
        async with asyncio.timeout(60):
            for part in parts:
                protocol.data_received(part)
                await asyncio.sleep(0)
            while state.tasks:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        found = b"".join(wire.written), wire.is_closed
        protocol.connection_lost(None)
        return found

    return asyncio.run(run())


PATHS = {"/echo": _echo, "/deaf": _deaf, "/slow": _slow}


def statuses(said: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


def bodies(said: bytes) -> list[Any]:
    return [json.loads(one) for one in re.findall(rb"\r\n\r\n(\{[^\r]*?\})(?=HTTP/1.1|$)", said)]


@given(st.lists(st.integers(0, 400), max_size=8))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    asked = (
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nblack"
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ngre\r\n2\r\nen\r\n0\r\n\r\n"
        b"\r\nPOST /deaf HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nred" + GET
    )
    places = sorted({min(cut, len(asked)) for cut in cuts} | {0, len(asked)})
    said, is_closed = conversation([asked[begin:end] for begin, end in pairwise(places)])
    assert statuses(said) == [200, 200, 200, 200]
    assert [one["body"] for one in bodies(said)] == ["black", "green", ""]
    assert not is_closed


NO_REQUESTS = {
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "as to a proxy": b"GET http://evil/echo HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": b"GET /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "other lengths": b"GET /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "less than nothing": b"GET /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "an unknown encoding": b"GET /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, identity\r\n\r\n",
    "a space before the colon": b"GET /echo HTTP/1.1\r\nHost : x\r\n\r\n",
    "a folded line": b"GET /echo HTTP/1.1\r\nHost: x\r\na: b\r\n c\r\n\r\n",
    "a zero": b"GET /echo HTTP/1.1\r\nHost: x\r\na: \x00\r\n\r\n",
    "bare line feeds": b"GET /echo HTTP/1.1\nHost: x\n\n",
    "no ascii": b"GET /echo\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a long field": b"GET /echo HTTP/1.1\r\nHost: x\r\na: " + b"x" * MOST_BYTES + b"\r\n\r\n",
    "one that does not end": b"GET /echo HTTP/1.1\r\nHost: x\r\na: " + b"x" * MOST_BYTES,
    "a long path": b"GET /" + b"x" * MOST_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many fields": b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 1_000 + b"\r\n",
}


@table("name", NO_REQUESTS)
@table("step", [7, 1 << 20])
def test_what_is_no_request_is_refused(name: str, step: int) -> None:
    asked = NO_REQUESTS[name]
    said, is_closed = conversation([asked[at : at + step] for at in range(0, len(asked), step)])
    assert statuses(said) == [400]
    assert b'"bad_http"' in said
    assert is_closed


@pytest.mark.parametrize(
    "behind", [b"\x00\x00\x00\x00\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"], ids=["zeros", "no host"]
)
def test_garbage_behind_a_request_does_not_disturb_its_answer(behind: bytes) -> None:
    said, is_closed = conversation([GET.replace(b"echo", b"slow"), behind, GET])
    assert statuses(said) == [200]
    assert said.endswith(b"\r\n\r\nslow")
    assert is_closed


def test_what_waits_behind_an_answer_before_garbage_is_answered() -> None:
    said, is_closed = conversation([GET.replace(b"echo", b"slow") + GET, b"\x00\x00\r\n\r\n"])
    assert statuses(said) == [200, 200, 400]
    assert is_closed


def test_only_few_requests_are_kept_at_a_time() -> None:
    waiting: list[int] = []

    class Counting(Protocol):
        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            waiting.append(len(self.pipeline))

    said, is_closed = conversation([GET * 1_000, b"\r\n" + GET], Counting)
    assert statuses(said) == [200] * 1_001
    assert not is_closed
    assert max(waiting) <= 4_096 // len(GET) + 1


def test_garbage_in_a_body_ends_its_request() -> None:
    begun = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    said, is_closed = conversation([begun, b"no number\r\n"])
    assert statuses(said) == [400]
    assert b'"bad_http"' in said
    assert is_closed


def test_fields_behind_a_body_are_not_those_of_the_request() -> None:
    asked = (
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\nX-Forwarded-User: root\r\n\r\n"
    )
    for parts in ([asked], [asked[at : at + 1] for at in range(len(asked))]):
        said, is_closed = conversation([*parts, GET])
        assert [one["names"] for one in bodies(said)] == [["host", "transfer-encoding"], ["host"]]
        assert not is_closed


@pytest.mark.parametrize("field", [b"a: b\r\n", b"x"], ids=["many", "one"])
def test_fields_behind_a_body_end(field: bytes) -> None:
    begun = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: "
    said, is_closed = conversation([begun, *[field * 10] * 1_000])
    assert statuses(said) == [400]
    assert is_closed


@pytest.mark.parametrize(
    "wish",
    [b"Upgrade: h2c\r\nConnection: Upgrade", b"Upgrade: websocket\r\nConnection: Upgrade"],
    ids=["http/2", "websocket"],
)
@pytest.mark.parametrize(
    "framed",
    [
        b"\r\n",
        b"Content-Length: 0\r\n\r\n",
        b"Content-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ],
    ids=["no body", "an empty body", "a body", "a body in chunks"],
)
def test_a_wish_for_another_protocol_is_passed_over(wish: bytes, framed: bytes) -> None:
    asked = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + wish + b"\r\n" + framed
    said_at_once, _ = conversation([asked * 2 + GET])
    for parts in (
        [asked, asked, GET],
        [(asked * 2 + GET)[at : at + 1] for at in range(len(asked * 2 + GET))],
    ):
        said, is_closed = conversation(parts)
        assert [one["body"] for one in bodies(said)] == ["abc" if b"abc" in framed else ""] * 2 + [""]
        assert said == said_at_once
        assert not is_closed


def test_a_body_behind_such_a_wish_is_no_request() -> None:
    asked = (
        b"POST /deaf HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: %d\r\n\r\n"
    )
    said, _ = conversation([asked % len(GET) + GET])
    assert statuses(said) == [200]
    assert said.endswith(b"tea")


def test_behind_the_last_request_there_is_none() -> None:
    said, is_closed = conversation([GET.replace(b"Host: x", b"Host: x\r\nConnection: close") + GET])
    assert statuses(said) == [200]
    assert is_closed


def test_leave_to_write_is_given_to_who_waits_for_it() -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    said, _ = conversation([head, b"", b"abc"])
    assert statuses(said) == [100, 200]
    assert bodies(said)[0]["body"] == "abc"


def test_methods_that_no_path_has() -> None:
    for method in (b"TRACE", b"QUERY", b"PROPFIND", b"DELETE"):
        said, is_closed = conversation([GET.replace(b"GET", method)])
        assert statuses(said) == [405]
        assert not is_closed
