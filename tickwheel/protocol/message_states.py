"""How a message stands in a group, as filters and lists name it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

NotDone: TypeAlias = Literal["scheduled", "ready", "leased", "waiting"]
"""It is to be delivered, or is being handled."""
State: TypeAlias = Literal[NotDone, "acked", "dead"]

NOT_DONE: Final[tuple[NotDone, ...]] = get_args(NotDone)
STATES: Final[tuple[State, ...]] = get_args(State)
