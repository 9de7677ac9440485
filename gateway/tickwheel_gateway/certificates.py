"""The certificate of the gateway: loaded from files, and anew while it runs."""

from __future__ import annotations

import logging
import ssl

from tickwheel.errors import BadCertificate
from tickwheel_gateway.transport.opening import tls_context

_log = logging.getLogger("tickwheel.gateway")


class Certificates:
    """What is current counts for handshakes that begin now."""

    def __init__(self, certificate: str, key: str = "") -> None:
        """Paths of PEM files; ``key`` may be in the other one. Raises BadCertificate."""
        self._certificate = certificate
        self._key = key
        self._current = self._load()

    def current(self) -> ssl.SSLContext:
        """For a handshake that begins now."""
        return self._current

    def reload(self) -> None:
        """Loads the files anew. If they are bad, the old ones stay, and the log says so."""
        try:
            self._current = self._load()
        except BadCertificate as error:
            _log.error("the new certificate is not used; the old one stays: %s", error)

    def _load(self) -> ssl.SSLContext:
        try:
            return tls_context(self._certificate, self._key)
        except OSError as error:  # errors of TLS are some, too
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            raise BadCertificate(
                f"{self._certificate} cannot be used: {reason}.",
                advice="Give PEM files of a certificate and its key.",
            ) from None
