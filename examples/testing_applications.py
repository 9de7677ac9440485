"""The test of a shop that schedules requests over HTTP and is called at their times: no network, no waiting.

Run: python examples/testing_applications.py (needs pip install 'tickwheel[web]' and pip install 'tickwheel[push]')

With pytest the fixtures `tickwheel_broker` and `tickwheel_push` begin and end all of it.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tickwheel.testing import broker, http

START = datetime(2031, 5, 1, 9, tzinfo=UTC)


def shop(api: http.Application) -> Starlette:
    """Who orders is reminded to pay after two weeks, and after four weeks the order ends. POST /orders, /paid, /hooks;
    an application of any framework will do. In production `api` is asked with a client of HTTP."""
    mails: list[str] = []
    told = 0

    async def later(name: str, what: str, delay: str) -> None:
        message = {"body": {"name": name, "what": what}, "key": f"{name}-{what}", "delay": delay}
        answered = await http.ask(api, "POST", "/v1/topics/orders/messages", message)
        assert answered.status == 201

    async def order(request: Request) -> Response:
        name = (await request.json())["name"]
        await later(name, "remind", "14d")
        await later(name, "end", "28d")
        return JSONResponse({"name": name}, 201)

    async def pay(request: Request) -> Response:
        name = (await request.json())["name"]
        for what in ("remind", "end"):
            await http.ask(api, "DELETE", f"/v1/topics/orders/keys/{name}-{what}")
        return Response(status_code=204)

    async def hook(request: Request) -> Response:
        nonlocal told
        told += 1
        if told == 1:
            return Response("the mail server is away", 503)
        event: dict[str, str] = await request.json()
        mails.append(f"{event['name']}: {event['what']}")
        return Response(status_code=204)

    async def sent(request: Request) -> Response:
        return JSONResponse(mails)

    rows: list[tuple[str, Any, str]] = [
        ("/orders", order, "POST"),
        ("/paid", pay, "POST"),
        ("/hooks", hook, "POST"),
        ("/mails", sent, "GET"),
    ]
    return Starlette(routes=[Route(path, handler, methods=[method]) for path, handler, method in rows])


async def test_orders() -> None:
    """Two orders, one of which is paid in time."""
    async with (
        broker(start=START) as one,
        http.started(http.web(one)) as api,
        http.push(one, {"shop.example": (app := shop(api))}) as push,
    ):
        endpoint = {"topic": "orders", "url": "https://shop.example/hooks"}
        secret = (await http.ask(api, "PUT", "/v1/endpoints/shop", endpoint)).json()["secrets"][0]
        for name in ("ada", "bob"):
            await http.ask(app, "POST", "/orders", {"name": name})
        await push.advance(timedelta(days=13))
        await http.ask(app, "POST", "/paid", {"name": "bob"})
        await push.advance(timedelta(days=16))

        for request in push.requests:
            print(request.at - START, request.json(), request.status)
        assert all(request.is_signed_with(secret) for request in push.requests)
        print((await http.ask(app, "GET", "/mails")).json())


if __name__ == "__main__":
    anyio.run(test_orders)
