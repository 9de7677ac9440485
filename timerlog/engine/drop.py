"""Dropping messages that are done and kept elsewhere, without waiting until their topic's ``purge_after`` is over.

A dropped message is gone for everybody at once: its key is free and nobody finds it. Its disk space comes back as that
of all others that nobody needs: the purge sees that it is dead. There is a record of it, so a start drops it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from timerlog.engine.change import DONE, UNKNOWN, Changing
from timerlog.errors import OtherLog
from timerlog.layout import MessageState, RecordType, UInt64Array


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of messages that should be dropped: how many went now, how many were gone, and which stay because
    some group is not done with them, or was done too late."""

    dropped: int
    gone: int
    kept: UInt64Array


class Dropping(Changing):
    def check_log(self, log_id: int) -> None:
        """Raises ``OtherLog`` when ids of another log are meant."""
        if log_id != self.log.log_id:
            raise OtherLog(
                f"these messages are of the log {log_id:016x}, and this one is {self.log.log_id:016x}"
            )

    def drop(self, ids: UInt64Array, done_before_ms: int) -> Dropped:
        """Drops messages that every group was done with before ``done_before_ms``. Ids that nobody knows any more count
        as gone. It may be relied on once the log is durable. Raises ``DiskFull``: then nothing was dropped."""
        ids = np.unique(ids)
        verdicts = self._judge_ids(ids)
        is_unknown = verdicts == UNKNOWN
        ready = np.flatnonzero(verdicts == DONE)
        ready = ready[self._last_done_ms(ids[ready]) < done_before_ms]
        chosen = np.ascontiguousarray(ids[ready])
        stays = ~is_unknown
        stays[ready] = False
        done = Dropped(len(chosen), int(is_unknown.sum()), ids[stays])
        if len(chosen):
            self.decided(done)
            self._end(chosen, RecordType.DROPPED, MessageState.DROPPED)
        return done

    def _last_done_ms(self, ids: UInt64Array) -> npt.NDArray[np.int64]:
        """When the last of its groups was done with each message; ``ids`` are in order."""
        last_ms = np.zeros(len(ids), np.int64)
        for group_id, seqs, members in self._in_groups(ids, None):
            counts = seqs >= self.tables.groups[group_id].record.start_seq
            times = self.tables.groups[group_id].deliveries.items["time_ms"][seqs[counts]]
            places = np.searchsorted(ids, members[counts])
            last_ms[places] = np.maximum(last_ms[places], times)
        return last_ms
