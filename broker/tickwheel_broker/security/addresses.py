"""Which address a connection counts for: limits hold for a site, not for each address that the site can use."""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_NETWORK_BITS: Final = 64
"""Who has one IPv6 address has as many as this leaves."""


def network_of(peer: str) -> str:
    """The same for all addresses of one site; of a peer without an address, its name.

    >>> network_of("192.0.2.7:50123"), network_of("2001:db8:1:2:3::9:50123"), network_of("unix")
    ('192.0.2.7', '2001:db8:1:2::/64', 'unix')
    """
    return ip_network_of(peer) or peer.rpartition(":")[0] or peer


def ip_network_of(peer: str) -> str:
    """An IPv4 address, or the network of an IPv6 one. Empty for peers without an address, as at Unix sockets."""
    host = peer.rpartition(":")[0] or peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _IPV6_NETWORK_BITS), strict=False))
