"""What a token may do, as the broker has told it to the client that has logged in with it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tickwheel import Client
from tickwheel.protocol.grants import Granted, parse_grants
from tickwheel_gateway.wire.codes import Code, Refused

PUBLISH: Final = "publish"
CONSUME: Final = "consume"


def check_right(client: Client, permission: str, topics: Iterable[str]) -> None:
    """``topics``: in Tickwheel. Raises Refused, and what ended the client."""
    grants = client.grants
    if grants is None:
        return
    granted = _granted(tuple(grants))
    for topic in topics:
        if not granted.may(permission, topic):
            raise Refused(Code.FORBIDDEN, f"forbidden: {permission} is not granted for topic {topic}")


@lru_cache(maxsize=1_000)
def _granted(texts: tuple[str, ...]) -> Granted:
    return Granted(parse_grants(texts))
