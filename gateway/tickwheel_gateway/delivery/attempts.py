"""What was handed out in a call that its client may make again, because it did not get the answer.

Such a client says the same attempt id again. What the lost answer had would otherwise be with nobody until its leases
end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import trio

from tickwheel_gateway.delivery.acking import Delivered

MAX_KEPT: Final = 50_000
"""Attempts that are remembered; the oldest one makes room."""


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
        self._most = most
        self._kept: OrderedDict[tuple[str, str], _Attempt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def remember(
        self, client_id: str, attempt_id: str, group_id: int, receipts: Iterable[Delivered], lease_ms: int
    ) -> None:
        """These are on their way to a client, for so long."""
        now = trio.current_time()
        key = client_id, attempt_id
        attempt = self._kept.setdefault(key, _Attempt())
        attempt.handed.setdefault(group_id, []).extend(receipts)
        attempt.ends = max(attempt.ends, now + lease_ms / 1_000)
        self._kept.move_to_end(key)
        while self._kept and (len(self._kept) > self._most or next(iter(self._kept.values())).ends <= now):
            self._kept.popitem(last=False)

    def handed(self, client_id: str, attempt_id: str) -> dict[int, list[Delivered]]:
        """What was handed out under this id, by the number of the group."""
        attempt = self._kept.get((client_id, attempt_id))
        return {} if attempt is None or attempt.ends <= trio.current_time() else dict(attempt.handed)

    def forget(self, client_id: str, attempt_id: str) -> None:
        """It was given back."""
        self._kept.pop((client_id, attempt_id), None)
