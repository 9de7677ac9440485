"""A FastAPI application whose users make reminders; Tickwheel keeps them, and calls it when they are due. Run: python
examples/fastapi_reminders.py (needs pip install 'tickwheel[web]', pip install 'tickwheel[push]', and
pip install fastapi standardwebhooks)

Broker and `tickwheel push` are started here; usually they are `tickwheel serve` and `tickwheel push`, as services.
"""

import json
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict
from urllib.error import HTTPError
from urllib.request import Request as Asked
from urllib.request import urlopen

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import AwareDatetime, BaseModel
from standardwebhooks import Webhook, WebhookVerificationError

import tickwheel
import tickwheel.web

TOPIC = "reminders"
PATIENCE_S = 60


class Reminder(BaseModel):
    """What a user sends."""

    text: str
    at: AwareDatetime


class State(TypedDict):
    """What the handlers use."""

    client: tickwheel.Client


def application(broker: str, own_url: str, secret: str) -> FastAPI:
    """Reminders below /reminders, what has been said at /said, and the broker's own API below /tickwheel."""
    api = tickwheel.web.app(broker)
    said: dict[str, str] = {}  # a database, in earnest

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        # A mounted application's lifespan does not run by itself.
        async with api.router.lifespan_context(api), tickwheel.Client(broker) as client:
            await client.set_endpoint("app", topic=TOPIC, url=f"{own_url}/due", secrets=[secret])
            yield {"client": client}

    app = FastAPI(lifespan=lifespan)
    app.mount("/tickwheel", api)

    @app.put("/reminders/{name}", status_code=201)
    async def remember(name: str, wanted: Reminder, request: Request, response: Response) -> dict[str, bool]:
        client: tickwheel.Client = request.state.client
        sent = await client.send(TOPIC, wanted.text.encode(), key=name, deliver_at=wanted.at)
        if sent.duplicate:
            response.status_code = 200
        return {"is_new": not sent.duplicate}

    @app.delete("/reminders/{name}")
    async def forget(name: str, request: Request) -> dict[str, str]:
        client: tickwheel.Client = request.state.client
        result = await client.cancel(TOPIC, key=name)
        if result != "cancelled":
            raise HTTPException(404 if result == "not_found" else 409, result)
        return {"result": result}

    @app.post("/due", status_code=204)
    async def remind(request: Request) -> None:
        body = await request.body()
        try:
            Webhook(secret).verify(body, dict(request.headers), json_parse=False)
        except WebhookVerificationError:
            raise HTTPException(401, "This was not signed by Tickwheel.") from None
        said.setdefault(request.headers["webhook-id"], body.decode())  # it may come twice

    @app.get("/said")
    async def what_was_said() -> list[str]:
        return list(said.values())

    return app


def ask(method: str, url: str, fields: dict[str, Any] | None = None) -> Any:
    """One request; of one that was refused, its status."""
    body = None if fields is None else json.dumps(fields).encode()
    try:
        with urlopen(Asked(url, body, {"Content-Type": "application/json"}, method=method)) as answer:
            return json.load(answer)
    except HTTPError as error:
        error.close()
        return error.code


def heard(site: str, count: int) -> list[str]:
    """What was said, as soon as there are so many."""
    deadline = time.monotonic() + PATIENCE_S
    while len(said := ask("GET", f"{site}/said")) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return list(said)


def use(site: str) -> None:
    """Three reminders: one is forgotten, one is moved with the broker's API."""
    for name, delay in (
        ("tea", timedelta(seconds=0.5)),
        ("bed", timedelta(hours=1)),
        ("dentist", timedelta(days=9)),
    ):
        at = datetime.now(UTC) + delay
        ask("PUT", f"{site}/reminders/{name}", {"text": f"it is time: {name}", "at": at.isoformat()})
    print("bed:", ask("DELETE", f"{site}/reminders/bed")["result"], ask("DELETE", f"{site}/reminders/bed"))
    heard(site, 1)  # tea: reminders that are due together may come in any order
    print(
        "dentist:",
        ask("PATCH", f"{site}/tickwheel/v1/topics/{TOPIC}/keys/dentist", {"delay": "1s"})["result"],
    )
    print("naive:", ask("PUT", f"{site}/reminders/x", {"text": "x", "at": "2031-05-01T09:00:00"}))
    print("said:", ", ".join(heard(site, 2)))
    print("forged:", ask("POST", f"{site}/due", {"text": "pay me"}))


def main() -> None:
    """A broker, the application, who carries messages to it, and its user."""
    secret = "whsec_" + b64encode(secrets.token_bytes(24)).decode()
    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory) as broker,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        port = listener.getsockname()[1]
        site = f"http://127.0.0.1:{port}"
        server = uvicorn.Server(
            uvicorn.Config(application(broker.url, site, secret), log_level="error", ws="none", lifespan="on")
        )
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        # By itself it calls public addresses only, with https; this machine has to be allowed.
        allow = ["--allow-http", "--allow-network", "127.0.0.0/8", "--port", str(port)]
        command = [sys.executable, "-m", "tickwheel", "--url", broker.url, "push", *allow]
        try:
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as push:
                try:
                    use(site)
                finally:
                    push.terminate()
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
