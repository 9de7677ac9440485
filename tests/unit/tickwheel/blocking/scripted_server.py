"""A broker in a thread that blocks, which says what a test wants it to say, to one connection after the other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tests.unit.tickwheel.fake_server import LIMITS
from tickwheel.protocol.bodies.requests import encode_body, encode_error
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.machine import Requested, ServerMachine

PATIENCE_S: Final = 10.0


class Peer:
    """One connection, on the broker's side."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._machine = ServerMachine(64 * 1024)
        self._events: list[Any] = []

    def next(self) -> Any:
        """The next request; None at the end."""
        while not self._events:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._events.extend(self._machine.receive_data(data))
        return self._events.pop(0)

    def greet(self) -> None:
        """Answers HELLO."""
        hello = self.next()
        assert isinstance(hello, Requested)
        self.sock.sendall(encode_frame(FrameType.HELLO_OK, hello.correlation, encode_body(LIMITS)))

    def refuse(self, error: TickwheelError) -> None:
        """Answers the next request with an error."""
        request = self.next()
        self.sock.sendall(encode_frame(FrameType.ERROR, request.correlation, encode_error(error)))

    def answer_pings(self) -> None:
        """Until the client hangs up."""
        while (request := self.next()) is not None:
            self.sock.sendall(pong(request.correlation))


def pong(correlation: int) -> bytes:
    """The frame."""
    return encode_frame(FrameType.PONG, correlation)


class Server:
    """Each connection goes to the next of the scripts, the last one to all that follow."""

    def __init__(self, *scripts: Callable[[Peer], None]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._scripts = list(scripts)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"tickwheel://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Server:
        self._start(self._accept)
        return self

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._open.append(sock)
            self._start(lambda sock=sock, script=script: self._serve(sock, script))  # type: ignore[misc]

    def _serve(self, sock: socket.socket, script: Callable[[Peer], None]) -> None:
        with sock:
            sock.settimeout(PATIENCE_S)
            try:
                script(Peer(sock))
            except (ConnectionError, TimeoutError):
                pass
            except BaseException as error:
                self.failures.append(error)

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for failure in self.failures:
            raise failure


def until(condition: Callable[[], object]) -> None:
    """Waits for it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
