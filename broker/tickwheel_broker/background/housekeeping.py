"""What is looked after once a second: the clock, the data directory, groups that end by themselves."""

from __future__ import annotations

from typing import Final, Protocol

import trio

from tickwheel_broker import logs
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.errors import advice_for
from tickwheel_broker.rest import Rest
from timerlog.engine.dead_letters import DeadLetters
from timerlog.errors import DiskFull
from timerlog.services.fill_wheel import FillWheel
from timerlog.wheel.wheel import TimerWheel

HOUSEKEEPING_S: Final = 1.0
_STEP_BACK_MS: Final = 1_000

_log = logs.get_logger("core")


class Directory(Protocol):
    """What of the engine is looked after."""

    wheel: TimerWheel
    fill_wheel: FillWheel
    dead_letters: DeadLetters

    def check_directory(self) -> None:
        """Raises `DirectoryGone`."""

    def housekeeping(self, now_ms: int) -> None:
        """Checkpoints, and disk space that is held."""


class Housekeeping:
    """One round a second."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        readers: Readers,
        rest: Rest,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._readers = readers
        self._rest = rest
        self.clock_set_back = 0
        """How often the wall clock was."""
        self.rounds = 0
        """How often all of it was done."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            now_ms = self._clock.now_ms()
            # It may have been ahead between two looks only: then the wheel has turned that far, and waits there.
            ahead_ms = self._directory.wheel.tick_ms - now_ms
            back_ms = max(self._clock.take_step_back_ms(), ahead_ms)
            if back_ms > _STEP_BACK_MS:
                _log.warning("the wall clock was set back", by_ms=back_ms)
                self.clock_set_back += 1
                self._turn_back(now_ms, back_ms)
                await self._rest()
            self._directory.check_directory()
            self._directory.housekeeping(now_ms)
            for _step in self._readers.keep(now_ms):
                await self._rest()
            self._tell_of_unburied()
            self.rounds += 1

    def _turn_back(self, now_ms: int, back_ms: int) -> None:
        try:
            moved = self._directory.fill_wheel.clock_went_back(now_ms, back_ms)
        except DiskFull as error:
            _log.error("leases given out meanwhile last too long: the disk is full", advice=advice_for(error))
        else:
            if moved:
                _log.warning("leases and waits from before were turned back as well", messages=moved)

    def _tell_of_unburied(self) -> None:
        """Once a second at most for each group and reason: the same may happen to many messages again and again."""
        for unburied in self._directory.dead_letters.take_unburied():
            _log.error(
                "messages cannot become dead letters, and are delivered again",
                topic=unburied.topic,
                group=unburied.group,
                messages=unburied.messages,
                code=unburied.error.code,
                reason=str(unburied.error),
                advice=advice_for(unburied.error),
            )
