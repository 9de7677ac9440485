"""What ends a connection: bytes that the protocol does not allow, and limits of number or of time."""

from __future__ import annotations

from tickwheel.protocol.errors.base import TickwheelError


class RemoteProtocolError(TickwheelError):
    """The other side sent something that the protocol does not allow."""

    code = "bad_frame"
    advice = "Check that both ends are Tickwheel of compatible versions, and that nothing alters the bytes."


class BadCrc(RemoteProtocolError):
    """A frame arrived with a wrong checksum."""

    code = "bad_crc"
    advice = (
        "The bytes were damaged on the way, or the peer does not speak Tickwheel; the connection was closed."
    )


class FrameTooLarge(RemoteProtocolError):
    """A frame is larger than the receiver allows."""

    code = "frame_too_large"
    advice = "Send smaller batches, or raise max_frame_bytes on the broker."


class BadHandshake(RemoteProtocolError):
    """The connection did not start with a proper HELLO."""

    code = "bad_handshake"
    advice = "Check that the address is that of a Tickwheel broker and that the client speaks its protocol."


class UnsupportedProtocol(RemoteProtocolError):
    """The two ends speak different versions of the protocol."""

    code = "unsupported_protocol"
    advice = "Upgrade the older one of client and broker."


class BadFrame(RemoteProtocolError):
    """The payload of a frame does not have the form that its type prescribes."""

    code = "bad_frame"


class UnknownFrame(RemoteProtocolError):
    """A frame has a type that the receiver does not know."""

    code = "unknown_frame"
    advice = "The client is newer than the broker; upgrade the broker."


# Limits --------------------------------------------------------------------------------------------


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
