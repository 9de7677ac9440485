"""Classes of the engine that have a counterpart outside of it, because the engine imports neither protocol nor client.
`tests/unit/test_counterparts.py` compares the fields of each pair; `figures` does not count these pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """A pair of classes, each as `path:name`, and how they differ on purpose: fields, with spaces between."""

    engine: str
    other: str
    base: str = ""
    """The base class of `other` in which the fields of both are written; empty: they are written in `other`."""
    engine_only: str = ""
    """Fields that the other class does not have."""
    other_only: str | None = ""
    """Fields that the engine's class does not have; None: any number."""
    other_defaults: str | None = ""
    """Fields with another default; None: defaults are not compared."""
    is_ordered: bool = True
    """Whether the fields of both come in the same order."""
    has_units: bool = True
    """Whether the names of durations end in `_ms` in `other`, too."""

    @property
    def pair(self) -> tuple[str, str]:
        """The classes in which the fields are written."""
        return self.engine, self.base or self.other


_EVENTS: Final = "tickwheel/client/admin/history.py"
_BOUNDS: Final = "due_from_ms due_until_ms created_from_ms created_until_ms done_from_ms done_until_ms"

COUNTERPARTS: Final = (
    # A record is kept; what is told of a topic has no number of its own in the log, but counts and what holds for it.
    Counterpart(
        engine="timerlog/commitlog/records.py:TopicRecord",
        other="tickwheel/stats.py:TopicInfo",
        engine_only="deleted parent shard maker",
        other_only="effective messages scheduled ready",
        other_defaults=None,
        is_ordered=False,
    ),
    # On the wire a bound that is not given is None; the engine compares with one that does not bind.
    Counterpart(
        engine="timerlog/engine/select.py:Filter",
        other="tickwheel/protocol/bodies/settling.py:MessageFilter",
        other_defaults=_BOUNDS,
        is_ordered=False,
    ),
    # A report begins at 0 and is counted up; an answer says every number.
    Counterpart(
        engine="timerlog/purge/purger.py:PurgeReport",
        other="tickwheel/protocol/bodies/admin.py:PurgeOk",
        other_only="run is_done",
        other_defaults=None,
    ),
    # Where an attempt stands in the log matters to the engine alone.
    Counterpart(
        engine="timerlog/readers/attempts.py:Attempt",
        other="tickwheel/client/admin/endpoints.py:EndpointAttempt",
        engine_only="group_id position place seq",
        is_ordered=False,
    ),
    Counterpart(
        engine="timerlog/readers/history.py:HistoryEvent",
        other=f"{_EVENTS}:HistoryEvent",
        base=f"{_EVENTS}:_Event",
        is_ordered=False,
    ),
    Counterpart(
        engine="timerlog/readers/tail.py:LoggedEvent",
        other=f"{_EVENTS}:LoggedEvent",
        base=f"{_EVENTS}:_Event",
        is_ordered=False,
    ),
    # The broker hands its settings on, with defaults that suit a daemon.
    Counterpart(
        engine="timerlog/settings.py:StoreSettings",
        other="broker/tickwheel_broker/config/settings.py:Settings",
        other_only=None,
        other_defaults="max_frame_bytes max_topics max_groups min_backoff_ms",
        is_ordered=False,
    ),
    Counterpart(
        engine="timerlog/settings.py:StoreSettings",
        other="tickwheel/client/options.py:BrokerSettings",
        other_only=None,
        is_ordered=False,
        has_units=False,
    ),
    # Durations can be given without a unit in their name, too: as timedelta or text.
    Counterpart(
        engine="timerlog/settings.py:TopicSettings",
        other="tickwheel/client/options.py:TopicSettings",
        other_only="ack_wait min_backoff max_backoff purge_after retention spread",
        is_ordered=False,
    ),
    # A message table is delivered by the outbox itself, which has a default for each setting.
    Counterpart(
        engine="timerlog/settings.py:TopicSettings",
        other="tickwheel/outbox/messages/settings.py:MessageSettings",
        engine_only="max_attempts retention_ms priority rate spread_ms max_body_bytes",
        other_only="poller_interval_ms columns",
        other_defaults="ack_wait_ms max_backoff_ms purge_after_ms batch_size cache_size",
    ),
)

COMPARED: Final = frozenset(counterpart.pair for counterpart in COUNTERPARTS)
