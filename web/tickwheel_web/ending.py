"""What waits for long ends when the server does, or when who asked goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import Receive

WRITE_S: Final = 30.0
"""So long the client may take to read an answer."""
OWN_PATIENCE: Final = "own_patience"
"""In the ``state`` of a request: its answer itself sees to it that it is read, and the server does not."""


class Ending:
    """The end of the server, of which those hear that wait.

    A server waits for the requests that it has begun to answer, and would wait for these, too.
    """

    def __init__(self) -> None:
        self._waiting: set[anyio.CancelScope] = set()
        self._has_come = False

    @contextmanager
    def ends(self) -> Iterator[anyio.CancelScope]:
        """What is awaited in this block is cancelled at the end."""
        with anyio.CancelScope() as scope:
            if self._has_come:
                scope.cancel()
            self._waiting.add(scope)
            try:
                yield scope
            finally:
                self._waiting.discard(scope)

    def come(self) -> None:
        """Now. To be called in the server's loop."""
        self._has_come = True
        for scope in self._waiting:
            scope.cancel()


@asynccontextmanager
async def while_there(receive: Receive) -> AsyncIterator[None]:
    """Cancels its block when the client goes. Raises ClientDisconnect then, also when the block was just done."""
    is_gone = False
    failed: Exception | None = None

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            yield
        except Exception as error:  # raised below, in no group of errors
            failed = error
        group.cancel_scope.cancel()
    if is_gone:
        raise ClientDisconnect
    if failed is not None:
        raise failed
