"""The parts of a broker that metrics, pages and the service manager read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
from timerlog.commitlog.log import CommitLog
from timerlog.engine.deliver import Deliver
from timerlog.engine.groups import Groups
from timerlog.engine.look import Look
from timerlog.files.held_space import Reserve, Spare
from timerlog.purge.purger import Purger
from timerlog.recovery.checkpoint import Checkpoints
from timerlog.services.enqueue_get import EnqueueGet
from timerlog.tables.tables import Tables
from timerlog.wheel.wheel import TimerWheel


class Engine(Protocol):
    """What of the engine has figures."""

    tables: Tables
    log: CommitLog
    wheel: TimerWheel
    groups: Groups
    deliver: Deliver
    look: Look
    enqueue_get: EnqueueGet
    purger: Purger
    checkpoints: Checkpoints
    reserve: Reserve
    spare: Spare


@dataclass(frozen=True, slots=True)
class Watched:
    """Nothing is changed through it, but that refusals are counted."""

    settings: Settings
    engine: Engine
    clock: Clock
    lifetime: Lifetime
    counters: Counters
    commit: GroupCommit
    services: Services
    delivery: Delivery
    forecasts: Forecasts
    housekeeping: Housekeeping
    vitals: Vitals
