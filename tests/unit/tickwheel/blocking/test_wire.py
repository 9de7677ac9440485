"""A socket that never blocks, plain and with TLS."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.certificates import Files
from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S
from tickwheel.blocking.dial import Opening
from tickwheel.blocking.wire import Wire
from tickwheel.client.security import Security
from tickwheel.client.url import TcpAddress, UnixAddress
from tickwheel.protocol.errors import TlsFailed

MUCH = bytes(range(256)) * 16_384


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(PATIENCE_S)
        yield Wire(near), far


def received(sock: socket.socket, size: int, wire: Wire) -> bytes:
    """So much, while the wire writes what it kept."""
    parts: list[bytes] = []
    while size:
        wire.flush()
        parts.append(sock.recv(min(size, 65_536)))
        assert parts[-1]
        size -= len(parts[-1])
    return b"".join(parts)


def test_what_the_socket_does_not_take_is_kept_in_order(pair: tuple[Wire, socket.socket]) -> None:
    wire, far = pair
    wire.write(MUCH)
    assert wire.has_unwritten
    wire.write(b"the end")
    assert received(far, len(MUCH) + 7, wire) == MUCH + b"the end"
    assert not wire.has_unwritten


def test_reading(pair: tuple[Wire, socket.socket]) -> None:
    wire, far = pair
    assert wire.read() is None
    far.sendall(b"abc")
    assert wire.read() == b"abc"
    far.close()
    assert wire.read() == b""


def wait(descriptor: int, *, write: bool) -> None:
    assert any(select.select([descriptor], [descriptor] if write else [], [], PATIENCE_S)[:2]), (
        "nothing happens"
    )


def opened(opening: Opening) -> Wire:
    opening.look_up()
    return finished(opening)


def finished(opening: Opening) -> Wire:
    while (wire := opening.go_on(0.0)) is None:
        wait(opening.fileno(), write=opening.wants_to_write)
    return wire


class Echo:
    """A TLS server for one connection; it sends back what comes."""

    def __init__(self, files: Files) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate_path, files.key_path)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        sock, _ = self._listening.accept()
        sock.settimeout(PATIENCE_S)
        try:
            with self._context.wrap_socket(sock, server_side=True) as secure:
                while data := secure.recv(65_536):
                    secure.sendall(data)
                secure.unwrap().close()
        except OSError:
            sock.close()

    def close(self) -> None:
        self._listening.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_tls(tmp_path: Path) -> None:
    """More than the socket takes at once, there and back, in the right order."""
    files = Files(tmp_path)
    server = Echo(files)
    wire = opened(
        Opening(TcpAddress("127.0.0.1", server.port, tls=True), Security(ca_file=files.ca_path), 0.0, 10.0)
    )
    expected = MUCH
    wire.write(MUCH)
    came = bytearray()
    while len(came) < len(expected):
        wait(wire.fileno(), write=wire.has_unwritten)
        wire.flush()
        came += wire.read() or b""
    assert bytes(came) == expected
    assert wire.read() is None
    wire.close()
    server.close()


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    server = Echo(Files(tmp_path / "one"))
    other = Files(tmp_path / "other")
    opening = Opening(
        TcpAddress("127.0.0.1", server.port, tls=True), Security(ca_file=other.ca_path), 0.0, 10.0
    )
    with pytest.raises(TlsFailed, match="not trusted"):
        opened(opening)
    assert opening.fileno() == -1
    server.close()


def test_a_broker_without_tls_that_hangs_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = TcpAddress("127.0.0.1", listening.getsockname()[1], tls=True)
        opening = Opening(address, Security(ca_file=Files(tmp_path).ca_path), 0.0, 10.0)
        opening.look_up()
        assert opening.go_on(0.0) is None
        listening.accept()[0].close()
        with pytest.raises(ConnectionError):
            finished(opening)


def test_a_node_that_says_nothing_has_its_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = TcpAddress("127.0.0.1", listening.getsockname()[1], tls=True)
        opening = Opening(address, Security(), 100.0, 5.0)
        opening.look_up()
        assert opening.go_on(100.0) is None
        assert opening.next_at() == 105.0
        assert opening.go_on(104.9) is None
        with pytest.raises(TimeoutError):
            opening.go_on(105.0)


def test_of_the_addresses_of_a_name_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as refused:
        closed = refused.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        found = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", one)) for one in (closed, port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        wire = opened(Opening(TcpAddress("broker.example", 1), Security(), 0.0, 10.0))
        wire.close()


def test_there_is_none(tmp_path: Path) -> None:
    opening = Opening(UnixAddress(str(tmp_path / "none")), Security(), 0.0, 10.0)
    with pytest.raises(FileNotFoundError):
        opened(opening)
    assert opening.fileno() == -1
