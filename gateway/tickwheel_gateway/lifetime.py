"""How a process of the gateway is told to end, and who watches it meanwhile."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import anyio
import trio
from anyio.abc import SocketAttribute

from tickwheel.sharing.listener import Figures, Listener

Place: TypeAlias = tuple[str, int]
"""Host and port."""
_INPUT_BYTES: Final = 4_096

_log = logging.getLogger("tickwheel.gateway")


class Service(Figures, Protocol):
    """What the process does."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to."""

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered."""

    async def look(self) -> None:
        """Brings its figures up to date."""

    def reload(self) -> None:
        """Certificates are to be loaded anew."""

    def stop(self) -> None:
        """It ends as soon as it can in order."""

    def hurry(self) -> None:
        """It was told again, and ends at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Who tells a process what."""

    watched_at: Place | None = None
    """Where to listen for who watches."""
    ends_with_stdin: bool = False
    """When standard input ends, so does the process: who started it is gone."""


Ready: TypeAlias = Callable[[Place | None], None]
"""Is told where who watches may ask."""


async def live(
    service: Service,
    run: Callable[[Callable[[], None]], Awaitable[None]],
    surroundings: Surroundings,
    ready: Ready,
) -> None:
    """``run``, until SIGTERM or Ctrl-C; a second one does not wait for what is on its way. Raises OSError: that of
    ``run``, or it cannot listen for who watches."""
    failed: OSError | None = None
    async with trio.open_nursery() as nursery:
        try:
            place = (
                None
                if surroundings.watched_at is None
                else await _watch(service, surroundings.watched_at, nursery)
            )
            await nursery.start(_end_by_signal, service, nursery.cancel_scope)
            if surroundings.ends_with_stdin:
                nursery.start_soon(_end_with_stdin, service)
            await run(lambda: ready(place))
        except OSError as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


def standard_input() -> trio.SocketStream:
    """Where that is a socket."""
    found = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    return trio.SocketStream(trio.socket.from_stdlib_socket(found))


async def _watch(service: Service, place: Place, nursery: trio.Nursery) -> Place:
    host, port = place
    opened = await anyio.create_tcp_listener(local_host=host, local_port=port)
    watching = Listener(service, lambda: service.is_ready, service.look)
    for one in opened.listeners:
        nursery.start_soon(watching.listen, one)
    return host, int(opened.listeners[0].extra(SocketAttribute.local_address)[1])


async def _end_by_signal(
    service: Service,
    everything: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                service.reload()
            elif service.is_stopping:
                service.hurry()
                everything.cancel()
                return
            else:
                _log.info("ends as soon as the calls that run were answered")
                service.stop()


async def _end_with_stdin(service: Service) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        while await stream.receive_some(_INPUT_BYTES):
            pass
    service.stop()
