"""The parts of a broker that metrics, pages and the service manager read."""

from __future__ import annotations

from dataclasses import dataclass

from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.background.housekeeping import Housekeeping
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery import Delivery
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.monitoring.vitals import Vitals
from tickwheel_broker.services import Services
from timerlog.store import Store


@dataclass(frozen=True, slots=True)
class Watched:
    """Nothing is changed through it, but that refusals are counted."""

    settings: Settings
    store: Store
    clock: Clock
    lifetime: Lifetime
    counters: Counters
    commit: GroupCommit
    services: Services
    delivery: Delivery
    forecasts: Forecasts
    housekeeping: Housekeeping
    vitals: Vitals
