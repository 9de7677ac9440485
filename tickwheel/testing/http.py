"""For the tests of programs that use the HTTP API, and of those that are called at times: no network, no waiting.

>>> import anyio
>>> from datetime import timedelta
>>> from tickwheel.testing import broker, http
>>> async def main():
...     async with broker() as b, http.started(http.web(b)) as api, http.push(b) as push:
...         url = {"topic": "reminders", "url": "https://shop.example/"}
...         _ = await http.ask(api, "PUT", "/v1/endpoints/shop", url)
...         _ = await http.ask(api, "POST", "/v1/topics/reminders/messages", {"text": "renew", "delay": "365d"})
...         await push.advance(timedelta(days=365))
...         return [(request.url, request.body) for request in push.requests]
>>> anyio.run(main)
[('https://shop.example/', b'renew')]

`push` is `tickwheel push` itself, with its signatures, retries and circuit breaker, on the clock of the broker; in the
place of the network are ASGI applications of the test (docs/how-to/push.md, "Test your application"). Needs
``pip install 'tickwheel[web]'`` for `web`, and ``pip install 'tickwheel[push]'`` for `push`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import tickwheel.web
from tickwheel.errors import PushMissing
from tickwheel.testing import TestBroker
from tickwheel.testing.asgi import Answered, Application, ask, started

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tickwheel.testing.applications import Answering, Posted
    from tickwheel.testing.push import Push, SyncPush

__all__ = [
    "Answered",
    "Answering",
    "Application",
    "Posted",
    "Push",
    "SyncPush",
    "ask",
    "push",
    "started",
    "sync_push",
    "web",
]

_HOMES: Final = {"Answering": "applications", "Posted": "applications", "Push": "push", "SyncPush": "push"}
"""Types that are there when the extra is."""

PATIENCE: Final = timedelta(seconds=5)
_PUSH_EXTRA: Final = ("h11", "httpcore2", "prometheus_client")


def web(broker: TestBroker) -> Starlette:
    """The HTTP API of a broker, as an ASGI application that works within its lifespan (``started``, or a client that
    runs lifespans), under any name. Raises WebMissing."""
    return tickwheel.web.app(broker.url, hosts=["*"])


def push(
    broker: TestBroker,
    answering: Answering = None,
    *,
    patience: timedelta = PATIENCE,
    real_timestamps: bool = False,
) -> Push:
    """`tickwheel push` in the caller's event loop, for ``async with``. Nothing is sent over a network.

    ``answering``: an ASGI application that stands for all hosts, or a dict of applications by the hosts that they stand
    for (``"shop.example"``, ``"http://shop.example:8080"``, ``"*"``); None: everything is answered 204. What
    `tickwheel push` does not call without being allowed to, it does not call here, either, unless it is named so. The
    lifespan of an application is the caller's business (``started``).

    An application that has not answered for so long in real time as ``patience`` says may be one that hangs: then the
    clock is moved on, and its request ends when the endpoint's timeout has passed by the clock. ``real_timestamps``:
    requests are signed with the time of the machine, for receivers that compare it with theirs. Raises PushMissing,
    BadArgument.
    """
    return _push(broker, answering, patience, real_timestamps=real_timestamps, runs_lifespans=False)


def sync_push(
    broker: TestBroker,
    answering: Answering = None,
    *,
    patience: timedelta = PATIENCE,
    real_timestamps: bool = False,
) -> SyncPush:
    """As ``push``, for ``with``: it runs in a thread of its own (asyncio), and so do the applications, within their
    lifespans."""
    running = _push(broker, answering, patience, real_timestamps=real_timestamps, runs_lifespans=True)
    from tickwheel.testing.push import SyncPush

    return SyncPush(running)


@contextmanager
def _naming_the_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _PUSH_EXTRA:
            raise
        raise PushMissing from error


if not TYPE_CHECKING:  # else type checkers would take any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _naming_the_extra():
            return getattr(importlib.import_module(f"tickwheel.testing.{_HOMES[name]}"), name)


def _push(
    broker: TestBroker,
    answering: Answering,
    patience: timedelta,
    *,
    real_timestamps: bool,
    runs_lifespans: bool,
) -> Push:
    with _naming_the_extra():
        from tickwheel.testing.applications import Applications
        from tickwheel.testing.push import Push
    return Push(
        broker.client(name="push"), broker.clock, broker.is_still, Applications(answering), patience,
        real_timestamps=real_timestamps, runs_lifespans=runs_lifespans,
    )  # fmt: skip
