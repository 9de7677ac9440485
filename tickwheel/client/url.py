"""Where a broker is: ``tickwheel://host:port``, with TLS ``tickwheels://…``, or ``tickwheel+unix:///path/to.sock``; the
nodes of a cluster: ``tickwheel://a:7411,b:7411,c:7411``, and which of them is tried next."""

from __future__ import annotations

import ipaddress
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from tickwheel.client.checks import shown
from tickwheel.protocol.errors import ConfigError, TickwheelError
from tickwheel.protocol.limits import DEFAULT_PORT

URL_VARIABLE = "TICKWHEEL_URL"
DEFAULT_URL = f"tickwheel://127.0.0.1:{DEFAULT_PORT}"
PATIENCE_MAX_S: Final = 10.0
"""How long a node may take to accept a connection, and as long again to answer HELLO, if there is no other."""

_PATIENCE_AMONG_SEVERAL_S: Final = 3.0

_EACH: Final = re.compile(r",\s*(?=tickwheel(?:s|\+unix)?://)", re.IGNORECASE)
_SEVERAL: Final = re.compile(r"(tickwheels?://)(.*)", re.IGNORECASE | re.DOTALL)
_FORMS = "Use tickwheel://HOST:PORT, tickwheels://HOST:PORT (TLS) or tickwheel+unix:///PATH/TO.sock."


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A broker's TCP port."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tickwheel{'s' if self.tls else ''}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A broker's Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"tickwheel+unix://{self.path}"


Address = TcpAddress | UnixAddress
Urls: TypeAlias = str | Sequence[str]
"""One URL, one that names several nodes, or several."""


