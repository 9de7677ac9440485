"""A server of URLs on this machine, in threads of its own, that writes down each request and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from tests.support.clients.serving import ServerThread


@dataclass(frozen=True)
class Received:
    """One request; the names of its headers in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What it is answered."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Receiver:
    """Listens on a free port of 127.0.0.1."""

    def __init__(self, answer: Callable[[Received], Answer] = lambda request: Answer()) -> None:
        """`answer` may wait: each connection has a thread."""
        self.answer = answer
        self.seen: list[Received] = []
        self.answered: list[tuple[Received, int]] = []
        """Written down before the answer is written."""
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(size)
                if len(body) < size:
                    self.close_connection = True
                    return  # who asked has hung up
                request = Received(self.command, self.path, headers, body)
                receiver._write_down(request)
                answer = receiver.answer(request)
                receiver.answered.append((request, answer.status))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_PUT = do_DELETE = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # who asked was killed

        server = Server(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._serving = ServerThread(server)

    def _write_down(self, request: Received) -> None:
        with self._changed:
            self.seen.append(request)
            self._changed.notify_all()

    def wait_for(self, is_so: Callable[[list[Received]], object], patience_s: float = 60.0) -> None:
        """Until it is so of the requests that came."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.seen), patience_s), (
                f"{len(self.seen)} requests came"
            )

    def __enter__(self) -> Receiver:
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.stop()
