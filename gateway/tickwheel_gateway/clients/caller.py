"""Who calls, as the headers of a request say it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from tickwheel_gateway.transport.call import Call
from tickwheel_gateway.wire.codes import Code, Refused

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
VERSION: Final = "x-mq-client-version"
MAX_CLIENT_ID: Final = 1_024
"""Characters. Clients are remembered, and their names are longest where their host's is: 255."""

_MOST_REMEMBERED: Final = 10_000
_MOST_CHARS: Final = 64
"""Of what a client says of itself beside its id: it is remembered for each."""
"""As many as there may be connections by default: with fewer, those that take turns would be made anew in each call."""

Identity: TypeAlias = tuple[str, str]
"""The token of a client, and what it calls itself."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client of RocketMQ, in one of its calls."""

    client_id: str
    language: str = ""
    """In capitals, as JAVA; Node says HTTP."""
    version: tuple[int, ...] = ()
    """Of its library; empty when it says none that has numbers."""
    host: str = ""
    """Its address, without the port."""
    local: tuple[str, int] = ("", 0)
    """The address that it has reached."""
    token: str = ""
    """Tickwheel's, with which the broker is asked; empty: none."""

    @property
    def identity(self) -> Identity:
        """What is the same in all its calls, and in those of no other."""
        return self.token, self.client_id


def caller_of(call: Call, token: str) -> Caller:
    """Raises Refused."""
    client_id = call.metadata.get(CLIENT_ID, "")
    if not client_id.strip():
        raise Refused(Code.CLIENT_ID_REQUIRED, f"the header {CLIENT_ID} is missing")
    if len(client_id) > MAX_CLIENT_ID:
        raise Refused(Code.BAD_REQUEST, f"the header {CLIENT_ID} has more than {MAX_CLIENT_ID} characters")
    return _caller(
        client_id,
        call.metadata.get(LANGUAGE, "")[:_MOST_CHARS],
        call.metadata.get(VERSION, "")[:_MOST_CHARS],
        call.ends.peer,
        call.ends.local,
        token,
    )


@lru_cache(_MOST_REMEMBERED)
def _caller(
    client_id: str, language: str, version: str, peer: str, local: tuple[str, int], token: str
) -> Caller:
    return Caller(client_id, language.upper(), _version(version), peer.rpartition(":")[0], local, token)


def _version(text: str) -> tuple[int, ...]:
    """
    >>> _version("5.1.2-SNAPSHOT"), _version("v5.0"), _version("")
    ((5, 1, 2), (5, 0), ())
    """
    numbers: list[int] = []
    for part in text.removeprefix("v").split("-")[0].split("."):
        if not (part.isascii() and part.isdecimal()) or len(part) > 6:
            break
        numbers.append(int(part))
    return tuple(numbers)
