"""What the broker can say of itself in numbers: for `/metrics`, and for clients that ask with FIGURES.

Nothing is counted for it: everything is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import trio

from tickwheel_broker.background.housekeeping import Housekeeping
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.documents.endpoint_states import counted
from tickwheel_broker.documents.endpoints import Endpoints
from tickwheel_broker.documents.schedules import Schedules
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.services import CHANNEL_BATCHES, Queue, Services
from timerlog.commitlog.log import CommitLog
from timerlog.engine.deliver import Deliver
from timerlog.engine.groups import Groups
from timerlog.engine.look import Look
from timerlog.files.held_space import Reserve, Spare
from timerlog.purge.purger import Purger
from timerlog.recovery.checkpoint import Checkpoints
from timerlog.services.enqueue_get import EnqueueGet
from timerlog.tables.lateness import Histogram
from timerlog.tables.tables import Tables
from timerlog.wheel.wheel import TimerWheel

_WATCHED_REFUSALS: Final = (
    *("disk_full", "too_many_connections", "too_many_connections_from_address"),
    *("login_required", "bad_token", "token_revoked", "token_expired", "too_many_attempts"),
)
"""These are 0 before the first one: of a series that begins with 1, Prometheus sees no increase."""

_MS_PER_S: Final = 1_000

Entry: TypeAlias = dict[str, Any]


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


class Figure(NamedTuple):
    """A number, or one for each value of a label."""

    name: str
    help_text: str
    value: float | Mapping[str, float]
    label: str = ""
    is_counter: bool = False


class Distribution(NamedTuple):
    """How values are spread."""

    name: str
    help_text: str
    values: Histogram
    per_unit: int = 1
    """How many of the histogram's units are one of those that the name says."""


