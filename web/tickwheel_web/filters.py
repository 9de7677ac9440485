"""Which messages of a topic are meant, by what they have in common."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel.protocol.message_states import STATES, State
from tickwheel_web.shapes import Priority, Time

_STATES: Final = "|".join(STATES)
States = Annotated[
    str,
    Meta(
        pattern=f"^({_STATES})(,({_STATES}))*$",
        description=f"One of {_STATES.replace('|', ', ')}, or several with commas between them",
    ),
]


class Bounds(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bounds, the upper ones of times exclusive. `done`: when a group acked it, or gave it up; `epoch_min`: delivered
    at least so often; `group`: the one whose state and deliveries count, without it any."""

    due_from: Time = UNSET
    due_until: Time = UNSET
    created_from: Time = UNSET
    created_until: Time = UNSET
    done_from: Time = UNSET
    done_until: Time = UNSET
    priority_min: Priority | UnsetType = UNSET
    priority_max: Priority | UnsetType = UNSET
    epoch_min: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    group: str | UnsetType = UNSET


class Filter(Bounds, forbid_unknown_fields=True, frozen=True):
    """Messages that have all of this; an empty one means all messages of the topic."""

    state: list[State] | UnsetType = UNSET


def where_of(given: Bounds) -> dict[str, Any]:
    """As the client takes it. ``state`` may be a list, or a text with commas."""
    fields = {
        name: value
        for name in Filter.__struct_fields__
        if (value := getattr(given, name, UNSET)) is not UNSET
    }
    states = fields.pop("state", None)
    if isinstance(states, str):
        states = states.split(",")
    return fields if states is None else {**fields, "states": states}
