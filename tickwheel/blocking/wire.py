"""A socket that never blocks: what cannot be written now is kept, and TLS is done in memory.

So one lock is enough for all that threads do with it, and nothing of it happens outside of the lock.
"""

from __future__ import annotations

import socket
import ssl

from tickwheel.client.conversation import FIRST_READ_BYTES, READ_BYTES


class Wire:
    """The socket of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls: Tls | None = None
        self._unwritten = bytearray()
        self._wanted_bytes = FIRST_READ_BYTES
        self.may_have_more = False
        """Whether there is probably more where the last read came from."""
        sock.setblocking(False)

    @property
    def has_unwritten(self) -> bool:
        """Whether something waits for the socket."""
        return bool(self._unwritten)

    @property
    def is_plain(self) -> bool:
        """Whether bytes go over the socket as they are."""
        return self._tls is None

    def fileno(self) -> int:
        """Of the socket."""
        return self._sock.fileno()

    def protect(self, tls: Tls) -> None:
        """From now on all goes through TLS, whose handshake is done."""
        self._tls = tls

    def write(self, data: bytes) -> None:
        """Writes what the socket takes, and keeps the rest. Raises OSError."""
        if self._tls is not None:
            data = self._tls.encrypted(data)
        if self._unwritten:
            self._unwritten += data
        else:
            sent = self._send(data)
            if sent < len(data):
                self._unwritten += memoryview(data)[sent:]

    def keep(self, rest: bytes) -> None:
        """The rest of what was begun by something else: it goes next."""
        self._unwritten += rest

    def flush(self) -> None:
        """Writes what was kept, as far as the socket takes it. Raises OSError."""
        if self._unwritten:
            del self._unwritten[: self._send(self._unwritten)]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def read(self) -> bytes | None:
        """What has come; empty at the end, and None when nothing is there. Raises OSError."""
        try:
            data = self._sock.recv(self._wanted_bytes)
        except (BlockingIOError, InterruptedError):
            return None
        self.may_have_more = len(data) >= FIRST_READ_BYTES
        self._wanted_bytes = READ_BYTES if self.may_have_more else FIRST_READ_BYTES
        if self._tls is None:
            return data
        plain = self._tls.decrypted(data)
        answer = self._tls.taken()  # what TLS itself has to say, such as a new key
        if answer:
            self._unwritten += answer
            self.flush()
        return plain

    def close(self) -> None:
        """Hangs up."""
        self._sock.close()


class Tls:
    """TLS without a socket."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._received, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._received, self._outgoing, server_hostname=host)

    def shake_hands(self, wire: Wire) -> bool:
        """Goes on with the handshake, as far as what has come lets it; whether it is done. Raises OSError, SSLError
        among them."""
        while True:
            try:
                self._object.do_handshake()
                return True
            except ssl.SSLWantReadError:
                pass
            finally:  # also what it has to say of its failure
                if words := self.taken():
                    wire.write(words)
            data = wire.read()
            if data is None:
                return False
            if not data:
                raise ConnectionResetError("The peer has hung up in the handshake of TLS.")
            self._received.write(data)

    def encrypted(self, data: bytes) -> bytes:
        """As it goes over the socket."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._object.write(rest) :]
        return self.taken()

    def taken(self) -> bytes:
        """What waits to be sent."""
        return self._outgoing.read()

    def decrypted(self, data: bytes) -> bytes | None:
        """What came over the socket; None: nothing whole. Empty: it has ended."""
        if data:
            self._received.write(data)
        else:
            self._received.write_eof()
        parts: list[bytes] = []
        while True:
            try:
                part = self._object.read(READ_BYTES)
            except ssl.SSLWantReadError:
                return b"".join(parts) or None
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b"".join(parts)
            if not part:
                return b"".join(parts)
            parts.append(part)
