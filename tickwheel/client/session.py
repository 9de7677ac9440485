"""The client in an event loop: one connection at a time, and the loops that serve it.

Of several nodes one serves. They are tried in turn until one does; after a round in vain there is a back-off.
When a connection breaks, the next one goes on where it ended: see `conversation`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskStatus

from tickwheel.client.conversation import FIRST_READ_BYTES, READ_BYTES, Conversation
from tickwheel.client.link import Link
from tickwheel.client.plain_socket import PlainSocket
from tickwheel.client.security import explain_tls
from tickwheel.client.url import Address
from tickwheel.client.waiting.waits import LoopWaits
from tickwheel.protocol.errors import InternalError, NotConnected, TickwheelError

logger = logging.getLogger("tickwheel")

Dial: TypeAlias = Callable[[Address], Awaitable[ByteStream]]

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
        self._idle_socket: PlainSocket | None = None
        """While nothing is being written."""
        self._unsent = b""
        """The rest of what did not fit."""

    def depart(self) -> None:
        """See `Conversation`. What comes alone, while nothing is unanswered, does not wait for the task that writes: at
        most others of this turn of the loop go after it instead of with it."""
        link, socket = self.link, self._idle_socket
        if socket is None or link is None or link.pending or link.broken or len(self._outbox) != 1:
            self._wake.set()
            return
        call = self._outbox[0]
        try:
            self._unsent = b"".join(self._take(link))
        except Exception as error:
            logger.exception("a request could not be written")
            self.fail(call, InternalError(f"It failed: {error!r}.", advice="Please report this defect."))
        with suppress(*_LINK_ERRORS):  # the task that writes meets it, too
            self._unsent = self._unsent[socket.send_at_once(self._unsent) :]
        if self._unsent or self._outbox:
            self._wake.set()

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
        while self._leaving or ((self._outbox or self._unsent) and self.is_connected):
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
        wanted_bytes = FIRST_READ_BYTES
        while not (link.draining and not link.pending):
            data = await stream.receive(wanted_bytes)
            wanted_bytes = READ_BYTES if len(data) >= FIRST_READ_BYTES else FIRST_READ_BYTES
            link.heard_at = anyio.current_time()
            for event in link.machine.receive_data(data):
                self._handle(link, event)
        raise NotConnected("The broker is stopping.")

    async def _write(self, link: Link, stream: ByteStream) -> None:
        self._unsent = link.machine.hello(*self.introduction())
        socket = stream if isinstance(stream, PlainSocket) else None
        try:
            while True:
                data, self._unsent = self._unsent, b""
                if data or (data := b"".join(self._take(link))):
                    await stream.send(data)
                    continue
                self._drained.set()
                self._wake = anyio.Event()
                self._idle_socket = socket
                await self._wake.wait()
                self._idle_socket = None
        finally:
            self._idle_socket, self._unsent = None, b""

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
