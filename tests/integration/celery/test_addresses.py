"""Ways to a broker: TLS, a Unix socket, one of several that does not answer, and none."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import kombu
import pytest

import tickwheel.celery
from tests.support.clients.certificates import Files
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import NotConnected, TlsFailed

assert tickwheel.celery.TRANSPORT


def there_and_back(url: str, queue: str, **options: Any) -> Any:
    with kombu.Connection(url, **options) as connection, connection.SimpleQueue(queue) as simple:
        simple.put({"n": 1})
        message = simple.get(timeout=60)
        message.ack()
        return message.payload


def test_tls(tmp_path: Path, queue: str) -> None:
    files = Files(tmp_path / "certificates")
    with Daemon(tmp_path / "data", tls_certificate=files.certificate_path, tls_key=files.key_path) as daemon:
        (url,) = [url for url in daemon.urls if url.startswith("tickwheels://127.0.0.1:")]
        trusted = {"ca_file": files.ca_path}
        assert there_and_back(url, queue, transport_options=trusted) == {"n": 1}
        plain = url.replace("tickwheels://", "tickwheel://")
        assert there_and_back(plain, queue, ssl={"ca_certs": files.ca_path}) == {"n": 1}
        with pytest.raises(TlsFailed):
            kombu.Connection(url).connect()


def test_a_unix_socket(daemon: Daemon, queue: str) -> None:
    assert there_and_back(daemon.unix_url, queue) == {"n": 1}


def test_the_next_one_when_the_first_does_not_answer(daemon: Daemon, queue: str) -> None:
    assert there_and_back(f"tickwheel://127.0.0.1:1;{daemon.url}", queue) == {"n": 1}


def test_the_next_one_when_the_first_is_no_broker(daemon: Daemon, queue: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=_serve_http, args=[listener], daemon=True)
        other.start()
        url = f"tickwheel://127.0.0.1:{listener.getsockname()[1]}"
        assert there_and_back(f"{url};{daemon.url}", queue) == {"n": 1}
        other.join(60)
    assert not other.is_alive()


def _serve_http(listener: socket.socket) -> None:
    with listener.accept()[0] as connection:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4_096):
            pass


def test_no_broker_at_all() -> None:
    connection = kombu.Connection("tickwheel://127.0.0.1:1")
    with pytest.raises(NotConnected, match="refused"):
        connection.ensure_connection(max_retries=1, interval_start=0, reraise_as_library_errors=False)
