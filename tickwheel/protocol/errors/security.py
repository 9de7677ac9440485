"""Who may not come in, who may not do what, and what is wrong with certificates and tokens."""

from __future__ import annotations

from tickwheel.protocol.errors.base import TickwheelError


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


class LoginRequired(ConnectionDenied):
    """The broker wants a token."""

    code = "login_required"
    advice = (
        "Give one by TICKWHEEL_TOKEN_FILE (--token-file) or TICKWHEEL_TOKEN, or as token= or token_file=."
    )


class BadToken(ConnectionDenied):
    """The token is not valid: the broker does not know it."""

    code = "bad_token"
    advice = (
        "Check that it is complete and for this broker; `tickwheel tokens list` shows those that there are."
    )


class TokenRevoked(ConnectionDenied):
    """The token was revoked."""

    code = "token_revoked"
    advice = "Ask for a new one: `tickwheel tokens create`."


class TokenExpired(ConnectionDenied):
    """The token has expired."""

    code = "token_expired"
    advice = "Ask for a new one: `tickwheel tokens create`, or `tickwheel tokens rotate` before a token's time is over."


class GrantsChanged(ConnectionDenied):
    """The rights of this token have changed, and a subscription of this connection is not among them any more."""

    code = "grants_changed"
    advice = "Connect again; what is still allowed goes on."
    retryable = True


class Disconnected(ConnectionDenied):
    """An administrator has closed this connection."""

    code = "disconnected"
    advice = "Connect again, if that is still wanted: nothing else has changed."
    retryable = True


class TooManyAttempts(ConnectionDenied):
    """There were too many failed log-ins."""

    code = "too_many_attempts"
    advice = "Correct the token, then try again in a minute; clients that are logged in are not concerned."
    retryable = True


class Forbidden(TickwheelError):
    """The token does not allow this; nothing was done."""

    code = "forbidden"
    advice = "Whoever runs the broker can allow it: `tickwheel tokens grant`."


class TokensUnusable(TickwheelError):
    """The file of tokens cannot be used, so nobody is let in by it."""

    code = "bad_tokens_file"
    advice = "Restore it from a backup, or move it away and create the tokens anew."


class UnknownToken(TickwheelError):
    """There is no such token."""

    code = "unknown_token"
    advice = "`tickwheel tokens list` shows them all, with their ids."


class InsecureListener(TickwheelError):
    """Other machines could reach the broker, and nobody would have to log in."""

    code = "insecure_listener"
    advice = (
        "Create a token (`tickwheel tokens create`) or set tls_client_ca; or listen on 127.0.0.1; or set "
        "insecure = true if everybody who reaches the port may do everything."
    )
