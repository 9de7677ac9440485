"""The client of a Taskiq process, in a task of its own.

Taskiq starts a broker in one task and shuts it down in another one; a client has to be left where it was entered.
"""

from __future__ import annotations

import asyncio

from tickwheel.client.client import Client
from tickwheel.client.options import ClientOptions
from tickwheel.client.url import Urls
from tickwheel.errors import ClientClosed


class Connection:
    """See the module. It belongs to one event loop at a time."""

    def __init__(self, url: Urls | None, options: ClientOptions) -> None:
        """Raises BadArgument, BadUrl, ConfigError."""
        self._url = url
        self._options = options
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._is_over = asyncio.Event()
        Client(url, **options)  # what is wrong with them is told now

    @property
    def client(self) -> Client:
        """The open client. Raises ClientClosed."""
        if self._client is None:
            raise ClientClosed(
                "The broker was not started.",
                advice="Call `await broker.startup()` in this event loop first.",
            )
        return self._client

    async def open(self) -> None:
        """Connects, if it is not open yet. Raises NotConnected, and what opening a client raises."""
        if self._client is not None:
            return
        self._is_over = asyncio.Event()
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(opened), name="tickwheel-client")
        try:
            self._client = await asyncio.shield(opened)
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    async def _keep(self, opened: asyncio.Future[Client]) -> None:
        try:
            async with Client(self._url, **self._options) as client:
                opened.set_result(client)
                await self._is_over.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def close(self) -> None:
        """Writes what is on its way and closes."""
        task, self._task, self._client = self._task, None, None
        if task is not None:
            self._is_over.set()
            await task
