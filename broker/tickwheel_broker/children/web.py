"""`tickwheel web` beside the broker, for who has one machine: it gets the sockets from here, so that requests only wait
while it is started anew.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from tickwheel_broker.children.process import Child
from tickwheel_broker.config.example import plain_value
from tickwheel_broker.config.settings import FIELDS, Settings, web_flags
from tickwheel_broker.errors import AddressInUse, ServerExtraMissing
from tickwheel_broker.net.listeners import WebListener, open_web_listeners

TAKEN_S: Final = 3.0
"""When a broker was killed, its process may hold the addresses for a moment more."""

_RETRY_S: Final = 0.05
_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")


class WebProcess:
    """The process, and where it listens; none if it is not wanted."""

    def __init__(self, settings: Settings, listeners: Sequence[WebListener]) -> None:
        self._settings = settings
        self._listeners = listeners
        self._child: Child | None = None

    @property
    def urls(self) -> list[str]:
        """Where it is reached."""
        return [listener.url for listener in self._listeners]

    async def run(self, broker_urls: Sequence[str], wait_stopped: Callable[[], Awaitable[None]]) -> None:
        """See `Child`. It reaches the broker by its Unix socket, where whom it names is believed."""
        if not self._listeners:
            return
        numbers = [listener.socket.fileno() for listener in self._listeners]
        (url,) = (url for url in broker_urls if url.startswith("tickwheel+unix://"))
        self._child = Child("web", ["--url", url, "web", *_options(self._settings, numbers)], numbers)
        await self._child.run(wait_stopped)

    def reload(self) -> None:
        """Certificates are to be loaded anew."""
        if self._child is not None:
            self._child.tell(signal.SIGHUP)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()


async def open_web(settings: Settings) -> WebProcess:
    """What the settings ask for, if anything. Raises ServerExtraMissing, AddressInUse, CannotListen."""
    if not settings.web:
        return WebProcess(settings, [])
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ServerExtraMissing(
                f"web is true, and {package} is not installed.",
                advice="Install it where the broker runs: pip install 'tickwheel[web]'; or set web = false.",
            )
    return WebProcess(settings, await _open(settings))


async def _open(settings: Settings) -> list[WebListener]:
    with trio.move_on_after(TAKEN_S):
        while True:
            try:
                return await open_web_listeners(settings)
            except AddressInUse:
                await trio.sleep(_RETRY_S)
    return await open_web_listeners(settings)


def _options(settings: Settings, descriptors: Sequence[int]) -> list[str]:
    found = ["--ends-with-stdin"]
    found += [f"--listen-fd={number}" for number in descriptors]
    for name, flag in web_flags().items():
        field = FIELDS[name]
        value = plain_value(field, getattr(settings, field.attribute))
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            found.append(f"{flag}={value}")
    return found
