"""ASGI applications without a server: lifespans as servers run them, and requests."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.unit.tickwheel.both import on_both
from tickwheel.errors import BadArgument, ShuttingDown
from tickwheel.testing import broker
from tickwheel.testing.asgi import Receive, Scope, Send
from tickwheel.testing.http import ask, started, web


async def told(request: Request) -> Response:
    return JSONResponse(
        {
            "url": str(request.url),
            "path": request.url.path,
            "type": request.headers.get("content-type"),
            "body": (await request.body()).decode(),
        }
    )


@on_both
async def test_a_request_and_its_answer() -> None:
    app = Starlette(routes=[Route("/some/{name}", told, methods=["GET", "POST"])])
    answered = await ask(app, "POST", "/some/%C3%A9?a=b", {"x": 1}, headers={"Host": "shop.example"})
    assert (answered.status, answered.headers["content-type"]) == (200, "application/json")
    assert answered.json() == {
        "url": "http://shop.example/some/é?a=b",
        "path": "/some/é",
        "type": "application/json",
        "body": '{"x":1}',
    }
    assert (await ask(app, "GET", "/some/a")).json()["body"] == ""
    assert (await ask(app, "GET", "/")).status == 404


async def test_what_an_application_raises_is_raised() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ask(app, "GET", "/")


def with_lifespan(said: list[str], **how: Any) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            said.append(f"request {scope['state']['number']}")
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
            return
        if how.get("knows_none"):
            raise TypeError("no lifespan here")
        said.append((await receive())["type"])
        if how.get("fails_at") == "startup":
            await send({"type": "lifespan.startup.failed", "message": "no database"})
            return
        scope["state"]["number"] = 17
        await send({"type": "lifespan.startup.complete"})
        said.append((await receive())["type"])
        if how.get("fails_at") == "shutdown":
            raise KeyError("at the end")
        await send({"type": "lifespan.shutdown.complete"})

    return app


@on_both
async def test_the_lifespan_is_around_the_requests_and_its_state_in_them() -> None:
    said: list[str] = []
    async with started(with_lifespan(said)) as app:
        assert (await ask(app, "GET", "/")).status == 204
    assert said == ["lifespan.startup", "request 17", "lifespan.shutdown"]


@on_both
async def test_lifespans_that_fail() -> None:
    with pytest.raises(BadArgument, match="no database"):
        async with started(with_lifespan([], fails_at="startup")):
            raise AssertionError
    with pytest.raises(KeyError, match="at the end"):
        async with started(with_lifespan([], fails_at="shutdown")):
            await anyio.lowlevel.checkpoint()
    with pytest.raises(ZeroDivisionError):
        async with started(with_lifespan([])):
            raise ZeroDivisionError


async def test_an_application_without_a_lifespan() -> None:
    said: list[str] = []
    async with started(with_lifespan(said, knows_none=True)):
        assert said == []


@on_both
async def test_the_api_of_a_broker_works_within_its_lifespan() -> None:
    async with broker() as one:
        app = web(one)
        outside = await ask(app, "GET", "/v1/stats")
        assert (outside.status, outside.json()["code"]) == (503, ShuttingDown.code)
        async with started(app) as api:
            sent = await ask(api, "POST", "/v1/topics/t/messages", {"body": {"order": 17}})
            assert sent.status == 201
            poll = {"max": 1, "wait": "10s"}
            received = (await ask(api, "POST", "/v1/topics/t/groups/g/receive", poll)).json()["items"]
            assert [(item["id"], item["body"]) for item in received] == [(sent.json()["id"], {"order": 17})]
