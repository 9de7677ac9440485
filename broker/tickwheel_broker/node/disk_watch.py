"""A node whose disk is full hands over to one that has room, and stands again once it has room itself.

Only to one that stands, and who has no room does not: so where all disks are full one node stays the owner, and refuses
sends as a broker of its own does. A node without room also stands where no owner was heard for long: rather one that
takes no sends than none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from tickwheel_broker.logs import get_logger
from tickwheel_broker.node.candidacy import Candidacy, Reason
from tickwheel_broker.sharedlog.known_owner import Silence
from tickwheel_broker.sharedlog.standing import Standing

LOOK_S: Final = 0.5
FULL_LOOK_S: Final = 2.0
"""So often a node looks that has had no room."""

FULL_S: Final = 10.0
"""For so long after the last time that there was no room the disk counts as full, whatever the system says of it: it
does not tell of quotas."""

_log = get_logger("cluster")


class Room(Protocol):
    """Of the disk."""

    @property
    def free_bytes(self) -> int:
        """What is free."""

    @property
    def kept_bytes(self) -> int:
        """What a large request must leave."""


class DiskWatch:
    """Of one node. `run` works until cancelled."""

    def __init__(
        self,
        *,
        candidacy: Candidacy,
        standing: Standing,
        silence: Silence,
        look_at_room: Callable[[], Awaitable[Room]],
        count_refused: Callable[[], int],
        patience_s: float,
    ) -> None:
        """`look_at_room` may raise OSError. `count_refused`: how often something was put off or refused for
        a full disk. `patience_s`: for so long another one may take over."""
        self._candidacy, self._standing, self._silence = candidacy, standing, silence
        self._look_at_room, self._count_refused = look_at_room, count_refused
        self._patience_s = patience_s
        self._counted = count_refused()
        self._was_told = False
        self._full_s = 0.0
        self._wanted_bytes = 0

    def was_full(self) -> None:
        """There was no room for what this node has read."""
        self._was_told = True

    async def run(self) -> None:
        """Look now and then."""
        while True:
            try:
                room = await self._look_at_room()
            except OSError as error:
                _log.warning("the disk of this node cannot be looked at", reason=error.strerror)
            else:
                self._note(room)
                await self._stand(self._silence.look())
            await trio.sleep(FULL_LOOK_S if self._standing.is_disk_full else LOOK_S)

    def _note(self, room: Room) -> None:
        standing, now_s = self._standing, trio.current_time()
        counted = self._count_refused()
        if self._was_told or counted > self._counted:
            self._full_s = now_s
            if not standing.is_disk_full:
                # By so much more than there was the next thing fits as well.
                self._wanted_bytes = room.kept_bytes + min(room.free_bytes, room.kept_bytes)
                _log.error(
                    "the disk of this node is full: another one is to own the log until there is room",
                    free_bytes=room.free_bytes,
                    wanted_bytes=self._wanted_bytes,
                )
                standing.is_disk_full = True
        elif standing.is_disk_full and (
            room.free_bytes >= self._wanted_bytes and now_s - self._full_s >= FULL_S
        ):
            _log.info("the disk of this node has room again", free_bytes=room.free_bytes)
            standing.is_disk_full = False
        self._was_told, self._counted = False, counted

    async def _stand(self, silent_s: float) -> None:
        if not self._standing.is_disk_full:
            self._candidacy.stand_again(Reason.DISK)
        elif self._standing.replicator is not None:
            if await self._candidacy.has_others():
                self._candidacy.withdraw(Reason.DISK)
        elif silent_s < self._patience_s:
            self._candidacy.withdraw(Reason.DISK)
        else:
            self._candidacy.stand_again(Reason.DISK)
