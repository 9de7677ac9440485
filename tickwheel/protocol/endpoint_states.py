"""What becomes of an endpoint's messages now: `tickwheel push` tells it, and the broker tells it to who asks."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from tickwheel.protocol.bodies.base import Name, TimeMs

MAX_REASON_CHARS: Final = 500

ToldName: TypeAlias = Literal["delivering", "failing", "not_served"]
"""What `tickwheel push` tells."""
StateName: TypeAlias = Literal[ToldName, "paused"]


class EndpointState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What becomes of an endpoint's messages now; its tests do not count. Times are epoch ms."""

    name: StateName
    """``delivering``: its last answer was a success, or there was none yet; ``failing``: its last answer was a failure;
    ``not_served``: no `tickwheel push` sends to it; ``paused``: it is disabled."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)] = ""
    """What the last answer was, why nothing is sent, or what was said when it was disabled."""
    since_ms: TimeMs = 0
    """Of the first of the failures in a row, or when it was disabled; 0: it is not known."""
    next_ms: TimeMs = 0
    """When `tickwheel push` tries again; 0: it is not known."""


class ToldState(EndpointState, frozen=True, omit_defaults=True, kw_only=True):
    """That of one endpoint, as `tickwheel push` has it."""

    endpoint: Name
    name: ToldName
