"""Which addresses a name has, asked in threads: the system's resolver blocks."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from typing import Final, Protocol

from anyio import CapacityLimiter, to_thread

from tickwheel_push.http.addresses import Address

MOST_OF_A_NAME: Final = 2
"""So many threads ask for one name at a time."""


class Resolver(Protocol):
    """What knows names."""

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """In the order in which to try them. Raises OSError."""


class SystemResolver:
    """Asks as every program does, so ``/etc/hosts`` counts, too. A name that takes long to look up keeps no other one
    waiting."""

    def __init__(self) -> None:
        self._threads: dict[str, CapacityLimiter] = {}

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """As ``Resolver`` has it."""
        threads = self._threads.get(host)
        if threads is None:
            threads = self._threads[host] = CapacityLimiter(MOST_OF_A_NAME)
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            found = await to_thread.run_sync(ask, abandon_on_cancel=True, limiter=threads)
        finally:
            # One whose caller has gone is still counted: then it stays until the next time.
            if not threads.borrowed_tokens and self._threads.get(host) is threads:
                del self._threads[host]
        return list(dict.fromkeys(_address(str(sockaddr[0])) for *_, sockaddr in found))


def _address(text: str) -> Address:
    """Without the name of a network interface, which says nothing about where it leads."""
    return ip_address(text.partition("%")[0])
