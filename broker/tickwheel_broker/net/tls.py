"""Certificates of the listeners: loaded from files, and loaded anew while the broker runs."""

from __future__ import annotations

import os
import ssl
import stat

from tickwheel.protocol.errors import BadCertificate
from tickwheel_broker import logs
from tickwheel_broker.config.settings import Settings

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: only such that keep what was recorded secret when the key leaks later. Those of 1.3 are all good."""

_log = logs.get_logger("tls")


class Certificates:
    """The broker's certificate and key, and the CA whose clients may connect.

    `current` is the context for a handshake that begins now. `context` is for those who keep a context for good:
    it is always the same one, and each of its handshakes uses what is current.
    """

    def __init__(self, certificate: str, key: str = "", client_ca: str = "") -> None:
        """Paths of PEM files. `key` may be in the certificate's file. Raises BadCertificate."""
        self._certificate, self._key, self._client_ca = certificate, key or certificate, client_ca
        self.current = self._load()
        self.context = self._load()
        _tell_of_open_key(self._key)
        self.context.sni_callback = self._use_current

    @property
    def verifies_clients(self) -> bool:
        """Whether only clients with a certificate of the configured CA can connect."""
        return bool(self._client_ca)

    def reload(self) -> bool:
        """Load the files anew, for handshakes from now on. If they are bad, the old ones stay; False then."""
        try:
            self.current = self._load()
        except BadCertificate as error:
            _log.error(
                "the new certificate is not used; the old one stays",
                reason=error.message,
                advice=error.advice,
            )
            return False
        _tell_of_open_key(self._key)
        _log.info("certificates loaded", certificate=self._certificate)
        return True

    def _use_current(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, also in those that name no server."""
        handshake.context = self.current

    def _load(self) -> ssl.SSLContext:
        """A context with what the files have now: a new one, so that a CA that is no longer there is forgotten."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        # Without resumption each connection shows its certificate again, to the CA of now.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        _check_readable(self._certificate, "tls_certificate")
        _check_readable(self._key, "tls_key")
        try:
            context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            raise BadCertificate(f"{_explain(error)} ({self._certificate} and {self._key}).") from error
        if self._client_ca:
            _check_readable(self._client_ca, "tls_client_ca")
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise BadCertificate(f"{self._client_ca} holds no certificate of a CA.") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def certificates_of(settings: Settings) -> Certificates | None:
    """What the settings name; None without TLS. Raises BadCertificate."""
    if not settings.tls_certificate:
        return None
    return Certificates(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def _check_readable(path: str, setting: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise BadCertificate(f"{setting} {path} cannot be read: {error.strerror}.") from error


def _tell_of_open_key(path: str) -> None:
    if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        _log.warning(
            "other users may read the TLS key",
            path=path,
            advice="chmod 600 it, or give it to the broker's group only.",
        )


def _refuse_password() -> str:
    """OpenSSL would ask for the password on the terminal, and the broker would wait."""
    raise ValueError("the key is encrypted with a password")


def _explain(error: Exception) -> str:
    if not isinstance(error, ssl.SSLError):
        return f"The key cannot be used: {error}"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "The key does not belong to the certificate"
    return f"The certificate or its key cannot be used: {error.reason or 'no PEM data in the file'}"
