"""The small server for who watches, when there are too many connections."""

from __future__ import annotations

import errno
from contextlib import AsyncExitStack
from typing import Any

import anyio
import trio
import trio.testing
from anyio.abc import SocketAttribute

from tickwheel.sharing.listener import MOST_CONNECTIONS, Listener
from tickwheel_push.tally import Tally


def watching() -> Listener:
    return Listener(Tally(), lambda: True, trio.lowlevel.checkpoint)


class Sockets:
    """Has no files left at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.takes = trio.Event()

    async def serve(self, handler: Any, group: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        self.takes.set()
        await trio.sleep_forever()

    async def __aenter__(self) -> Sockets:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


async def test_it_waits_for_files(autojump_clock: trio.testing.MockClock) -> None:
    sockets = Sockets(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watching().listen, sockets)
        await sockets.takes.wait()
        nursery.cancel_scope.cancel()


async def test_of_too_many_connections_the_last_is_closed() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    one = watching()
    async with trio.open_nursery() as nursery, AsyncExitStack() as opened:

        async def connect() -> trio.SocketStream:
            return await opened.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))

        nursery.start_soon(one.listen, listener.listeners[0])
        silent = [await connect() for _ in range(MOST_CONNECTIONS)]
        with trio.fail_after(60):
            while one._open < MOST_CONNECTIONS:
                await trio.sleep(0.01)
            assert await (await connect()).receive_some() == b""
            await silent[0].send_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in await silent[0].receive_some()
        nursery.cancel_scope.cancel()