class Figures:
    """Of one broker since its start, but for what is said of topics and groups."""

    def __init__(
        self,
        *,
        settings: Settings,
        engine: Engine,
        clock: Clock,
        counters: Counters,
        commit: GroupCommit,
        services: Services,
        delivery: Delivery,
        housekeeping: Housekeeping,
        schedules: Schedules,
        endpoints: Endpoints,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._clock = clock
        self._counters = counters
        self._commit = commit
        self._services = services
        self._delivery = delivery
        self._housekeeping = housekeeping
        self._schedules = schedules
        self._endpoints = endpoints

    def distributions(self) -> Iterator[Distribution]:
        """The histograms."""
        syncs = self._commit.figures
        yield Distribution(
            "delivery_lateness_seconds",
            "How late messages reached their topics: the time then, less the time for which they were sent.",
            self._services.lateness_ms,
            _MS_PER_S,
        )
        yield Distribution(
            "first_delivery_lateness_seconds",
            "How late messages were handed to a subscriber of a group for the first time.",
            self._engine.deliver.first_lateness_ms,
            _MS_PER_S,
        )
        yield Distribution("sync_seconds", "How long fdatasync of the log took.", syncs.seconds)
        yield Distribution(
            "group_commit_replies",
            "Answers and deliveries that one sync of the log released.",
            syncs.replies,
        )

    def numbers(self) -> Iterator[Figure]:
        """All others."""
        yield from self._users()
        yield from self._syncs()
        yield from self._queues()
        yield from self._log()
        yield from self._disk()

    def _users(self) -> Iterator[Figure]:
        tables = self._engine.tables
        yield Figure("connections", "Clients that are connected.", self._counters.connections)
        yield Figure("subscribers", "Subscriptions of all clients.", self._delivery.subscribers)
        yield Figure("topics", "Topics, shards included.", len(tables.topics))
        yield Figure("groups", "Consumer groups, those of shards included.", len(tables.groups))
        yield _counter(
            "clock_set_back", "How often the wall clock was set back.", self._housekeeping.clock_set_back
        )
        yield _counter(
            "messages_damaged", "Messages set aside, for their record is damaged.", self._services.damaged
        )
        yield Figure(
            "schedules_in_trouble",
            "Schedules that could not send what was due, and try it again.",
            len(self._schedules.troubles),
        )
        states = map(self._endpoints.state_of, self._endpoints.all())
        yield Figure(
            "endpoints", "Push endpoints by what becomes of their messages.", counted(states), "state"
        )
        counts = dict.fromkeys(_WATCHED_REFUSALS, 0) | self._counters.refusals
        yield Figure(
            "refusals",
            "What was refused to clients, by error code.",
            dict(sorted(counts.items())),
            "code",
            True,
        )

    def _syncs(self) -> Iterator[Figure]:
        began_s = self._commit.figures.began_s
        yield Figure(
            "sync_running_seconds",
            "For how long the present sync has been waiting for the disk.",
            0.0 if began_s is None else trio.current_time() - began_s,
        )
        yield Figure(
            "sync_waiting_replies",
            "Answers and deliveries that wait for a sync of the log.",
            self._commit.waiting,
        )

    def _queues(self) -> Iterator[Figure]:
        services = self._services
        backlog, late_ms = services.overdue(self._clock.now_ms())
        yield Figure(
            "due_backlog",
            "Messages, and ends of leases, that are due and not where they belong; while the wheel is behind, about.",
            backlog,
        )
        yield Figure("oldest_overdue_seconds", "By how much the oldest of them is late.", late_ms / _MS_PER_S)
        queues: dict[str, Queue[Any]] = {
            "pending": services.pending,
            "due": services.due,
            "ready": services.ready,
        }
        yield Figure(
            "queue_batches",
            "Batches between two of the five services, the one at work included.",
            {name: len(queue.batches) for name, queue in queues.items()},
            "queue",
        )
        yield Figure(
            "queue_messages",
            "Messages, and ends of leases, in these batches.",
            {name: queue.messages for name, queue in queues.items()},
            "queue",
        )
        yield Figure(
            "queue_capacity_batches", "How many batches may wait between two services.", CHANNEL_BATCHES
        )
        yield Figure(
            "enqueue_backlog_messages",
            "Messages accepted and not on the wheel yet.",
            self._engine.enqueue_get.pending,
        )
        yield Figure(
            "enqueue_backlog_limit_messages",
            "With more than so many, producers wait.",
            self._settings.max_backlog_messages,
        )
        yield _counter(
            "full_disk_waits", "Steps of the services that were put off for a full disk.", services.full_disks
        )

    def _log(self) -> Iterator[Figure]:
        engine, log = self._engine, self._engine.log
        yield Figure("log_bytes", "Disk space of the log's segments.", log.disk_bytes())
        yield Figure("log_segments", "Segments of the log.", len(log.segments))
        if engine.purger.live_bytes is not None:
            yield Figure(
                "log_live_bytes",
                "What was needed of the log when the purge looked last.",
                engine.purger.live_bytes,
            )
        yield _counter("log_appended_bytes", "What was ever appended to the log.", log.appended_position)
        yield _counter("log_durable_bytes", "How far of that is surely on the disk.", log.durable_position)
        age_s = engine.checkpoints.age_ms(self._clock.now_ms()) / _MS_PER_S
        yield Figure(
            "checkpoint_age_seconds", "Since when changes are in no checkpoint; 0: there are none.", age_s
        )

    def _disk(self) -> Iterator[Figure]:
        engine = self._engine
        held_bytes = engine.reserve.size_bytes
        yield Figure("disk_reserve_bytes", "Held for what accepted messages still need.", held_bytes)
        yield Figure("disk_reserve_limit_bytes", "The most that is held.", self._settings.disk_reserve_bytes)
        yield Figure("disk_spare_bytes", "Held for the purge.", engine.spare.size_bytes)

    def topic(self, topic_id: int) -> Entry:
        """Of one topic that is there, without its groups; see `tickwheel.stats.TopicFigures`."""
        look = self._engine.look
        return look.topic_counts(topic_id) | {
            "purged": look.purged_messages(topic_id),
            "lateness": self._services.lateness_ms.of(look.shards_of(topic_id)),
        }

    def group(self, group_id: int) -> Entry:
        """Of one group that is there; see `tickwheel.stats.GroupFigures`."""
        groups = self._engine.groups
        parts = groups.parts_of(group_id)
        return groups.describe(group_id) | {
            "redelivered": sum(groups.redelivered[part] for part in parts),
            "lateness": self._engine.deliver.first_lateness_ms.of(parts),
        }


def _counter(name: str, help_text: str, value: float) -> Figure:
    return Figure(name, help_text, value, is_counter=True)
