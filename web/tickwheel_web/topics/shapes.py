"""What topics and groups look like."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel.protocol.units import format_duration
from tickwheel.stats import GroupStats, TopicInfo, TopicStats
from tickwheel_web.answers import Answer, answer
from tickwheel_web.endpoint_state import EndpointState
from tickwheel_web.shapes import Duration, Moment, Priority, Time, duration_of

_Duration = Duration | None | UnsetType
_Count = Annotated[int, Meta(ge=0)] | None | UnsetType
_OneOrMore = Annotated[int, Meta(ge=1)] | None | UnsetType


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Settings of a topic; null: the broker's."""

    ack_wait: _Duration = UNSET
    min_backoff: _Duration = UNSET
    max_backoff: _Duration = UNSET
    purge_after: _Duration = UNSET
    retention: _Duration = UNSET
    spread: _Duration = UNSET
    max_attempts: _Count = UNSET
    batch_size: _OneOrMore = UNSET
    cache_size: _OneOrMore = UNSET
    priority: Priority | UnsetType | None = UNSET
    rate: (
        Annotated[float, Meta(ge=0, description="Deliveries a second to each group; 0: any")]
        | UnsetType
        | None
    ) = UNSET
    max_body_bytes: _OneOrMore = UNSET


class NewTopic(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A topic that is to be there: its settings, and of how many shards by the hash of the key it is made."""

    settings: Settings = Settings()
    shards: Annotated[int, Meta(ge=2, le=256)] | UnsetType = UNSET


class ChangedTopic(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The settings that are to change; null: the broker's again."""

    settings: Settings


class NewGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A group that is to be there. It begins at the topic's `earliest` message, behind its `latest` one, or at the
    first that was due at a moment (`start_at`) or later. `ephemeral`: it ends so long after its last subscriber has
    left. `ignore_ordering_keys`: it is given messages with an ordering key as those without."""

    start: Literal["earliest", "latest"] | UnsetType = UNSET
    start_at: Time = UNSET
    ephemeral: Duration | UnsetType = UNSET
    ignore_ordering_keys: bool = False


class ChangedGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How a group is to be given messages, as in `NewGroup`."""

    ignore_ordering_keys: bool


class Seek(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where a group is to go on, as in `NewGroup`."""

    to: Literal["earliest", "latest"] | UnsetType = UNSET
    to_time: Time = UNSET


def _created(found: GroupStats) -> datetime | None:
    return found.created if found.created_ms else None


@answer(
    GroupStats,
    fields=(
        "name", "delivered", "acked", "leased", "backlog", "dead", "subscribers", "created_at", "last_read_at",
        "ephemeral", "ignores_ordering_keys", "endpoint_state",
    ),
    nullable=("ephemeral",),
    kinds={"endpoint_state": EndpointState | None},
    computed={"created_at": (Moment | None, _created)},
)  # fmt: skip
class Group(Answer, frozen=True):
    """A consumer group."""


def _names_of_groups(found: TopicStats) -> list[str]:
    return [group.name for group in found.groups]


@answer(
    TopicStats,
    fields=("name", "messages", "scheduled", "ready", "cancelled", "paused", "shard_of", "groups"),
    nullable=("shard_of",),
    computed={"groups": (list[str], _names_of_groups)},
)
class TopicRow(Answer, frozen=True):
    """A topic in a list."""


_DURATIONS: Final = ("ack_wait", "min_backoff", "max_backoff", "purge_after", "retention", "spread")

TopicSettings: Final = msgspec.defstruct(
    "TopicSettings",
    [
        (name, (str if name in _DURATIONS else float if name == "rate" else int) | UnsetType, UNSET)
        for name in Settings.__struct_fields__
    ],
    namespace={"__doc__": "Settings of a topic, as they are; 0 where there is no limit."},
    module=__name__,
    frozen=True,
)


def _settings(values: dict[str, int | float]) -> msgspec.Struct:
    """Settings by their wire names, with durations as texts."""
    texts = {
        name.removesuffix("_ms"): format_duration(int(value)) if name.endswith("_ms") else value
        for name, value in values.items()
    }
    known: dict[str, Any] = {name: texts[name] for name in TopicSettings.__struct_fields__ if name in texts}
    return TopicSettings(**known)


@answer(
    TopicInfo,
    fields=(
        "name",
        "created_at",
        "paused",
        "shards",
        "settings",
        "effective",
        "messages",
        "scheduled",
        "ready",
    ),
    computed={
        "settings": (TopicSettings, lambda found: _settings(found.settings)),
        "effective": (TopicSettings, lambda found: _settings(found.effective)),
    },
)
class Topic(Answer, frozen=True):
    """A topic with its settings: `settings` are its own, `effective` those that hold."""


class Topics(msgspec.Struct, frozen=True):
    """A part of the topics; `next` is the `after` of the next part, or null."""

    items: list[TopicRow]
    next: str | None


class Groups(msgspec.Struct, frozen=True):
    """A part of the groups; `next` is the `after` of the next part, or null."""

    items: list[Group]
    next: str | None


class DeletedTopic(msgspec.Struct, frozen=True):
    """The topic that was deleted, and how many messages it had."""

    name: str
    messages: int


class Backlog(msgspec.Struct, frozen=True):
    """A group, and how many messages it is not done with, or was not when it was deleted."""

    name: str
    backlog: int


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    NewGroup: {"not": {"required": ["start", "start_at"]}},
    ChangedTopic: {"properties": {"settings": {"minProperties": 1}}},
    Seek: {"oneOf": [{"required": ["to"]}, {"required": ["to_time"]}]},
}
"""Of their schemas, what msgspec cannot say."""


def settings_of(given: Settings) -> tuple[dict[str, Any], list[str]]:
    """As the client takes them: those that are set, and those that are unset. Raises BadTime."""
    fields = {
        name: value for name in Settings.__struct_fields__ if (value := getattr(given, name)) is not UNSET
    }
    values = {
        name: duration_of(value, name) if name in _DURATIONS else value
        for name, value in fields.items()
        if value is not None
    }
    return values, [name for name, value in fields.items() if value is None]
