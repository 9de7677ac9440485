"""A stream of the broker's figures: all of them, then each second those that have changed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import anyio
import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tickwheel.errors import TickwheelError
from tickwheel.stats import Figures
from tickwheel_web.ending import WRITE_S, while_there
from tickwheel_web.endpoints import Asked
from tickwheel_web.monitoring.shapes import FigureChanges, topic_numbers
from tickwheel_web.problems import encode as encode_problem
from tickwheel_web.problems import problem_of
from tickwheel_web.shapes import EVENTS, encode

EVERY_S: Final = 1.0
_BEAT_EVERY: Final = 15
"""So many times without a change, and the client hears that the stream lives."""

_NOTHING: Final = object()

Numbers: TypeAlias = dict[str, Any]
"""Of a group of figures, by name."""


async def watch_figures(asked: Asked) -> Response:
    """Until somebody ends it."""
    if asked.request.method == "HEAD":
        return Response(media_type=EVENTS)
    with ExitStack() as held:
        held.enter_context(asked.shared.limits.streams.hold(asked.caller))
        first = await asked.client.figures()  # and allowed
        return _Watch(asked, first, held.pop_all())


class _Watch(Response):
    """One stream. What fails is its last event."""

    def __init__(self, asked: Asked, first: Figures, held: ExitStack) -> None:
        super().__init__(media_type=EVENTS, headers={"X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._asked = asked
        self._first = first
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        with self._held, self._asked.shared.ending.ends():
            try:
                async with while_there(receive):
                    await self._run(send)
            except (ClientDisconnect, OSError):
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run(self, send: Send) -> None:
        """Until it is cancelled, or the broker refuses to go on. Raises OSError when it is not read."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        known = _all(self._first)
        await _write(send, _event(_changes(self._first, {}, known)))
        quiet = 0
        while True:
            await anyio.sleep(EVERY_S)
            try:
                found = await self._asked.client.figures()
            except TickwheelError as error:
                await _write(send, b"event: problem\ndata: " + encode_problem(problem_of(error)) + b"\n")
                return
            now = _all(found)
            quiet = 0 if now != known else quiet + 1
            if now != known:
                await _write(send, _event(_changes(found, known, now)))
            elif quiet % _BEAT_EVERY == 0:
                await _write(send, b":\n\n")
            known = now


async def _write(send: Send, data: bytes) -> None:
    """Raises TimeoutError when nothing is read for too long."""
    with anyio.fail_after(WRITE_S):
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _event(changes: FigureChanges) -> bytes:
    return b"data: " + encode(changes) + b"\n"


def _all(found: Figures) -> dict[str, Numbers]:
    """What there is to compare."""
    return {
        "counters": found.counters,
        "gauges": found.gauges,
        "topics": {one.name: msgspec.to_builtins(topic_numbers(one)) for one in found.topics},
    }


def _changes(found: Figures, known: dict[str, Numbers], now: dict[str, Numbers]) -> FigureChanges:
    """What is new or has another value, by the names of the figures."""
    changed = {
        part: {
            name: value for name, value in values.items() if value != known.get(part, {}).get(name, _NOTHING)
        }
        for part, values in now.items()
    }
    gone = [name for name in known.get("topics", {}) if name not in now["topics"]]
    return FigureChanges(found.now, gone=gone, **changed)
