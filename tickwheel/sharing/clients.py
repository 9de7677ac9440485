"""One client of the broker for each token: the broker itself says what the token may do.

Where the broker believes for whom a client is, on its Unix socket, there is one for each token and address: its audit
log then has the address of who did it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from tickwheel.client.client import Client
from tickwheel.errors import (
    BadToken,
    ClientClosed,
    ConnectionDenied,
    LoginRequired,
    ShuttingDown,
    TickwheelError,
    TooManyConnections,
)
from tickwheel.sharing.attempts import Attempts

IDLE_S: Final = 60.0
MAX_CLIENTS: Final = 256

_log = logging.getLogger("tickwheel.sharing")

Open: TypeAlias = Callable[[str, str], Client]
"""Makes the client of a token, which may be empty, for an address."""

_Key: TypeAlias = tuple[bytes, str]


@dataclass(eq=False)
class _Held:
    """The client of one token, in a task of its own: that which enters a client must leave it."""

    is_known: anyio.Event = field(default_factory=anyio.Event)
    """Whether it could connect."""
    is_over: anyio.Event = field(default_factory=anyio.Event)
    client: Client | None = None
    error: TickwheelError | None = None
    users: int = 0
    used_s: float = 0.0


Lent: TypeAlias = tuple[_Key, _Held, Client]


class Clients:
    """Opens clients when they are needed; closes those that were not used for a while, and the oldest of too many."""

    def __init__(
        self,
        *,
        open_client: Open,
        needs_token: bool = False,
        names_addresses: bool = False,
        idle_s: float = IDLE_S,
        most: int = MAX_CLIENTS,
        not_running: Callable[[], TickwheelError] = ShuttingDown,
    ) -> None:
        """``needs_token``: the broker would take us for somebody even without one, and a stranger with us.
        ``names_addresses``: the broker believes for whom a client is. ``most``: at a time. ``not_running``: what is
        raised outside of `running`."""
        self._open = open_client
        self._needs_token = needs_token
        self._names_addresses = names_addresses
        self._attempts = Attempts()
        self._idle_s = idle_s
        self._most = most
        self._not_running = not_running
        self._held: dict[_Key, _Held] = {}  # the one that was used last comes last
        self._group: TaskGroup | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_connected(self) -> bool:
        """Whether one of the clients has a connection right now; True where there is none to have one."""
        clients = [held.client for held in self._held.values() if held.client is not None]
        return not clients or any(client.is_connected for client in clients)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Clients live inside this block; at its end all are closed."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for held in self._held.values():
                    held.is_over.set()
                self._held.clear()

    def client(self, token: str, address: str) -> Use:
        """The client of a token, for one request from an address. Raises what connecting raises."""
        return Use(self, token, address)

    def lend_at_once(self, token: str, address: str) -> Lent | None:
        """As `lend`; None: it has to be waited for."""
        key = self._key(token, address)
        held = self._held.pop(key, None)
        if held is None:
            return None
        self._held[key] = held
        if held.client is None:
            return None
        held.users += 1
        return key, held, held.client

    async def lend(self, token: str, address: str) -> Lent:
        """Who uses `client` need not. What it gives is to be taken back."""
        if self._group is None:
            raise self._not_running()
        if self._needs_token and not token:
            raise LoginRequired
        key = self._key(token, address)
        held = self._held.pop(key, None)
        if held is None:
            self._make_room()
            held = _Held()
            self._group.start_soon(self._hold, held, key, token, address)
        self._held[key] = held
        held.users += 1
        try:
            if held.client is None:
                await held.is_known.wait()
            if held.client is None:
                raise held.error.copy() if held.error is not None else ClientClosed()
        except BaseException as error:
            self.take_back(key, held, error)
            raise
        return key, held, held.client

    def take_back(self, key: _Key, held: _Held, error: BaseException | None) -> None:
        """It is not used any more, because of an error or because all is done."""
        if isinstance(error, ConnectionDenied | ClientClosed):
            self._drop(key, held)  # the next request begins anew
        held.users -= 1
        if not held.users:
            held.used_s = anyio.current_time()
        if self._held.get(key) is not held and not held.users:
            held.is_over.set()

    @asynccontextmanager
    async def alone(self, token: str, address: str) -> AsyncIterator[Client]:
        """A client for one request alone, with a token that was let in: when it is closed, the broker ends what it does
        for it. Raises what connecting raises."""
        async with self._open(token, address) as client:
            yield client

    def _key(self, token: str, address: str) -> _Key:
        return hashlib.sha256(token.encode()).digest(), address if self._names_addresses else ""

    def _make_room(self) -> None:
        if len(self._held) < self._most:
            return
        for key, held in self._held.items():
            if not held.users:
                self._drop(key, held)
                return
        of = "tokens or addresses" if self._names_addresses else "tokens"
        raise TooManyConnections(
            f"There are requests with {self._most} different {of} at this moment.", advice="Try again."
        )

    def _drop(self, key: _Key, held: _Held) -> None:
        if self._held.get(key) is held:
            del self._held[key]
        if not held.users:
            held.is_over.set()

    async def _hold(self, held: _Held, key: _Key, token: str, address: str) -> None:
        try:
            await self._attempts.begin(address, key[0])
            async with self._open(token, address) as client:
                self._attempts.was_good(address, key[0])
                held.client = client
                held.is_known.set()
                await self._until_idle(held)
                self._drop(key, held)
        except TickwheelError as error:
            decide = self._attempts.was_wrong if isinstance(error, BadToken) else self._attempts.was_no_guess
            decide(address, key[0])
            held.error = error
            self._drop(key, held)
        except Exception:  # a defect concerns this token alone
            self._attempts.was_no_guess(address, key[0])
            _log.exception("a client of the broker ended by a defect")
            self._drop(key, held)
        finally:
            held.is_known.set()

    async def _until_idle(self, held: _Held) -> None:
        """Until nobody has used it for so long, or it is not wanted any more."""
        held.used_s = anyio.current_time()
        while True:
            now_s = anyio.current_time()
            until_s = (now_s if held.users else held.used_s) + self._idle_s
            if until_s <= now_s:
                return
            with anyio.CancelScope(deadline=until_s):
                await held.is_over.wait()
                return


class Use(AbstractAsyncContextManager[Client]):
    """One use of a client. No generator: thousands of requests wait at a time, and each would have a frame more."""

    def __init__(self, clients: Clients, token: str, address: str) -> None:
        self._clients = clients
        self._token = token
        self._address = address
        self._lent: Lent | None = None

    def at_once(self) -> Client | None:
        """The client, if it is there already: then that is what entering does, and this is to be left as if it was
        entered."""
        self._lent = self._clients.lend_at_once(self._token, self._address)
        return None if self._lent is None else self._lent[2]

    async def __aenter__(self) -> Client:
        self._lent = await self._clients.lend(self._token, self._address)
        return self._lent[2]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lent is not None
        key, held, _ = self._lent
        self._clients.take_back(key, held, error)
