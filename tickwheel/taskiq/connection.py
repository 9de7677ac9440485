"""The client of a Taskiq process, in a task of its own.

Taskiq starts a broker in one task and shuts it down in another one; a client has to be left where it was entered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tickwheel.client.client import Client
from tickwheel.client.options import ClientOptions
from tickwheel.client.url import Urls
from tickwheel.errors import ClientClosed, ConnectionDenied


class Connection:
    """See the module. It belongs to one event loop at a time."""

    def __init__(self, url: Urls | None, options: ClientOptions) -> None:
        """Raises BadArgument, BadUrl, ConfigError."""
        self._url = url
        self._options = options
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._is_over = asyncio.Event()
        self._is_started = False
        self._opening = asyncio.Lock()
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
        self._is_started = True
        async with self._opening:
            if self._client is None:
                await self._open()

    async def _open(self) -> None:
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

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Client]:
        """The client, for one call. One that the broker lets in no more is replaced at the next: by then its token file
        may have another token. Raises ClientClosed, NotConnected, and what the call raises."""
        if self._is_started and self._client is None:
            await self.open()
        try:
            yield self.client
        except ConnectionDenied:
            await self._leave()
            raise

    async def close(self) -> None:
        """Writes what is on its way and closes."""
        self._is_started, self._opening = False, asyncio.Lock()  # the next one may be of another event loop
        await self._leave()

    async def _leave(self) -> None:
        task, self._task, self._client = self._task, None, None
        if task is not None:
            self._is_over.set()
            await task
