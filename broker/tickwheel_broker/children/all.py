"""All processes beside the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec
import trio

from tickwheel_broker.children.beside import Beside, check_installed, open_in_time
from tickwheel_broker.config.fields import flight_flags, rocketmq_flags, web_flags
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.net.listeners import hold_flight_place, open_rocketmq_listeners, open_web_listeners

_WEB_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")
_ROCKETMQ_PACKAGES: Final = ("google.protobuf", "h11", "h2", "prometheus_client")
_FLIGHT_PACKAGES: Final = ("pyarrow",)


class Children:
    """They begin, are told and end together."""

    def __init__(self, web: Beside, rocketmq: Beside, flight: Beside, settings: Settings) -> None:
        """`settings`: those that were asked for, with the ports that the system chose."""
        self.web = web
        self.rocketmq = rocketmq
        self.flight = flight
        self.settings = settings

    @property
    def urls(self) -> dict[str, list[str]]:
        """Where they are reached, by their settings; without those that are not there."""
        found = {"web": self.web.urls, "rocketmq": self.rocketmq.urls, "flight": self.flight.urls}
        return {name: urls for name, urls in found.items() if urls}

    async def run(self, broker_urls: Sequence[str], wait_stopped: Callable[[], Awaitable[None]]) -> None:
        """Until `wait_stopped` returns and they have ended."""
        async with trio.open_nursery() as nursery:
            for one in self._each:
                nursery.start_soon(one.run, broker_urls, wait_stopped)

    def reload(self) -> None:
        """Certificates are to be loaded anew."""
        for one in self._each:
            one.reload()

    def close(self) -> None:
        """Stop listening."""
        for one in self._each:
            one.close()

    @property
    def _each(self) -> tuple[Beside, ...]:
        return self.web, self.rocketmq, self.flight


async def open_children(settings: Settings) -> Children:
    """What the settings ask for. Raises ServerExtraMissing, AddressInUse, CannotListen; then nothing is left open."""
    with ExitStack() as opened:
        web = await _open_web(settings)
        opened.callback(web.close)
        rocketmq = await _open_rocketmq(settings)
        opened.callback(rocketmq.close)
        children = Children(web, rocketmq, *await _open_flight(settings))
        opened.pop_all()
        return children


async def _open_web(settings: Settings) -> Beside:
    listeners = []
    if settings.web:
        check_installed("web", _WEB_PACKAGES, "web")
        listeners = await open_in_time(open_web_listeners, settings)
    return Beside(command="web", flags=web_flags(), settings=settings, listeners=listeners)


async def _open_rocketmq(settings: Settings) -> Beside:
    listeners = []
    if settings.rocketmq:
        check_installed("rocketmq", _ROCKETMQ_PACKAGES, "rocketmq")
        listeners = await open_in_time(open_rocketmq_listeners, settings)
    return Beside(command="gateway", flags=rocketmq_flags(), settings=settings, listeners=listeners)


async def _open_flight(settings: Settings) -> tuple[Beside, Settings]:
    """The process, and the settings with its port: Arrow Flight listens by itself."""
    listeners = []
    if settings.flight:
        check_installed("flight", _FLIGHT_PACKAGES, "flight")
        listeners = await open_in_time(hold_flight_place, settings)
        settings = msgspec.structs.replace(settings, flight_listen=listeners[0].url.rpartition("//")[2])
    flight = Beside(
        command="flight", flags=flight_flags(), settings=settings, listeners=listeners, gets_sockets=False
    )
    return flight, settings
