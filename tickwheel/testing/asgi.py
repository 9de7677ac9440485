"""ASGI applications without a server: their lifespan, and requests to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import anyio
import msgspec

from tickwheel.protocol.errors import BadArgument

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}
PORT_OF: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as it arrives."""

    method: str
    target: str
    """Path and query."""
    headers: Iterable[tuple[str, str]] = ()
    body: bytes = b""
    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int | None = None

    @property
    def scope(self) -> Scope:
        """As ASGI has it."""
        path, _, query = self.target.partition("?")
        return {
            "type": "http",
            "asgi": _VERSION,
            "http_version": "1.1",
            "method": self.method,
            "scheme": self.scheme,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers],
            "client": ("127.0.0.1", 1),
            "server": (self.host, self.port or PORT_OF[self.scheme]),
        }


@dataclass
class Answered:
    """What an application answers. ``status`` is 0 until it does."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """By names in small letters."""
    body: bytes = b""
    is_complete: bool = False

    def json(self) -> Any:
        """The body."""
        return msgspec.json.decode(self.body)


async def ask(
    app: Application,
    method: str,
    target: str,
    json: object = None,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Answered:
    """One request to an application, and its whole answer. ``json``: the body, as an object. What the application
    raises is raised here."""
    named = {name.lower(): value for name, value in (headers or {}).items()}
    if json is not None:
        body = msgspec.json.encode(json)
        named.setdefault("content-type", "application/json")
    named.setdefault("host", "127.0.0.1")
    named.setdefault("content-length", str(len(body)))
    answered = Answered()
    await carry(app, Asked(method, target, named.items(), body), answered, MOST_ANSWER_BYTES)
    return answered


async def carry(app: Application, asked: Asked, answered: Answered, most_bytes: int) -> None:
    """One request. ``answered`` takes what is answered, as it comes; behind ``most_bytes`` the client goes away. What
    the application raises is raised here."""
    rest, gone = [asked.body], anyio.Event()

    async def receive() -> Message:
        if rest:
            return {"type": "http.request", "body": rest.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {
                bytes(name).decode("latin-1").lower(): bytes(value).decode("latin-1")
                for name, value in message.get("headers", ())
            }
        elif message["type"] == "http.response.body":
            answered.body += message.get("body", b"")
            answered.is_complete = not message.get("more_body", False)
            if answered.is_complete:
                gone.set()
            if len(answered.body) > most_bytes:
                scope.cancel()
        await anyio.lowlevel.checkpoint()

    with anyio.CancelScope() as scope:
        await app(asked.scope, receive, send)


@asynccontextmanager
async def started(app: Application) -> AsyncIterator[Application]:
    """An application within its lifespan, as a server runs it::

        async with started(web(broker)) as api:
            await ask(api, "POST", "/v1/topics/reminders/messages", {"text": "tea", "delay": "30d"})

    What the lifespan leaves in its state is in the state of each request. An application without one is as it was.
    """
    state: dict[str, Any] = {}
    lifespan = _Lifespan(app, state)

    async def running(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {**state, **scope.get("state", {})}}, receive, send)

    failed: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(lifespan.run)
        try:
            await lifespan.reach("startup")
            yield running
            await lifespan.reach("shutdown")
        except Exception as error:  # raised below, in no group of errors
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed


class _Lifespan:
    """The task in which an application hears of its start and its end."""

    def __init__(self, app: Application, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._wanted = {"startup": anyio.Event(), "shutdown": anyio.Event()}
        self._answered = {"startup": anyio.Event(), "shutdown": anyio.Event()}
        self._to_hear = ["shutdown", "startup"]
        self._has_spoken = False
        self._error: Exception | None = None
        self._failure = ""

    async def run(self) -> None:
        """Until it has ended. An application that raises before it says anything knows no lifespan."""
        try:
            await self._app(
                {"type": "lifespan", "asgi": _VERSION, "state": self._state}, self._receive, self._send
            )
        except Exception as error:
            self._error = error
        finally:
            for answered in self._answered.values():
                answered.set()

    async def reach(self, point: str) -> None:
        """``startup`` or ``shutdown``. Raises what the application fails with."""
        self._wanted[point].set()
        await self._answered[point].wait()
        if self._failure:
            raise BadArgument(f"The lifespan of the application failed: {self._failure}") from self._error
        if self._error is not None and self._has_spoken:
            raise self._error

    async def _receive(self) -> Message:
        point = self._to_hear.pop() if self._to_hear else "shutdown"
        await self._wanted[point].wait()
        return {"type": f"lifespan.{point}"}

    async def _send(self, message: Message) -> None:
        self._has_spoken = True
        _, point, result = message["type"].split(".")
        if result == "failed":
            self._failure = message.get("message") or message["type"]
        self._answered[point].set()
