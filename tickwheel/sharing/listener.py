"""A small server of HTTP for who watches: `/metrics`, `/livez` and `/readyz`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import anyio
import h11
from anyio.abc import SocketStream

MOST_HEAD_BYTES: Final = 16 * 1024
REQUEST_S: Final = 10.0
MOST_CONNECTIONS: Final = 64
PAUSE_S: Final = 0.1
_TEXT: Final = "text/plain; charset=utf-8"


class Figures(Protocol):
    """What a process counts."""

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the text, its content type), in the form that the Accept header prefers."""


class Listener:
    """Answers one request a connection. What is no HTTP is hung up on."""

    def __init__(
        self, figures: Figures, is_ready: Callable[[], bool], look: Callable[[], Awaitable[None]]
    ) -> None:
        """``look``: brings what is so at this moment into ``figures``, and into what ``is_ready`` tells."""
        self._figures = figures
        self._is_ready = is_ready
        self._look = look
        self._open = 0

    async def listen(self, listener: anyio.abc.Listener[SocketStream]) -> None:
        """Takes connections until it is cancelled. When there are no files for more, it waits for some."""
        async with listener, anyio.create_task_group() as group:
            while True:
                try:
                    await listener.serve(self.serve, group)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        raise
                    await anyio.sleep(PAUSE_S)

    async def serve(self, stream: SocketStream) -> None:
        """One connection, which ends in time; where there are too many, at once."""
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS:
                await self._converse(stream)
        finally:
            self._open -= 1
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _converse(self, stream: SocketStream) -> None:
        with (
            contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream, h11.ProtocolError),
            anyio.move_on_after(REQUEST_S),
        ):
            connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
            request = await _request(stream, connection)
            await stream.send(_bytes(connection, request, *await self._answer(request)))

    async def _answer(self, request: h11.Request) -> tuple[int, bytes, str]:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            return 405, b"GET and HEAD are possible here.\n", _TEXT
        if path == b"/metrics":
            await self._look()
            accept = dict(request.headers).get(b"accept", b"")
            return 200, *self._figures.text(accept.decode("latin-1"))
        if path == b"/livez":
            return 200, b"ok\n", _TEXT
        if path == b"/readyz":
            await self._look()
            if self._is_ready():
                return 200, b"ok\n", _TEXT
            return 503, b"There is no connection to the broker, or it stops.\n", _TEXT
        return 404, b"There are /metrics, /livez and /readyz.\n", _TEXT


async def _request(stream: SocketStream, connection: h11.Connection) -> h11.Request:
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        connection.receive_data(await stream.receive())


def _bytes(
    connection: h11.Connection, request: h11.Request, status: int, body: bytes, content_type: str
) -> bytes:
    head = h11.Response(
        status_code=status,
        headers=[
            ("content-type", content_type),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ],
    )
    parts = [connection.send(head)]
    if request.method != b"HEAD":
        parts.append(connection.send(h11.Data(data=body)))
    parts.append(connection.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)
