"""The parts of a broker that metrics, pages and the service manager read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.monitoring.figures import Engine, Figures
from tickwheel_broker.monitoring.vitals import Vitals
from tickwheel_broker.services import Services
from tickwheel_broker.sharedlog.standing import Standing

Drain = Callable[[float], Awaitable[None]]
"""Hands over what a node of a cluster owns, and lets it stand again after so many seconds."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Nothing is changed through it, but that refusals are counted."""

    settings: Settings
    engine: Engine
    clock: Clock
    lifetime: Lifetime
    counters: Counters
    figures: Figures
    services: Services
    forecasts: Forecasts
    vitals: Vitals


@dataclass(slots=True)
class Sight:
    """What there is to see of a process: its broker while it serves, and in a cluster how its node stands."""

    settings: Settings
    standing: Standing | None = None
    watched: Watched | None = None
    _looks: set[trio.CancelScope] = field(default_factory=set)

    @contextmanager
    def look(self) -> Iterator[Watched | None]:
        """For what looks at the broker and waits in between: it is cancelled, and left, when the broker ends. Its
        tables are no memory of ours then."""
        with trio.CancelScope() as scope:
            self._looks.add(scope)
            try:
                yield self.watched
            finally:
                self._looks.discard(scope)

    def hide(self) -> None:
        """The broker ends, and the process goes on."""
        self.watched = None
        for scope in self._looks:
            scope.cancel()

    @property
    def is_alive(self) -> bool:
        """Whether everything moves that should."""
        return self.watched is None or self.watched.vitals.is_alive
