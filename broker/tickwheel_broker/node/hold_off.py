"""A node that was chosen and could not own the log does not come back at once to be chosen again.

It may hear all that others write, and append nothing. Where others own the log it stands again after a while, for the
case that they are lost; without an owner it stands sooner: rather a node that tries than none.
"""

from __future__ import annotations

from typing import Final

import trio

from tickwheel_broker.logs import get_logger
from tickwheel_broker.node.candidacy import Candidacy, Reason
from tickwheel_broker.sharedlog.known_owner import Silence
from tickwheel_broker.sharedlog.standing import Standing

LOOK_S: Final = 0.5

HELD_OFF_TIMEOUTS: Final = 10
"""So many of `cluster_timeout` it does not stand where an owner is heard."""

SILENT_TIMEOUTS: Final = 2
"""And so many where none is: as many as another node may take to own the log, or to give up as well."""

_log = get_logger("cluster")


class HoldOff:
    """Of one node. `run` works until cancelled."""

    def __init__(
        self, candidacy: Candidacy, standing: Standing, silence: Silence, cluster_timeout_s: float
    ) -> None:
        self._candidacy, self._standing, self._silence = candidacy, standing, silence
        self._cluster_timeout_s = cluster_timeout_s

    def begin(self) -> None:
        """It has left, and does not stand for a while."""
        self._standing.gave_up_s = trio.current_time()
        self._candidacy.withdraw(Reason.UNCONFIRMED)

    async def run(self) -> None:
        """Look now and then."""
        while True:
            await trio.sleep(LOOK_S)
            silent_s, gave_up_s = self._silence.look(), self._standing.gave_up_s
            if gave_up_s is None:
                continue
            held_off_s = trio.current_time() - gave_up_s
            if (
                held_off_s >= HELD_OFF_TIMEOUTS * self._cluster_timeout_s
                or silent_s >= SILENT_TIMEOUTS * self._cluster_timeout_s
            ):
                _log.info("may be chosen again", after_s=round(held_off_s, 1))
                self._standing.gave_up_s = None
                self._candidacy.stand_again(Reason.UNCONFIRMED)
