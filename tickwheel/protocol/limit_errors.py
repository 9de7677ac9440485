"""Errors of a connection that went beyond a limit of number or of time."""

from __future__ import annotations

from tickwheel.protocol.error_base import TickwheelError


class TooManyConnections(TickwheelError):
    """The broker has as many connections as it allows."""

    code = "too_many_connections"
    advice = (
        "Share one client between tasks, close clients that you no longer need, or raise max_connections."
    )
    retryable = True


class TooManyConnectionsFromAddress(TooManyConnections):
    """The broker has as many connections from this address as it allows."""

    code = "too_many_connections_from_address"
    advice = (
        "Share one client between tasks, close clients that you no longer need, or raise "
        "max_connections_per_address."
    )


class HandshakeTimeout(TickwheelError):
    """The client did not finish its handshake in time."""

    code = "handshake_timeout"
    advice = "Send HELLO right after connecting; on slow networks raise handshake_timeout on the broker."
    retryable = True


class FrameTimeout(TickwheelError):
    """A frame that was begun did not arrive whole in time; nothing of it was done."""

    code = "frame_timeout"
    advice = "Send smaller batches, or raise frame_timeout on the broker where networks are slow."
    retryable = True


class IdleTimeout(TickwheelError):
    """The client sent nothing for too long."""

    code = "idle_timeout"
    advice = "Send PING now and then, as clients do by themselves, or raise idle_timeout on the broker."
    retryable = True


class SendTimeout(TickwheelError):
    """The client did not read what it was sent."""

    code = "send_timeout"
    advice = "Read answers and deliveries as they come; on slow networks raise send_timeout on the broker."
    retryable = True


class CreditTooLarge(TickwheelError, ValueError):
    """A subscription wants to hold more messages than the broker allows."""

    code = "credit_too_large"
    advice = "Subscribe with a smaller credit, or raise max_credit on the broker."
