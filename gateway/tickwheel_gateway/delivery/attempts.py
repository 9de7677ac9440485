"""Calls that their client may make again, because it did not get the answer.

Such a client says the same attempt id again. What the lost answer had would otherwise be with no consumer until its
leases end; and a call that still waits would take the next message to a connection that its client has left.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.delivery.acking import Delivered

MAX_KEPT: Final = 200_000
"""Receipts that are remembered, about 50 MB; the oldest attempt makes room."""
KEPT_MS: Final = 120_000
"""A client that has no answer tries again soon, or never."""
_LOOK_S: Final = 1.0
_AT_ONCE: Final = 256
"""About 0.2 ms of work."""


@dataclass(slots=True)
class _Attempt:
    """Of one call."""

    ends: float = 0.0
    """When the last lease has ended, on trio's clock."""
    handed: dict[int, list[Delivered]] = field(default_factory=dict)
    """By the number of the group."""


class Attempts:
    """By client, and the id that it gave the call."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        """``most``: receipts."""
        self._most = most
        self._receipts = 0
        self._kept: OrderedDict[bytes, _Attempt] = OrderedDict()
        self._waiting: dict[bytes, trio.CancelScope] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def waiting(self, caller: Caller, attempt_id: str) -> Iterator[trio.CancelScope]:
        """A call waits within it, until the same attempt is made again; then ``cancel_called`` says so."""
        with trio.CancelScope() as scope:
            if not attempt_id:
                yield scope
                return
            key = _key(caller, attempt_id)
            earlier = self._waiting.get(key)
            if earlier is not None:
                earlier.cancel()
            self._waiting[key] = scope
            try:
                yield scope
            finally:
                if self._waiting.get(key) is scope:
                    del self._waiting[key]

    def remember(
        self, caller: Caller, attempt_id: str, group_id: int, receipts: Iterable[Delivered], lease_ms: int
    ) -> None:
        """These are on their way to a client, for so long."""
        key, ends = _key(caller, attempt_id), trio.current_time() + min(lease_ms, KEPT_MS) / 1_000
        attempt = self._kept.setdefault(key, _Attempt())
        handed = attempt.handed.setdefault(group_id, [])
        self._receipts -= len(handed)
        handed.extend(receipts)
        self._receipts += len(handed)
        attempt.ends = max(attempt.ends, ends)
        self._kept.move_to_end(key)
        while self._receipts > self._most:
            self._drop(next(iter(self._kept)))

    def handed(self, caller: Caller, attempt_id: str) -> dict[int, list[Delivered]]:
        """What was handed out under this id, by the number of the group."""
        attempt = self._kept.get(_key(caller, attempt_id))
        return {} if attempt is None or attempt.ends <= trio.current_time() else dict(attempt.handed)

    def forget(self, caller: Caller, attempt_id: str) -> None:
        """It was given back."""
        self._drop(_key(caller, attempt_id))

    async def run(self) -> None:
        """Forgets those that are over, until it is cancelled. To be started once. A few at a time: it can be as many as
        were made in two minutes, and no call waits for all of them."""
        while True:
            await trio.sleep(_LOOK_S)
            while self._drop_over():
                await trio.lowlevel.checkpoint()

    def _drop_over(self) -> bool:
        """Whether there may be more."""
        now = trio.current_time()
        for _ in range(_AT_ONCE):
            oldest = next(iter(self._kept.items()), None)
            if oldest is None or oldest[1].ends > now:
                return False
            self._drop(oldest[0])
        return True

    def _drop(self, key: bytes) -> None:
        attempt = self._kept.pop(key, None)
        if attempt is not None:
            self._receipts -= sum(map(len, attempt.handed.values()))


def _key(caller: Caller, attempt_id: str) -> bytes:
    """Short, however long the texts of the client are."""
    texts = "\0".join((caller.token, str(len(caller.client_id)), caller.client_id, attempt_id))
    return hashlib.blake2b(texts.encode(), digest_size=16).digest()
