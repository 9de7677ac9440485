"""Which connections have overstepped a limit of time, and what they are told.

One look a second at all of them is cheaper than a timer for each read and write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickwheel.protocol.errors import (
    FrameTimeout,
    HandshakeTimeout,
    IdleTimeout,
    SendTimeout,
    TickwheelError,
)
from tickwheel_broker.config.settings import Settings

if TYPE_CHECKING:
    from tickwheel_broker.connections.connection import Connection

_WATCH_S = 1.0


def watch_interval_s(settings: Settings) -> float:
    """How often to look, so that no deadline is missed by more than a quarter of the shortest."""
    shortest_ms = min(
        settings.handshake_timeout_ms,
        settings.frame_timeout_ms,
        settings.idle_timeout_ms,
        settings.send_timeout_ms,
    )
    return min(_WATCH_S, shortest_ms / 4_000)


def overdue(connection: Connection, settings: Settings, now_s: float) -> TickwheelError | None:
    """The error of the deadline that a connection has missed."""

    def is_past(since_s: float | None, limit_ms: int) -> bool:
        return since_s is not None and (now_s - since_s) * 1_000 > limit_ms

    if is_past(connection.outgoing.stalled_since_s, settings.send_timeout_ms):
        return SendTimeout()
    if not connection.is_greeted and is_past(connection.opened_s, settings.handshake_timeout_ms):
        return HandshakeTimeout("No HELLO came within handshake_timeout.")
    if is_past(connection.frame_since_s, settings.frame_timeout_ms):
        return FrameTimeout("A frame was begun and did not arrive whole within frame_timeout.")
    if is_past(connection.pulse.silent_since_s, settings.idle_timeout_ms):
        return IdleTimeout("Nothing was sent for idle_timeout.")
    return None
