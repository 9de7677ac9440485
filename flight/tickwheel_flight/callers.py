"""Who reads, and what he may: the broker says it, at each log-in with the reader's own token.

An answer counts for some seconds, so that a thousand tickets of a reading are no thousand log-ins. A stream that goes
on asks again, so that it ends soon after its token does.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from tickwheel import sync
from tickwheel.errors import BadToken, ConnectionDenied, Forbidden, NotConnected, TickwheelError
from tickwheel.protocol.grants import Granted, parse_grants

FRESH_S: Final = 5.0
"""So long an answer of the broker counts."""
TRUSTED_S: Final = 45.0
"""So long it counts for a stream that has begun, while the broker does not answer."""

_MAX_TOKEN_CHARS: Final = 256
_MOST_REMEMBERED: Final = 1_000
_CONNECT_S: Final = 5.0

_log = logging.getLogger("tickwheel.flight")

LogIn: TypeAlias = Callable[[str, str], Granted]


@dataclass(frozen=True, slots=True)
class _Answer:
    granted: Granted
    told_s: float


class Callers:
    """Used by many threads at once."""

    def __init__(self, log_in: LogIn, now_s: Callable[[], float] = time.monotonic) -> None:
        """``log_in``: asks the broker, with a token (it may be empty) and the reader's address. Raises
        TickwheelError."""
        self._log_in = log_in
        self._now_s = now_s
        self._known: OrderedDict[tuple[bytes, str], _Answer] = OrderedDict()
        self._lock = threading.Lock()

    def granted(self, token: str, address: str, *, has_begun: bool = False) -> Granted:
        """What the holder of a token may do. ``has_begun``: for a stream that goes on. Raises ConnectionDenied,
        NotConnected and what else connecting raises."""
        key = hashlib.sha256(token.encode()).digest(), address
        with self._lock:
            known = self._known.get(key)
        age_s = None if known is None else self._now_s() - known.told_s
        if known is not None and age_s is not None and age_s < FRESH_S:
            return known.granted
        asked_s = self._now_s()
        try:
            granted = self._log_in(token, address)
        except ConnectionDenied:
            with self._lock:
                self._known.pop(key, None)
            raise
        except TickwheelError:
            if has_begun and known is not None and age_s is not None and age_s < TRUSTED_S:
                return known.granted
            raise
        self._remember(key, _Answer(granted, asked_s))
        return granted

    def _remember(self, key: tuple[bytes, str], answer: _Answer) -> None:
        with self._lock:
            self._known[key] = answer
            self._known.move_to_end(key)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)


@contextmanager
def connected(url: str | None, token: str, address: str) -> Iterator[sync.Client]:
    """The broker at ``url``, as somebody with this token asks it from this address. Raises TickwheelError."""
    if len(token) > _MAX_TOKEN_CHARS:
        raise BadToken("The token does not have the form of one: twk_…_….")
    # The address makes a stranger of the reader, whoever this process is: see `Hello.peer`.
    try:
        with sync.Client(url, token=token, name="flight", peer=address, connect_timeout=_CONNECT_S) as client:
            yield client
    except NotConnected as error:
        _log.warning("somebody asks in vain for the broker: %s", error)
        # Where the broker is, or why it lets nobody in, is not for strangers.
        raise NotConnected("The broker takes no log-in at this moment.", advice="Try again later.") from None


def log_in(url: str | None, token: str, address: str) -> Granted:
    """Asks the broker at ``url`` what somebody may do. Raises TickwheelError."""
    with connected(url, token, address) as client:
        grants, is_limited = client.grants, client.is_limited
    if grants is None and is_limited:
        raise Forbidden(
            "The token has more grants than the broker tells.",
            advice="Grant fewer patterns, such as query:shop.* for many topics.",
        )
    return Granted(None if grants is None else parse_grants(grants))
