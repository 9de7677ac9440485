"""The client in an event loop: one connection at a time, and the loops that serve it.

Of several nodes one serves. They are tried in turn until one does; after a round in vain there is a back-off.
When a connection breaks, the next one goes on where it ended: see `conversation`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskStatus

from tickwheel.client.conversation import Conversation
from tickwheel.client.link import Link
from tickwheel.client.security import explain_tls
from tickwheel.client.url import Address
from tickwheel.client.waiting.waits import LoopWaits
from tickwheel.protocol.errors import InternalError, NotConnected, TickwheelError

logger = logging.getLogger("tickwheel")

Dial: TypeAlias = Callable[[Address], Awaitable[ByteStream]]

READ_BYTES: Final = 256 * 1024
_LINK_ERRORS = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    TickwheelError,
)


class Session(Conversation):
    """See the module. ``options``: of `Conversation`."""

    def __init__(self, *arguments: Any, dial: Dial, **options: Any) -> None:
        super().__init__(*arguments, waits=LoopWaits(), **options)
        self._dial = dial

    async def wait_connected(self, timeout_s: float) -> None:
        """Waits for the first connection.

        Raises NotConnected with the last reason, or why it can never be.
        """
        with anyio.move_on_after(timeout_s):
            await self._connected.wait()
        self.check_connected()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keeps a connection up until it is cancelled. It never raises: the calls do."""
        task_status.started()
        try:
            while self._terminal is None:
                await self._go_round()
                if self._terminal is None:
                    await anyio.sleep(self._backoff.next_s())
        except Exception as error:
            logger.exception("the client has failed")
            self.close(
                InternalError(f"The client has failed: {error!r}.", advice="Please report this defect.")
            )

    async def drain(self) -> None:
        """See `Conversation`."""
        while (self._outbox or self._leaving) and self.is_connected:
            self._drained = anyio.Event()
            await self._drained.wait()

    async def _go_round(self) -> None:
        """Tries the nodes in turn, until one has served or all have been tried."""
        self.begin_round()
        while self._terminal is None and (address := self.nodes.next()) is not None:
            if await self._connect_and_serve(address):
                return
        self.end_round()

    async def _connect_and_serve(self, address: Address) -> bool:
        """Whether the node served."""
        patience_s, began_at = self.nodes.patience_s, anyio.current_time()
        try:
            with anyio.fail_after(patience_s):
                stream = await self._dial(address)
        except (OSError, TickwheelError) as error:
            logger.debug("no connection to %s: %s", address, error)
            self._not_served(error, is_silent=isinstance(error, TimeoutError))
            return False
        link = Link(self, self.created_topics, anyio.current_time(), anyio.CancelScope())
        if self.nodes.are_several:
            patience_s -= link.opened_at - began_at
        try:
            link.socket = stream.extra(SocketAttribute.raw_socket, None)
            async with stream:
                await self._serve(link, stream, patience_s)
        except _LINK_ERRORS as error:
            link.break_with(error)
        finally:
            self._lost(link)
        return link.ready

    async def _serve(self, link: Link, stream: ByteStream, patience_s: float) -> None:
        async with anyio.create_task_group() as group:
            link.scope = group.cancel_scope
            link.scope.deadline = anyio.current_time() + patience_s

            async def guarded(loop: Callable[[Link, ByteStream], Awaitable[None]]) -> None:
                try:
                    await loop(link, stream)
                except _LINK_ERRORS as error:
                    link.break_with(explain_tls(error, self.nodes.current) or error)
                    group.cancel_scope.cancel()  # the other loop may be waiting for something that never comes

            group.start_soon(guarded, self._read)
            group.start_soon(guarded, self._write)
            group.start_soon(guarded, self._renew)
        if not link.ready and link.broken is None:
            link.is_silent = True
            link.break_with(NotConnected("The broker did not answer the handshake in time."))

    async def _read(self, link: Link, stream: ByteStream) -> None:
        while not (link.draining and not link.pending):
            data = await stream.receive(READ_BYTES)
            link.heard_at = anyio.current_time()
            for event in link.machine.receive_data(data):
                self._handle(link, event)
        raise NotConnected("The broker is stopping.")

    async def _write(self, link: Link, stream: ByteStream) -> None:
        await stream.send(link.machine.hello(*self.introduction()))
        while True:
            frames = self._take(link)
            if frames:
                await stream.send(frames[0] if len(frames) == 1 else b"".join(frames))
                continue
            self._drained.set()
            self._wake = anyio.Event()
            await self._wake.wait()

    async def _renew(self, link: Link, stream: ByteStream) -> None:
        """Renews the leases of what is held, when it is time."""
        while True:
            self._renewal_due = anyio.Event()
            now = anyio.current_time()
            self._renews_at = min((holding.turn(now) for holding in list(self.holdings)), default=math.inf)
            with anyio.move_on_after(self._renews_at - now):
                await self._renewal_due.wait()

    async def watch(self) -> None:
        """Looks at the time again and again."""
        while self._terminal is None:
            self._turned_at = anyio.current_time()
            await anyio.sleep(self.watch_s)
            self.check_time()
