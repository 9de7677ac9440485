"""How long no owner of the log was heard, by a node that listens."""

from __future__ import annotations

import trio

from tickwheel_broker.cluster.known_owner import KnownOwner
from tickwheel_broker.cluster.standing import Standing


class Silence:
    """Of one node. `look` is to be called often."""

    def __init__(self, standing: Standing, known_owner: KnownOwner) -> None:
        self._standing, self._known_owner = standing, known_owner
        self._records, self._heard_s = known_owner.records, trio.current_time()

    def look(self) -> float:
        """So many seconds."""
        standing, now_s = self._standing, trio.current_time()
        has_heard = self._known_owner.records != self._records
        # Before it has read the log, silence says nothing: it did not listen.
        if has_heard or standing.replicator is not None or not standing.is_warm:
            self._records, self._heard_s = self._known_owner.records, now_s
        return now_s - self._heard_s
