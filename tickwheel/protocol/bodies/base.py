"""What all MessagePack bodies share: their base classes and the types of their fields."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from tickwheel.protocol.limits import MAX_CREDIT, MAX_IDS_A_REQUEST, MAX_QUERY_TIMEOUT_MS, MAX_TIME_MS

# Plain aliases at module level: msgspec resolves the annotations of the Structs below through them.
U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
TimeMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]
Credit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_CREDIT)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
Ids: TypeAlias = Annotated[list[Id], msgspec.Meta(min_length=1, max_length=MAX_IDS_A_REQUEST)]
Keys: TypeAlias = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_IDS_A_REQUEST)]


#: How long the broker may work on what it does in a process of its own.
QueryTimeoutMs: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_QUERY_TIMEOUT_MS)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
Epochs: TypeAlias = Annotated[list[U32], msgspec.Meta(min_length=1, max_length=MAX_IDS_A_REQUEST)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all requests."""


class Answer(msgspec.Struct, frozen=True):
    """The base of all answers."""


def check_target(ids: list[int] | None, topic: str | None, keys: list[str] | None) -> None:
    """Raises ``ValueError`` unless messages are meant by id, or by topic and key."""
    by_id = ids is not None and topic is None and keys is None
    by_key = ids is None and topic is not None and keys is not None
    if not (by_id or by_key):
        raise ValueError("Expected either `ids`, or `topic` and `keys`")


class Targeted(Request, frozen=True):
    """A request about messages: those with these ``ids``, or those of a ``topic`` with these ``keys``."""

    ids: Ids | None = None
    topic: Name | None = None
    keys: Keys | None = None

    def __post_init__(self) -> None:
        check_target(self.ids, self.topic, self.keys)


class Timed(Targeted, frozen=True):
    """A request that gives messages another time."""

    deliver_at_ms: TimeMs | None = None
    delay_ms: TimeMs | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_time(self.deliver_at_ms, self.delay_ms, needed=False)


def check_one_time(deliver_at_ms: int | None, delay_ms: int | None, *, needed: bool) -> None:
    """Raises ``ValueError`` for two times, and for none if one is needed."""
    given = (deliver_at_ms is not None) + (delay_ms is not None)
    if given > 1 or (needed and not given):
        raise ValueError("Expected either `deliver_at_ms` or `delay_ms`")
