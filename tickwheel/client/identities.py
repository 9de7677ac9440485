"""The identities of the requests that one client makes: by them the broker knows a repetition."""

from __future__ import annotations

import secrets

from tickwheel.protocol.identity import RequestIdentity


class Identities:
    """A session: a number of its own, and which of its requests wait for their answers."""

    def __init__(self) -> None:
        self._session = secrets.randbits(64)
        self._last_number = 0
        # In the order of their numbers, so that the first is the lowest.
        self._unanswered: dict[int, None] = {}

    def begin(self) -> int:
        """The number of a request that is made now."""
        self._last_number += 1
        self._unanswered[self._last_number] = None
        return self._last_number

    def end(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        self._unanswered.pop(number, None)

    def of(self, number: int, since: int | None) -> RequestIdentity:
        """What is written before a request. ``since``: of a repetition, where the log was at the first time."""
        return RequestIdentity(self._session, number, next(iter(self._unanswered)), since)
