"""How connections are made: the name is resolved here, every address of it is checked, and one of those is connected
to. Nothing resolves it again, so a name that changes its answer after the check leads nowhere else. The server still
sees the name: in the header Host, and in TLS, where its certificate has to be for it."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import httpcore2
from httpcore2 import SOCKET_OPTION, AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

from tickwheel_push.http.addresses import Address, Allowed
from tickwheel_push.http.resolver import Resolver

ONE_ADDRESS_S: Final = 3.0
"""So long an address may take while there is another one to try."""
_READ_BYTES: Final = 16 * 1024
"""At a time: what has come is parsed before others go on, and a server may write thousands of heads into so much."""
_JOINED_BYTES: Final = 64 * 1024
"""To copy more than this costs more than a second call of the system."""


class NameUnknown(Exception):
    """The name has no address, or none that can be found out now."""


class Connector(AsyncNetworkBackend):
    """The network as httpcore sees it."""

    def __init__(self, allowed: Allowed, resolver: Resolver) -> None:
        self._allowed = allowed
        self._resolver = resolver
        self._network = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """To one of the name's addresses. Raises NameUnknown, AddressRefused, and what httpcore raises."""
        addresses = await self._resolve(host, port)
        self._allowed.check(addresses)
        for address in addresses[:-1]:
            try:
                return await self._connect(address, port, ONE_ADDRESS_S)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._connect(addresses[-1], port, timeout)

    async def _resolve(self, host: str, port: int) -> Sequence[Address]:
        try:
            addresses = await self._resolver.addresses(host, port)
        except (OSError, UnicodeError) as error:
            raise NameUnknown(f"{host}: {error.args[-1] if error.args else error}") from error
        if not addresses:
            raise NameUnknown(f"{host} has no address")
        return addresses

    async def _connect(self, address: Address, port: int, timeout_s: float | None) -> AsyncNetworkStream:
        stream = await self._network.connect_tcp(str(address), port, timeout_s)
        return _Connection(stream, stream.get_extra_info("socket"))


class _Connection(AsyncNetworkStream):
    """A connection, before and after TLS. When time is up in the middle of a handshake, it is closed. Whether the
    server has closed it is asked before each request, so the socket is at hand for that. What is written leaves when
    the answer is waited for, or there is much of it: a head together with its body, in one packet."""

    def __init__(self, stream: AsyncNetworkStream, connected: socket.socket) -> None:
        self._stream = stream
        self._socket = connected
        self._written = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._written:
            # A server may answer what it does not read to its end: httpcore, too, goes on to read then.
            with suppress(httpcore2.WriteError):
                await self._leave(timeout)
        return await self._stream.read(min(max_bytes, _READ_BYTES), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if len(self._written) + len(buffer) > _JOINED_BYTES:
            await self._leave(timeout)
            await self._stream.write(buffer, timeout)
        else:
            self._written += buffer

    async def _leave(self, timeout_s: float | None) -> None:
        written, self._written = self._written, b""
        await self._stream.write(written, timeout_s)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncNetworkStream:
        try:
            inside = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise
        return _Connection(inside, self._socket)

    def get_extra_info(self, info: str) -> Any:
        return self._is_readable() if info == "is_readable" else self._stream.get_extra_info(info)

    def _is_readable(self) -> bool:
        if self._socket.fileno() < 0:
            return True
        asked = select.poll()
        asked.register(self._socket, select.POLLIN)
        return bool(asked.poll(0))
