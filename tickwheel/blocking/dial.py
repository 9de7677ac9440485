"""Opens a connection to a broker."""

from __future__ import annotations

import socket
import ssl

from tickwheel.blocking.wire import Tls, Wire
from tickwheel.client.security import Security, explain_tls
from tickwheel.client.url import Address, UnixAddress


def dial(address: Address, security: Security, timeout_s: float) -> Wire:
    """Blocks. Raises OSError (TimeoutError among them), TlsFailed, BadCertificate."""
    if isinstance(address, UnixAddress):
        return Wire(_unix(address.path, timeout_s))
    context = security.context() if address.tls else None
    sock = socket.create_connection((address.host, address.port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return Wire(sock)
        tls = Tls(context, address.host)
        tls.shake_hands(sock)
        return Wire(sock, tls)
    except BaseException as error:
        sock.close()
        explained = explain_tls(error, address) if isinstance(error, ssl.SSLError) else None
        if explained is not None:
            raise explained from error
        raise


def _unix(path: str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
