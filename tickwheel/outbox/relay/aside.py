"""Rows that were refused: they stay in the table as they are, and are tried again after a while that doubles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import anyio

from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.relay.log import log

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 3600.0


@dataclass(slots=True)
class _Refused:
    backoff: Backoff
    again_at: float = 0.0


class SetAside:
    """Which rows are passed over, and until when. After a restart each is tried, and refused, once more."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._rows: dict[Any, _Refused] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row_id: Any, error: Exception) -> None:
        """Passes a row over for a while, and says so in the log."""
        row = self._rows.setdefault(row_id, _Refused(Backoff(_FIRST_S, _LONGEST_S)))
        wait_s = row.backoff.next_s()
        row.again_at = anyio.current_time() + wait_s
        log.warning(
            "A row was refused; it stays in the table and is tried again.",
            table=self._table,
            id=str(row_id),
            attempt=row.backoff.attempts,
            again_in_s=round(wait_s, 3),
            error=f"{type(error).__name__}: {error}",
        )

    def forget(self, row_id: Any) -> None:
        """It was sent."""
        self._rows.pop(row_id, None)

    def hidden(self) -> set[Any]:
        """The rows to pass over now."""
        now = anyio.current_time()
        return {row_id for row_id, row in self._rows.items() if row.again_at > now}

    def next_at(self) -> float | None:
        """When the first of them is to be tried again."""
        return min((row.again_at for row in self._rows.values()), default=None)
