"""An S3 server on loopback (moto's), and a way to it on which answers get lost."""

from __future__ import annotations

import http.client
import logging
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit

#: What must be seen nowhere.
SECRET: Final = "TWK-secret/9d1f+77ac="
KEY_ID: Final = "TWKKEYID4711"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """``endpoint``: its URL."""

    endpoint: str

    def options(self) -> dict[str, str]:
        """For ``fs``."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    def words(self, *without: str) -> list[str]:
        """The same as words of a command. ``without``: names of options that the command has already."""
        kept = {name: value for name, value in self.options().items() if name not in without}
        return [word for name, value in kept.items() for word in ("--fs", f"{name}={value}")]

    def bucket(self, name: str = "") -> str:
        """A new bucket."""
        name = name or f"b{uuid.uuid4().hex}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")).close()
        return name


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """In threads of this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield ObjectStore(f"http://{host}:{port}")
    finally:
        server.stop()


@dataclass(slots=True)
class Loss:
    """``is_lost``: whether the answer to a request (method, path) is kept back. ``lost``: those of which it was."""

    is_lost: Callable[[str, str], bool]
    lost: list[str] = field(default_factory=list)


@contextmanager
def losing(store: ObjectStore, loss: Loss) -> Iterator[ObjectStore]:
    """The same store, behind a server that passes requests on, and breaks off instead of answering some."""
    target = urlsplit(store.endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            connection = http.client.HTTPConnection(target.hostname or "", target.port)
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            if loss.is_lost(self.command, self.path):
                loss.lost.append(self.path)
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            length = answer.getheader("content-length") if self.command == "HEAD" else str(len(body))
            self.send_header("content-length", length or "0")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ObjectStore(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
