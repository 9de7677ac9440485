"""All processes beside the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import trio

from tickwheel_broker.children.beside import Beside
from tickwheel_broker.children.rocketmq import open_rocketmq
from tickwheel_broker.children.web import open_web
from tickwheel_broker.config.settings import Settings


class Children:
    """They begin, are told and end together."""

    def __init__(self, web: Beside, rocketmq: Beside) -> None:
        self.web = web
        self.rocketmq = rocketmq

    @property
    def urls(self) -> dict[str, list[str]]:
        """Where they are reached, by their settings; without those that are not there."""
        found = {"web": self.web.urls, "rocketmq": self.rocketmq.urls}
        return {name: urls for name, urls in found.items() if urls}

    async def run(self, broker_urls: Sequence[str], wait_stopped: Callable[[], Awaitable[None]]) -> None:
        """Until `wait_stopped` returns and they have ended."""
        async with trio.open_nursery() as nursery:
            for one in (self.web, self.rocketmq):
                nursery.start_soon(one.run, broker_urls, wait_stopped)

    def reload(self) -> None:
        """Certificates are to be loaded anew."""
        self.web.reload()
        self.rocketmq.reload()

    def close(self) -> None:
        """Stop listening."""
        self.web.close()
        self.rocketmq.close()


async def open_children(settings: Settings) -> Children:
    """What the settings ask for. Raises ServerExtraMissing, AddressInUse, CannotListen; then nothing is left open."""
    with ExitStack() as opened:
        web = await open_web(settings)
        opened.callback(web.close)
        children = Children(web, await open_rocketmq(settings))
        opened.pop_all()
        return children
