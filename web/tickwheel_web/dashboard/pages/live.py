"""The stream of figures that an open tab has: once a second, and only what has changed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import anyio
import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tickwheel.errors import TickwheelError
from tickwheel_web.dashboard.figures.live import texts
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.ending import WRITE_S, while_there
from tickwheel_web.shapes import EVENTS

EVERY_S: Final = 1.0
_BEAT_EVERY: Final = 15


async def live(viewed: Viewed) -> Response:
    """Until the tab is closed or hidden, or the login ends."""
    if viewed.request.method == "HEAD":
        return Response(media_type=EVENTS)
    with ExitStack() as held:
        held.enter_context(viewed.site.tabs.hold(viewed.caller))
        now, before = await viewed.site.recent.live(viewed.client, viewed.token)  # and allowed
        return _Live(viewed, texts(now, before), held.pop_all())


class _Live(Response):
    """One stream."""

    def __init__(self, viewed: Viewed, first: dict[str, str], held: ExitStack) -> None:
        super().__init__(media_type=EVENTS, headers={**HEADERS, "X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._viewed = viewed
        self._first = first
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        with self._held, self._viewed.site.ending.ends():
            try:
                async with while_there(receive):
                    await self._run(send)
            except (ClientDisconnect, OSError):
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run(self, send: Send) -> None:
        """Until it is cancelled, or the broker or the login says that it is over. Raises OSError."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        known = self._first
        await _write(send, known)
        quiet = 0
        while self._is_logged_in():
            await anyio.sleep(EVERY_S)
            try:
                now, before = await self._viewed.site.recent.live(self._viewed.client, self._viewed.token)
            except TickwheelError:
                return  # the browser asks again, and is told then
            found = texts(now, before)
            changed = {name: text for name, text in found.items() if text != known[name]}
            quiet = 0 if changed else quiet + 1
            if changed or quiet % _BEAT_EVERY == 0:
                await _write(send, changed)
            known = found

    def _is_logged_in(self) -> bool:
        """An open tab that is looked at is one that is in use."""
        viewed = self._viewed
        return viewed.login is None or viewed.site.logins.use(viewed.login)


async def _write(send: Send, changed: dict[str, str]) -> None:
    """Raises TimeoutError when nothing is read for too long."""
    with anyio.fail_after(WRITE_S):
        body = b"data: " + msgspec.json.encode(changed) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
