"""A server beside the broker, for who has one machine: it gets its sockets from here, so that requests only wait while
it is started anew, and reaches the broker by its Unix socket.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from tickwheel_broker.children.process import Child
from tickwheel_broker.config.example import arguments
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.errors import AddressInUse, ServerExtraMissing
from tickwheel_broker.net.listeners import OpenSocket

TAKEN_S: Final = 3.0
"""When a broker was killed, its process may hold the addresses for a moment more."""

_RETRY_S: Final = 0.05


class Beside:
    """The process, and where it listens; none if it is not wanted."""

    def __init__(
        self,
        *,
        command: str,
        flags: Mapping[str, str],
        settings: Settings,
        listeners: Sequence[OpenSocket],
        gets_sockets: bool = True,
    ) -> None:
        """``command``: of `tickwheel`. ``flags``: what it is told of the settings, and how. ``gets_sockets``: it is
        given the listeners; else it listens where the settings say."""
        self._command = command
        self._flags = flags
        self._settings = settings
        self._listeners = listeners
        self._gets_sockets = gets_sockets
        self._child: Child | None = None

    @property
    def urls(self) -> list[str]:
        """Where it is reached."""
        return [listener.url for listener in self._listeners]

    async def run(self, broker_urls: Sequence[str], wait_stopped: Callable[[], Awaitable[None]]) -> None:
        """See `Child`."""
        if not self._listeners:
            return
        numbers = [listener.socket.fileno() for listener in self._listeners if self._gets_sockets]
        (url,) = (url for url in broker_urls if url.startswith("tickwheel+unix://"))
        self._child = Child(
            name=self._command,
            command=["--url", url, self._command, *self._options(numbers)],
            descriptors=numbers,
        )
        await self._child.run(wait_stopped)

    def reload(self) -> None:
        """Certificates are to be loaded anew."""
        if self._child is not None:
            self._child.tell(signal.SIGHUP)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()

    def _options(self, descriptors: Sequence[int]) -> list[str]:
        numbers = [f"--listen-fd={number}" for number in descriptors]
        return ["--ends-with-stdin", *numbers, *arguments(self._settings, self._flags)]


def check_installed(setting: str, packages: Sequence[str], extra: str) -> None:
    """Raises ServerExtraMissing if ``setting`` asks for what is not there."""
    for package in packages:
        if not _is_installed(package):
            raise ServerExtraMissing(
                f"{setting} is true, and {package} is not installed.",
                advice=f"Install it where the broker runs: pip install 'tickwheel[{extra}]'; or set {setting} = false.",
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is in
        return False


async def open_in_time(
    listen: Callable[[Settings], Awaitable[list[OpenSocket]]], settings: Settings
) -> list[OpenSocket]:
    """What ``listen`` opens, perhaps a moment later. Raises AddressInUse, CannotListen."""
    with trio.move_on_after(TAKEN_S):
        while True:
            try:
                return await listen(settings)
            except AddressInUse:
                await trio.sleep(_RETRY_S)
    return await listen(settings)
