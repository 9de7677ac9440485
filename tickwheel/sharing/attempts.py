"""Wrong tokens by address: who has tried too many must wait, and no one else.

The broker counts them, too. Over TCP it sees this process in place of all who ask, so an address must be stopped here
before the broker stops them all.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import anyio

from tickwheel.errors import TooManyAttempts

MAX_WRONG: Final = 5
"""Half of what the broker allows an address."""
WINDOW_S: Final = 60.0

_IPV6_NETWORK_BITS: Final = 64
_MAX_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Of:
    """Those of one network."""

    wrong: dict[bytes, float] = field(default_factory=dict)
    """When, by digest of the token, the oldest first."""
    undecided: set[bytes] = field(default_factory=set)


class Attempts:
    """Of those that are not decided yet only so many are made at once as may turn out wrong; the others wait. The same
    token counts once."""

    def __init__(self) -> None:
        self._networks: OrderedDict[str, _Of] = OrderedDict()
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._decided = anyio.Event()

    async def begin(self, address: str, digest: bytes) -> None:
        """Somebody at an address wants to log in with a token. Raises TooManyAttempts."""
        if digest in self._good:
            return
        network = network_of(address)
        while True:
            now_s = anyio.current_time()
            found = self._networks.setdefault(network, _Of())
            found.wrong = {one: at_s for one, at_s in found.wrong.items() if at_s > now_s - WINDOW_S}
            if digest in found.wrong or digest in found.undecided:
                return
            if len(found.wrong) >= MAX_WRONG:
                wait_s = next(iter(found.wrong.values())) + WINDOW_S - now_s
                raise TooManyAttempts(
                    f"There were {MAX_WRONG} failed log-ins from {network}; wait {wait_s:.0f} s."
                )
            if len(found.wrong) + len(found.undecided) < MAX_WRONG:
                break
            await self._decided.wait()
        found.undecided.add(digest)
        self._networks.move_to_end(network)
        if len(self._networks) > _MAX_REMEMBERED:
            self._networks.popitem(last=False)

    def was_wrong(self, address: str, digest: bytes) -> None:
        """The broker does not know the token."""
        found = self._decide(address, digest)
        found.wrong.setdefault(digest, anyio.current_time())

    def was_no_guess(self, address: str, digest: bytes) -> None:
        """It did not fail because the token is wrong."""
        self._decide(address, digest)

    def was_good(self, address: str, digest: bytes) -> None:
        """The token never counts again."""
        self._decide(address, digest)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > _MAX_REMEMBERED:
            self._good.popitem(last=False)

    def _decide(self, address: str, digest: bytes) -> _Of:
        network = network_of(address)
        found = self._networks.setdefault(network, _Of())
        found.undecided.discard(digest)
        self._decided.set()
        self._decided = anyio.Event()
        return found


def network_of(address: str) -> str:
    """Who has one IPv6 address has a whole network of them.

    >>> network_of("192.0.2.7"), network_of("2001:db8:1:2:3::9"), network_of("unknown")
    ('192.0.2.7', '2001:db8:1:2::/64', 'unknown')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _IPV6_NETWORK_BITS), strict=False))
