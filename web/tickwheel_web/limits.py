"""How much one may ask for: polls that wait, streams, bytes of a request and the time they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tickwheel_web.problems import Refused

MAX_POLLS_PER_TOKEN: Final = 32
MAX_STREAMS: Final = 64
MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""The largest body of a broker is 4 MiB unless it was set otherwise; as base64 it is a third longer."""
REQUEST_TIMEOUT_S: Final = 30.0


class Limit:
    """So many at a time, of each key and of all keys together. One more is refused, it does not wait.

    >>> polls = Limit("polls", per_key=2)
    >>> with polls.hold(b"a"), polls.hold(b"a"), polls.hold(b"b"):
    ...     len(polls)
    3
    >>> len(polls)
    0
    """

    def __init__(self, what: str, *, per_key: int | None = None, in_all: int | None = None) -> None:
        """``what``: a plural, for the refusal. None: as many as one likes."""
        self._what = what
        self._per_key = per_key
        self._in_all = in_all
        self._held: Counter[Hashable] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """For one of them, as long as it is open. Raises Refused (429)."""
        if self._in_all is not None and self._count >= self._in_all:
            raise self._refused(f"There are {self._in_all} {self._what} at this moment")
        if self._per_key is not None and self._held[key] >= self._per_key:
            raise self._refused(f"This token has {self._per_key} {self._what} at this moment")
        self._held[key] += 1
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _refused(self, why: str) -> Refused:
        return Refused(429, f"too_many_{self._what}", f"{why}, and no more are allowed. Try again.")


@dataclass(frozen=True)
class Limits:
    """Those of one application."""

    polls: Limit
    """Requests that wait for messages; of a token."""
    streams: Limit
    """Of all together."""
    request_bytes: int
    """The largest body of a request."""
    request_s: float
    """So long its body may take."""


def limits_of(
    *,
    max_polls: int = MAX_POLLS_PER_TOKEN,
    max_streams: int = MAX_STREAMS,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    request_timeout: float = REQUEST_TIMEOUT_S,
) -> Limits:
    """By the settings."""
    return Limits(
        Limit("polls", per_key=max_polls),
        Limit("streams", in_all=max_streams),
        max_request_bytes,
        request_timeout,
    )
