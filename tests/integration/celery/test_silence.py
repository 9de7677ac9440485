"""A broker that falls silent and closes nothing: a worker ends when it is told to, or goes on once it is answered."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest

from tests.integration.celery.test_workers import Place
from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import wait_until


class SilentProxy:
    """Stands before a broker, and relays nothing while it is silent, without closing anything."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("tickwheel://").rsplit(":", 1)
        self._broker = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tickwheel://127.0.0.1:{self._listener.getsockname()[1]}"
        self._speaks = threading.Event()
        self._speaks.set()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def be_silent(self) -> None:
        """From now on nothing passes."""
        self._speaks.clear()

    def speak(self) -> None:
        """What was held back passes, and all that comes."""
        self._speaks.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                self._sockets += [client, broker]
                for ends in ((client, broker), (broker, client)):
                    thread = threading.Thread(target=self._copy, args=ends, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._speaks.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> SilentProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._speaks.set()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_of_a_silent_broker_ends(daemon: Daemon, queue: str, tmp_path: Path, pool: str) -> None:
    place = Place(daemon.url, queue, tmp_path)
    with SilentProxy(daemon.url) as proxy, place.app:
        place.url = proxy.url
        with place.worker("--pool", pool, "-c", "1", KEEPALIVE="2", TIMEOUT="3") as worker:
            place.send("note", "before")
            wait_until(lambda: place.lines() == ["before"], place.lines)
            proxy.be_silent()
            assert worker.stop() == 0, worker.log.read_text()


def test_a_worker_goes_on_when_a_silent_broker_speaks(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    """It gives the connection up after ``keepalive``, and tries again until it is answered."""
    place = Place(daemon.url, queue, tmp_path)
    with SilentProxy(daemon.url) as proxy, place.app:
        place.url = proxy.url
        with place.worker("--pool", "threads", "-c", "1", KEEPALIVE="1") as worker:
            place.send("note", "before")
            wait_until(lambda: place.lines() == ["before"], place.lines)
            proxy.be_silent()
            place.send("note", "meanwhile")
            worker.wait_for("Trying to re-establish the connection")
            proxy.speak()
            place.send("note", "after")
            wait_until(lambda: set(place.lines()) == {"before", "meanwhile", "after"}, place.lines)
            assert worker.stop() == 0
