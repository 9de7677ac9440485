"""Finds work that holds the event loop of `tickwheel web`, which is asyncio's or uvloop's (see `stalls`).

Neither has instruments. So each task is given a coroutine that measures the steps of its own, and what a connection is
told without a task is measured as well: that bytes came, or that it is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import wraps
from typing import Any, Final

import uvicorn

from tests.support.processes.stalls import Meter, tell_in_log, where_of
from tickwheel_web import server

_TOLD: Final = ("connection_made", "data_received", "connection_lost", "resume_writing")
"""What the loop calls of a protocol."""


class Measured(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are measured."""

    def __init__(self, of: Coroutine[Any, Any, Any], meter: Meter) -> None:
        self._of = of
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def send(self, value: Any) -> Any:
        """A step."""
        return self._step(self._of.send, value)

    def throw(self, *error: Any) -> Any:
        """A step that begins with an error."""
        return self._step(self._of.throw, *error)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        self._meter.begin()
        try:
            return step(*given)
        finally:
            self._meter.end(self._of.__qualname__, lambda: where_of(self._of))

    def close(self) -> None:
        """It goes no further."""
        self._of.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._of.__await__()


def watch_web(limit: float) -> None:
    """Write what takes too long in this process to standard error, as a line of the log."""
    meter = Meter(tell_in_log, limit)
    factory_of = uvicorn.Config.get_loop_factory

    def make_task(
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,  # from 3.13 on also whether it begins at once, which none does
    ) -> asyncio.Task[Any]:
        return asyncio.Task(Measured(coroutine, meter), loop=loop, name=name, context=context)

    def get_loop_factory(self: uvicorn.Config) -> Callable[[], asyncio.AbstractEventLoop] | None:
        make = factory_of(self)
        assert make is not None

        def make_watched() -> asyncio.AbstractEventLoop:
            loop = make()
            loop.set_task_factory(make_task)
            meter.start()
            return loop

        return make_watched

    uvicorn.Config.get_loop_factory = get_loop_factory  # type: ignore[method-assign]
    for name in _TOLD:
        setattr(server.Protocol, name, _measured(getattr(server.Protocol, name), meter))


def _measured(told: Callable[..., None], meter: Meter) -> Callable[..., None]:
    """A method of a protocol, which measures itself where the loop calls it, and not another method."""

    @wraps(told)
    def tell(*arguments: Any) -> None:
        is_of_loop = not meter.is_measuring
        if is_of_loop:
            meter.begin()
        try:
            told(*arguments)
        finally:
            if is_of_loop:
                meter.end(told.__qualname__, lambda: "its end")

    return tell
