"""What may be called: URLs as they are written, and the addresses that their names lead to.

A URL comes from who may change endpoints or send to a topic of tasks, and not from who runs this process. So it must
not reach what only this machine can reach: other services on it, its network, the metadata of its cloud. Every address
of a name is checked after forms that hide another address are unwrapped, and only a checked one is connected to
(``connector``): a name that changes its answer in between gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from tickwheel.protocol.targets.target_urls import check_url

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host, port."""

DEFAULT_PORTS: Final = frozenset({443, 80})
_PORT_OF: Final = {"https": 443, "http": 80}

_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_UNICAST: Final = IPv6Network("2000::/3")
"""All global unicast addresses of IPv6 that were ever given out."""


class AddressRefused(Exception):
    """A URL, or an address that its name leads to, is not one that may be called."""


@dataclass(frozen=True, slots=True)
class Location:
    """A URL in its parts."""

    scheme: str
    host: str
    """In small letters; an address of IPv6 without its brackets."""
    port: int
    target: str
    """Path and query, as they are written on the first line of a request."""

    @property
    def origin(self) -> Origin:
        """What a connection is to."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """For the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORT_OF[self.scheme] else f"{host}:{self.port}"


def location_of(url: str) -> Location:
    """The parts of a URL. Raises AddressRefused for what is none, and for forms that programs read differently."""
    try:
        check_url(url)
    except ValueError as error:
        raise AddressRefused(str(error)) from None
    parts = urlsplit(url)
    host = parts.hostname or ""
    if "%" in host:
        raise AddressRefused("the URL names an interface of this machine")
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return Location(parts.scheme, host, parts.port or _PORT_OF[parts.scheme], target)


def unwrapped(address: Address) -> Address:
    """The address that another one stands for: IPv4 in IPv6, whichever way it is written there."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_global(address: Address) -> bool:
    """Whether it is reached in the same way from everywhere, so that it is no way inside.

    >>> is_global(IPv4Address("192.0.32.7")), is_global(IPv6Address("::ffff:127.0.0.1"))
    (True, False)
    """
    inner = unwrapped(address)
    if isinstance(inner, IPv6Address) and inner not in _UNICAST:
        return False
    return inner.is_global and not inner.is_multicast


@dataclass(frozen=True, slots=True)
class Allowed:
    """What who runs this process allows."""

    networks: tuple[Network, ...] = ()
    """Beyond all global addresses."""
    http: bool = False
    """Whether also without TLS."""
    ports: frozenset[int] = field(default=DEFAULT_PORTS)

    def location(self, url: str) -> Location:
        """The parts of a URL that may be called, as far as it says itself. Raises AddressRefused."""
        location = location_of(url)
        if location.scheme != "https" and not self.http:
            raise AddressRefused("only https is allowed (--allow-http)")
        if location.port not in self.ports:
            raise AddressRefused(f"port {location.port} is not allowed (--port)")
        return location

    def check(self, addresses: Iterable[Address]) -> None:
        """All addresses of a name. Raises AddressRefused if one of them may not be called."""
        for address in addresses:
            inner = unwrapped(address)
            if is_global(address) or any(address in net or inner in net for net in self.networks):
                continue
            shown = str(address) if inner == address else f"{address}, which is {inner},"
            raise AddressRefused(f"{shown} is not a public address (--allow-network)")


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Such as ``10.0.0.0/8``. Raises ValueError."""
    return tuple(ip_network(text.strip()) for text in texts)
