"""The books of the demonstration: what was promised for each message, and what each group really got.

A group writes down every message that arrives, also a second copy. Only the audit at the end judges, when
every answer of the broker to a cancel or a reschedule is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECENT = 5_000
_ARRIVAL = np.dtype([("index", np.int64), ("due_ms", np.int64), ("arrived_ms", np.float64)])


@dataclass(frozen=True)
class GroupAudit:
    """What one group got. Lateness is arrival minus due time, in milliseconds of real time."""

    delivered: int
    duplicates: int
    missing: int
    cancelled_but_delivered: int
    early: int
    earliest_ms: float
    lateness_p50_ms: float
    lateness_p99_ms: float
    lateness_max_ms: float

    @property
    def good(self) -> bool:
        """Nothing lost, nothing twice, nothing early, and nothing that was cancelled."""
        return not (self.duplicates or self.missing or self.cancelled_but_delivered or self.early)


class GroupBook:
    """The arrivals of one group, in order of arrival."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self._rows = np.empty(capacity, _ARRIVAL)

    def write(self, indexes: NDArray[np.int64], due_ms: NDArray[np.int64], arrived_ms: float) -> None:
        """A batch arrived: the messages by their place in the ledger, and when they were due."""
        end = self.count + len(indexes)
        if end > len(self._rows):
            extra = max(end - len(self._rows), len(self._rows))
            self._rows = np.concatenate([self._rows, np.empty(extra, _ARRIVAL)])
        added = self._rows[self.count : end]
        added["index"], added["due_ms"], added["arrived_ms"] = indexes, due_ms, arrived_ms
        self.count = end

    @property
    def indexes(self) -> NDArray[np.int64]:
        """The messages that arrived, by their place in the ledger."""
        return self._rows["index"][: self.count]

    def recent_lateness_ms(self) -> NDArray[np.float64]:
        """The lateness of the latest arrivals, for a live display."""
        recent = self._rows[max(0, self.count - RECENT) : self.count]
        lateness_ms: NDArray[np.float64] = recent["arrived_ms"] - recent["due_ms"]
        return lateness_ms

    def audit(self, promised_ms: NDArray[np.int64], cancelled: NDArray[np.bool_]) -> GroupAudit:
        """Judge the arrivals against the promises; `promised_ms[i]` is the due time of message i."""
        indexes, arrived_ms = self.indexes, self._rows["arrived_ms"][: self.count]
        times_seen = np.bincount(indexes, minlength=len(promised_ms))
        lateness_ms = arrived_ms - promised_ms[indexes]
        p50, p99, top = np.percentile(lateness_ms, [50, 99, 100]) if self.count else (float("nan"),) * 3
        return GroupAudit(
            delivered=int(np.count_nonzero(times_seen)),
            duplicates=int((times_seen - 1).clip(min=0).sum()),
            missing=int(np.count_nonzero((times_seen == 0) & ~cancelled)),
            cancelled_but_delivered=int(np.count_nonzero((times_seen > 0) & cancelled)),
            early=int(np.count_nonzero(lateness_ms < 0)),
            earliest_ms=float(lateness_ms.min()) if self.count else float("nan"),
            lateness_p50_ms=float(p50),
            lateness_p99_ms=float(p99),
            lateness_max_ms=float(top),
        )


class Ledger:
    """The promises and the groups' books. Message i is flight i; the broker knows it by an id of its own."""

    def __init__(self, groups: tuple[str, ...], promised_ms: NDArray[np.int64]) -> None:
        """`promised_ms[i]` is when message i is due, in real milliseconds since the epoch."""
        count = len(promised_ms)
        self.promised_ms = promised_ms.copy()
        self.cancelled = np.zeros(count, np.bool_)
        self.moved = np.zeros(count, np.bool_)
        """Which messages were rescheduled."""
        self.books = {group: GroupBook(count) for group in groups}
        self.rescheduled = 0
        self.too_late_to_change = 0
        self.foreign = 0
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._by_id: NDArray[np.int64] = np.empty(0, np.int64)
        self._ordered_ids: NDArray[np.int64] = np.empty(0, np.int64)

    def name_messages(self, ids: NDArray[np.int64]) -> None:
        """Remember the id that the broker gave to each message."""
        self._ids = ids
        self._by_id = np.argsort(ids, kind="stable")
        self._ordered_ids = ids[self._by_id]

    @property
    def first_book(self) -> GroupBook:
        """The group whose arrivals are shown while the replay goes on."""
        return next(iter(self.books.values()))

    def message_id(self, index: int) -> int:
        """The broker's id of message `index`."""
        return int(self._ids[index])

    def indexes(self, ids: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Places in the ledger of these ids, and which of the ids are in the ledger at all."""
        wanted = ids.astype(np.int64)
        at = np.searchsorted(self._ordered_ids, wanted).clip(max=len(self._ordered_ids) - 1)
        return self._by_id[at], self._ordered_ids[at] == wanted

    def arrived(self, group: str, ids: NDArray[Any], due_ms: NDArray[np.int64], arrived_ms: float) -> None:
        """Write down a batch."""
        indexes, known = self.indexes(ids)
        self.foreign += int(np.count_nonzero(~known))
        self.books[group].write(indexes[known], due_ms[known], arrived_ms)

    def was_cancelled(self, index: int, result: str) -> None:
        """The broker's answer to a cancel: only `cancelled` takes the message out of the promises."""
        if result == "cancelled":
            self.cancelled[index] = True
        else:
            self.too_late_to_change += 1

    def was_rescheduled(self, index: int, result: str, due_ms: int) -> None:
        """The broker's answer to a reschedule: only `rescheduled` changes what was promised."""
        if result == "rescheduled":
            self.promised_ms[index] = due_ms
            self.moved[index] = True
            self.rescheduled += 1
        else:
            self.too_late_to_change += 1

    def expected(self) -> int:
        """How many messages each group must get."""
        return int(np.count_nonzero(~self.cancelled))

    def audit(self) -> dict[str, GroupAudit]:
        """The judgement on every group."""
        return {name: book.audit(self.promised_ms, self.cancelled) for name, book in self.books.items()}


@dataclass(frozen=True)
class Summary:
    """Everything that was counted. Times in seconds or milliseconds of real time, as the names say."""

    what: str
    speed: float
    scheduled: int
    schedule_seconds: float
    schedule_rate: float
    rescheduled: int
    cancelled: int
    changes_too_late: int
    replay_seconds: float
    groups: Mapping[str, GroupAudit]
    foreign: int
    body_bytes: int
    scheduled_bytes: int
    log_bytes: int
    disk_bytes: int

    @property
    def passed(self) -> bool:
        """Nothing lost, delivered twice, early, cancelled and yet delivered, or unknown."""
        return self.foreign == 0 and all(audit.good for audit in self.groups.values())

    @property
    def bytes_a_message(self) -> float:
        """What the log holds for a scheduled message: its body, its key and the overhead."""
        return self.scheduled_bytes / self.scheduled

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        plain = asdict(self)
        return plain | {"bytes_a_message": round(self.bytes_a_message, 1), "passed": self.passed}
