"""The settings of a store, and those of a topic."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Meta

from timerlog.errors import BadTopicSettings

MIB = 1024 * 1024
YEAR_MS: Final = 366 * 86_400_000
#: Stands for "without a limit" where a number of milliseconds is needed.
FOREVER_MS: Final = 1000 * YEAR_MS
DEFAULT_PRIORITY: Final = 50


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in milliseconds.

    ``segment_bytes`` holds for new directories; an existing one keeps what it was made with.
    ``disk_reserve_bytes``: at most so much is kept for what accepted messages will need. From ``ack_wait_ms`` on:
    what holds for topics that do not say otherwise.
    """

    segment_bytes: int = 64 * MIB
    disk_reserve_bytes: int = 16 * MIB
    max_body_bytes: int = 4 * MIB
    max_frame_bytes: int = 8 * MIB
    max_topics: int = 1_000
    max_groups: int = 1_000
    ack_wait_ms: int = 30_000
    min_backoff_ms: int = 30_000
    max_backoff_ms: int = 3_600_000
    purge_after_ms: int = 86_400_000


_Wait: TypeAlias = Annotated[int, Meta(ge=1, le=YEAR_MS)]
_WaitOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=YEAR_MS)]
_Age: TypeAlias = Annotated[int, Meta(ge=0, le=FOREVER_MS)]


class TopicSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a topic says for itself; ``None``: as the broker's settings say. Times in ms, sizes in bytes.

    ``max_backoff_ms``, ``max_attempts``, ``retention_ms``, ``rate`` and ``spread_ms``: 0 is "no limit" ("no spread").
    ``rate``: deliveries a second to each group. ``cache_size``: un-acked messages with the subscribers of a group.
    """

    ack_wait_ms: _Wait | None = None
    min_backoff_ms: _Wait | None = None
    max_backoff_ms: _WaitOrNone | None = None
    max_attempts: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    purge_after_ms: _Age | None = None
    retention_ms: _Age | None = None
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    cache_size: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    rate: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    spread_ms: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] | None = None
    max_body_bytes: Annotated[int, Meta(ge=0, le=16 * MIB)] | None = None


def _limits() -> dict[str, tuple[float, float]]:
    found = {}
    for name, hint in get_type_hints(TopicSettings, include_extras=True).items():
        meta = get_args(get_args(hint)[0])[1]
        found[name] = (meta.ge, meta.le)
    return found


_LIMITS: Final = _limits()


def check_topic_settings(values: dict[str, object]) -> TopicSettings:
    """The settings that a map of names and values means. Raises ``BadTopicSettings`` for any that is wrong."""
    try:
        settings = msgspec.convert(values, TopicSettings)
    except msgspec.ValidationError as error:
        raise BadTopicSettings(_explained(values) or f"these settings cannot be used: {error}") from None
    low, high = settings.min_backoff_ms, settings.max_backoff_ms
    if low is not None and high and high < low:
        raise BadTopicSettings(
            f"max_backoff ({duration_text(high)}) is below min_backoff ({duration_text(low)})"
        )
    return settings


def _explained(values: dict[str, object]) -> str:
    """Which numbers are out of their limits, in the units in which they are given; empty: something else is wrong."""
    found = []
    for name, (low, high) in _LIMITS.items():
        value = values.get(name)
        if not isinstance(value, int | float):
            continue
        text = duration_text if name.endswith("_ms") else "{:,.0f}".format
        if value < low:
            found.append(f"{name.removesuffix('_ms')}: at least {text(low)}")
        elif value > high:
            found.append(f"{name.removesuffix('_ms')}: at most {text(high)}")
    return "; ".join(found)


def duration_text(duration_ms: float) -> str:
    """`366d`, `90s`, `250ms`: the shortest exact one."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if duration_ms and duration_ms % unit_ms == 0:
            return f"{duration_ms // unit_ms:.0f}{unit}"
    return f"{duration_ms:.0f}ms"


def effective_settings(own: TopicSettings, store: StoreSettings) -> dict[str, float]:
    """What holds for a topic: its own settings, and the store's where it says nothing."""
    ack_wait_ms = own.ack_wait_ms or store.ack_wait_ms
    fallback = {
        "ack_wait_ms": ack_wait_ms,
        "min_backoff_ms": store.min_backoff_ms if own.ack_wait_ms is None else ack_wait_ms,
        "max_backoff_ms": store.max_backoff_ms,
        "max_attempts": 0,
        "purge_after_ms": store.purge_after_ms,
        "retention_ms": 0,
        "batch_size": 0,
        "cache_size": 0,
        "priority": DEFAULT_PRIORITY,
        "rate": 0,
        "spread_ms": 0,
        "max_body_bytes": store.max_body_bytes,
    }
    assert fallback.keys() == _LIMITS.keys(), "each setting has a value where a topic says nothing"
    given = msgspec.to_builtins(own)
    return {name: given.get(name, value) for name, value in fallback.items()}