def default_url() -> str:
    """``TICKWHEEL_URL`` from the environment, or the default address of a broker on this machine."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def parse_url(url: str) -> Address:
    """The address in a URL. Raises ConfigError."""
    if not isinstance(url, str):
        raise ConfigError(f"The address of a broker is {shown(url)}.", advice=_FORMS)
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that do not match, and the like
        raise ConfigError(f"{url!r} is not the address of a broker.", advice=_FORMS) from None
    if parts.username is not None:  # it may be a token, so the address is not repeated
        raise ConfigError(
            "The address of a broker has no user and no password.",
            advice=f"A token is given as token=, token_file=, TICKWHEEL_TOKEN or TICKWHEEL_TOKEN_FILE. {_FORMS}",
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"The address {url!r} has parts that mean nothing here.", advice=_FORMS)
    if parts.scheme == "tickwheel+unix":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"The address {url!r} has no absolute path.", advice=_FORMS)
        return UnixAddress(unquote(parts.path))
    if parts.scheme not in ("tickwheel", "tickwheels") or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigError(f"{url!r} is not the address of a broker.", advice=_FORMS)
    try:
        port = parts.port
    except ValueError:
        raise ConfigError(f"The address {url!r} has a bad port.", advice=_FORMS) from None
    return TcpAddress(
        parts.hostname, DEFAULT_PORT if port is None else port, tls=parts.scheme == "tickwheels"
    )


def parse_urls(urls: Urls) -> tuple[Address, ...]:
    """The addresses in URLs, in their order. Raises ConfigError."""
    is_one = isinstance(urls, str | bytes) or not isinstance(urls, Sequence)
    given: Sequence[str] = [urls] if is_one else urls  # type: ignore[list-item]
    texts = list(chain.from_iterable(map(_split, given)))
    if not texts:
        raise ConfigError("The list of URLs is empty.", advice=_FORMS)
    found = tuple(map(parse_url, texts))
    if len({address.tls for address in found if isinstance(address, TcpAddress)}) > 1:
        raise ConfigError(
            "Some of the URLs are with TLS, and some without.",
            advice="Use tickwheels:// for all, or tickwheel://.",
        )
    for number, address in enumerate(found):
        if address in found[:number]:
            raise ConfigError(f"The URL {address} is there twice.", advice="Name each node once.")
    return found


def _split(urls: str) -> list[str]:
    """The URLs in a text with commas. A comma in the path of a Unix socket is one of its letters."""
    if not isinstance(urls, str):
        return [urls]  # `parse_url` says what it is instead
    texts: list[str] = []
    for text in _EACH.split(urls):
        several = _SEVERAL.fullmatch(text)
        if several is None or "," not in text or "@" in text:  # what may be a token is not cut into pieces
            texts.append(text)
            continue
        scheme, hosts = several.groups()
        parts = [part.strip() for part in hosts.split(",")]
        if not all(parts):
            raise ConfigError(
                f"{shown(urls)} names a node that has no host.",
                advice="Write tickwheel://A:7411,B:7411, without gaps.",
            )
        texts.extend(scheme + part for part in parts)
    return texts


def shown_urls(addresses: Sequence[Address]) -> str:
    """One text for several addresses that means the same."""
    first = str(addresses[0])
    if not all(isinstance(address, TcpAddress) for address in addresses):
        return ",".join(map(str, addresses))
    return ",".join([first, *(str(address).partition("://")[2] for address in addresses[1:])])


def on_host(url: str, address: Address) -> str:
    """A URL that a broker told of itself, on the host at which it is reached where the URL names none.

    >>> on_host("grpc://:7416", TcpAddress("broker.example", 7411))
    'grpc://broker.example:7416'
    """
    scheme, separator, place = url.partition("://:")
    if not separator:
        return url
    host = address.host if isinstance(address, TcpAddress) else "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{place}"


class Nodes:
    """The nodes that a client knows, and which of them it tries next; it says what became of each try.

    A round tries each once: first the one that served last, then the others in their order, and before any other the
    one that a node has named. One that accepts and says nothing holds a round up for ``patience_s``; then it is left
    out for twice as long, and gets twice the time at its next turn, for it may only be busy.
    """

    def __init__(
        self, addresses: Sequence[Address], connect_timeout_s: float, allows: Callable[[Address], object]
    ) -> None:
        """``connect_timeout_s``: how long a whole round should take at most. ``allows`` raises a TickwheelError for an
        address that this client must not connect to."""
        self.addresses = tuple(addresses)
        self.current = self.addresses[0]
        """The one that was tried last, or serves."""
        self._allows = allows
        self._first_patience_s = (
            min(_PATIENCE_AMONG_SEVERAL_S, connect_timeout_s / len(addresses))
            if self.are_several
            else PATIENCE_MAX_S
        )
        self._served: Address | None = None
        self._named: Address | None = None
        self._left: deque[Address] = deque()
        self._tried: set[Address] = set()
        self._silent: dict[Address, tuple[float, float]] = {}
        """Which said nothing: until when they are left out, and how long is waited for them then."""

    @property
    def are_several(self) -> bool:
        """Whether more than one was given."""
        return len(self.addresses) > 1

    @property
    def patience_s(self) -> float:
        """How long is waited for the current one."""
        return self._silent.get(self.current, (0.0, self._first_patience_s))[1]

    def begin_round(self, now: float) -> None:
        """All of them may be tried again."""
        # Who was silent long ago, and was not needed since, is as good as any other.
        self._silent = {one: said for one, said in self._silent.items() if now <= sum(said)}
        known = dict.fromkeys((self._served, *self.addresses) if self._served else self.addresses)
        heard = [address for address in known if not self._is_silent(address, now)]
        self._left = deque(heard or known)
        self._tried.clear()

    def next(self) -> Address | None:
        """The one to try now. None: the round is over."""
        if self._named is not None:
            self._left.appendleft(self._named)
            self._named = None
        while self._left:
            address = self._left.popleft()
            if address not in self._tried:
                self._tried.add(address)
                self.current = address
                return address
        return None

    def serves(self) -> None:
        """The current one does."""
        self._served = self.current
        self._silent.pop(self.current, None)

    def failed(self) -> None:
        """The current one has said that it does not serve, or is not there."""
        self._silent.pop(self.current, None)
        self._does_not_serve()

    def _does_not_serve(self) -> None:
        if self._served == self.current:
            self._served = None

    def fell_silent(self, now: float) -> None:
        """The current one said nothing for ``patience_s``."""
        self._does_not_serve()
        patience_s = self.patience_s
        self._silent[self.current] = now + 2 * patience_s, min(PATIENCE_MAX_S, 2 * patience_s)

    def refer(self, url: str, now: float) -> None:
        """The current one says that the node at this URL serves. It is tried next, unless it was in this round, or said
        nothing lately, or is none that this client may connect to: nobody is led away from TLS."""
        try:
            named = parse_urls(url)
            self._allows(named[0])
        except TickwheelError:
            return
        address = named[0]
        is_known = address in self.addresses or self._is_as_safe(address)
        has_room = len(self._tried) < 2 * len(self.addresses)  # nodes that name each other end a round, too
        if len(named) == 1 and is_known and has_room and not self._is_silent(address, now):
            self._named = address

    def _is_silent(self, address: Address, now: float) -> bool:
        return self._silent.get(address, (0.0, 0.0))[0] > now

    def _is_as_safe(self, address: Address) -> bool:
        given = {one.tls for one in self.addresses if isinstance(one, TcpAddress)} or {True}
        return isinstance(address, TcpAddress) and address.tls in given and self._is_from_here(address)

    def _is_from_here(self, address: TcpAddress) -> bool:
        """A node of another machine may name itself as its own machine knows it: here that would be somebody else."""
        if _is_loopback(address.host) is None:
            return False
        current = self.current
        return (
            not _is_loopback(address.host)
            or isinstance(current, UnixAddress)
            or bool(_is_loopback(current.host))
        )


def _is_loopback(host: str) -> bool | None:
    """None: it names no machine at all, as 0.0.0.0."""
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return None if found.is_unspecified else found.is_loopback
