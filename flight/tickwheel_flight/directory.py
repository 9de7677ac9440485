"""The data directory that is read: as it is now, and as it was when a ticket was made."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec

from tickwheel.arrow.errors import PositionLost
from tickwheel.arrow.event_table import log_key
from tickwheel.arrow.places import describe
from tickwheel_flight.tickets import Moment
from timerlog.readers.describe import Offline

_MOST_REMEMBERED: Final = 64


class Directory:
    """Used by many threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._known: OrderedDict[Moment, Offline] = OrderedDict()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        """One at a time: each look takes addresses for the whole log."""

    def now(self, *, is_committed: bool = True) -> tuple[Moment, Offline]:
        """As it is at this moment. Raises ``SourceError``."""
        offline = self._look(time.time_ns() // 1_000_000, is_committed=is_committed)
        description = offline.description
        moment = Moment(
            log=log_key(offline),
            now_ms=description.now_ms,
            next_id=description.next_id,
            end=offline.end_position,
            groups=_digest(offline),
            is_committed=is_committed,
        )
        self._remember(moment, offline)
        return moment, offline

    def then(self, moment: Moment) -> Offline:
        """As it was at a moment of which a ticket tells, perhaps one of another process. What was deleted since is not
        there. Raises ``SourceError``, ``PositionLost``."""
        with self._lock:
            known = self._known.get(moment)
            if known is not None:
                self._known.move_to_end(moment)
                return known
        found = _as_of(moment, self._look(moment.now_ms, is_committed=moment.is_committed))
        self._remember(moment, found)
        return found

    def _look(self, now_ms: int, *, is_committed: bool) -> Offline:
        with self._looking:
            return describe(self.path, now_ms, committed=is_committed)

    def _remember(self, moment: Moment, offline: Offline) -> None:
        with self._lock:
            self._known[moment] = offline
            self._known.move_to_end(moment)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)


def _as_of(moment: Moment, offline: Offline) -> Offline:
    """What a ticket's reader was told, out of what there is now."""
    description = offline.description
    if log_key(offline) != moment.log:
        raise PositionLost(
            f"The ticket is for the log {moment.log}, and this is {log_key(offline)}.",
            advice="Ask for the table anew (GetFlightInfo).",
        )
    if moment.next_id > description.next_id or moment.end > offline.end_position:
        raise PositionLost(
            f"The ticket goes up to position {moment.end} and id {moment.next_id}, and the log is known up to "
            f"{offline.end_position} and {description.next_id}.",
            advice="Ask again when this replica has caught up, or ask for the table anew (GetFlightInfo).",
        )
    if _digest(offline) != moment.groups:
        raise PositionLost(
            "Groups were made, moved or deleted since the table was asked for, and this process does not know how they "
            "were.",
            advice="Ask for the table anew (GetFlightInfo).",
        )
    return msgspec.structs.replace(
        offline,
        description=msgspec.structs.replace(description, next_id=moment.next_id),
        end_position=moment.end,
    )


def _digest(offline: Offline) -> int:
    groups = sorted(offline.description.groups, key=lambda group: group.group_id)
    return int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(groups)).digest()[:8])
