"""All processes beside the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import trio

from tickwheel_broker.children.beside import Beside
from tickwheel_broker.children.flight import open_flight
from tickwheel_broker.children.rocketmq import open_rocketmq
from tickwheel_broker.children.web import open_web
from tickwheel_broker.config.settings import Settings


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
        web = await open_web(settings)
        opened.callback(web.close)
        rocketmq = await open_rocketmq(settings)
        opened.callback(rocketmq.close)
        children = Children(web, rocketmq, *await open_flight(settings))
        opened.pop_all()
        return children
