"""Who may not come in, who may not do what, and what is wrong with certificates and tokens."""

from __future__ import annotations

from tickwheel.protocol.error_base import TickwheelError


class ConnectionDenied(TickwheelError):
    """The broker does not let this connection in."""

    code = "connection_denied"
    advice = "Ask whoever runs the broker for access; the broker's log says why."


class TlsRequired(ConnectionDenied):
    """This port of the broker speaks TLS only."""

    code = "tls_required"
    advice = "Connect to tickwheels://HOST:PORT, with the broker's CA as ca_file= or --ca unless the system knows it."


class BadCertificate(TickwheelError, ValueError):
    """A certificate, its key or a CA file cannot be used."""

    code = "bad_certificate"
    advice = "Name PEM files that this user can read: the certificate with its chain, and the key that belongs to it."


class TlsFailed(TickwheelError, ConnectionError):
    """Client and broker did not agree on TLS."""

    code = "tls_failed"
    advice = "Check that both ends speak TLS 1.2 or newer; the broker's log may say more."


class TokenNeedsTls(TickwheelError, ValueError):
    """The token would be sent in plain text."""

    code = "token_needs_tls"
    advice = "Use tickwheels://…; or plain_token=True (--plain-token) if nobody can listen on the way."
