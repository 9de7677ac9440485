"""What the broker is called, since when it has been there, and whether it is stopping."""

from __future__ import annotations

from importlib.metadata import version

import trio

from tickwheel_broker.clock.clock import Clock


class Lifetime:
    """One for each start of a broker; make it inside trio."""

    def __init__(self, clock: Clock) -> None:
        self.version = version("tickwheel")
        self.name = f"tickwheel/{self.version}"
        self.started_ms = clock.now_ms()
        self._started_s = trio.current_time()
        self.is_draining = False
        """Whether the broker takes no more sends, and waits for its clients to leave."""

    @property
    def uptime_ms(self) -> int:
        """How long the broker has been there, by a clock that is not set."""
        return round((trio.current_time() - self._started_s) * 1_000)
