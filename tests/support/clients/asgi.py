"""Requests to an ASGI application in this process, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import trio
from starlette.types import ASGIApp, Message

HOST: Final = "127.0.0.1:7413"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body; each problem is one in its headers, too."""
        is_problem = self.headers["content-type"] == "application/problem+json"
        assert is_problem == (self.status >= 400)
        found = msgspec.json.decode(self.body)
        if is_problem:
            assert found["status"] == self.status
            assert {"type", "title", "detail", "code", "retryable", "instance"} <= set(found)
        return found

    @property
    def code(self) -> str:
        """Of a problem."""
        return str(self.json["code"])


class Caller:
    """Makes requests, with one token or none."""

    def __init__(
        self, app: ASGIApp, token: str = "", address: str = "127.0.0.1", scheme: str = "http"
    ) -> None:
        self._app = app
        self._token = token
        self._address = address
        self._scheme = scheme

    def with_token(self, token: str) -> Caller:
        """The same application, asked by somebody else."""
        return Caller(self._app, token, self._address, self._scheme)

    def at(self, address: str) -> Caller:
        """The same application, asked from another address."""
        return Caller(self._app, self._token, address, self._scheme)

    async def __call__(
        self,
        method: str,
        target: str,
        json: Any = None,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        leaves: trio.Event | None = None,
        hears: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """One request; ``json`` is its body as an object. With ``leaves`` its client goes away then. ``hears`` is
        called with each part of the answer's body. An empty Host is left out."""
        named = {"host": HOST} | {name.lower(): value for name, value in (headers or {}).items()}
        if not named["host"]:
            del named["host"]
        if json is not None:
            body = msgspec.json.encode(json)
            named.setdefault("content-type", "application/json")
        if self._token:
            named.setdefault("authorization", f"Bearer {self._token}")
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": self._scheme,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
            "client": (self._address, 1),
            "server": ("127.0.0.1", 7413),
        }
        rest, gone = [body], trio.Event() if leaves is None else leaves
        answered: list[Message] = []

        async def receive() -> Message:
            if rest:
                return {"type": "http.request", "body": rest.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            answered.append(message)
            if hears is not None and "body" in message:
                hears(message["body"])

        await self._app(scope, receive, send)
        start, *parts = answered
        shown = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], shown, b"".join(part.get("body", b"") for part in parts))
