"""Connections to the broker: one for each token in use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from tickwheel import Client
from tickwheel.sharing.clients import IDLE_S, Clients, Use

MAX_CONNECTIONS: Final = 1_000
"""As many tokens may be in use at a time."""


class Brokers:
    """Opens a connection when a call needs it, and closes it when none has for a while. Wrong tokens from one address
    are counted: who tries too many must wait."""

    def __init__(
        self, open_client: Callable[[str], Client], *, idle_s: float = IDLE_S, most: int = MAX_CONNECTIONS
    ) -> None:
        """``open_client``: makes the client of a token; of an empty one: that of the gateway itself."""
        self._clients = Clients(open_client=lambda token, _: open_client(token), idle_s=idle_s, most=most)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def is_connected(self) -> bool:
        """Whether one of them stands; True where none is needed."""
        return self._clients.is_connected

    def running(self) -> AbstractAsyncContextManager[None]:
        """Connections live inside of this block."""
        return self._clients.running()

    def client(self, token: str, address: str = "") -> Use:
        """That of a token, for something that is done for who is at an address. Raises what connecting raises."""
        return self._clients.client(token, address)
