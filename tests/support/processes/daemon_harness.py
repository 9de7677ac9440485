"""Starts the real daemon in a process of its own, and talks to it over raw sockets."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import msgspec
import trio

import tickwheel
from tests.support.clients import forking
from tests.support.cluster import in_a_cluster
from tests.support.processes import stalls
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk, Request, encode_body, hello
from tickwheel.protocol.frames import Frame, FrameReader, FrameType, encode_frame

PATIENCE_S = 60.0
"""How long anything may take before a test gives up; far more than it needs, because machines are busy."""

_WITHOUT = Path(__file__).parents[1] / "run" / "without"
_MAIN = """
import json, os, sys
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.daemon import run
sys.path.insert(0, sys.argv[2])
{watch}
{prelude}
settings, serving = from_arguments(**json.loads(sys.argv[1])), None
if settings.cluster:
    from tickwheel_broker.node.process import serve_node as serving
sys.exit(run(settings, serving=serving))
"""


_WATCH = """
from tests.support.processes.stalls import watch_this_process
watch_this_process({limit_ms})
"""


class Daemon:
    """The daemon on a directory, on a free TCP port and a Unix socket beside the data."""

    modules: ClassVar[tuple[str, ...]] = ("tickwheel_broker.config.load", "tickwheel_broker.daemon")
    """Which its process needs, if it is a fork."""

    def __init__(
        self,
        directory: Path,
        *,
        prelude: str = "",
        program: Sequence[str] = (),
        may_hold_loop: str = "",
        **settings: Any,
    ) -> None:
        """`prelude` is Python that the daemon's process executes before it starts: to break its disk, say. With a
        `program`, such as Python's or one that watches it, that begins anew; else the process is a fork. A step that
        holds the loop of a fork for long fails the test (see `stalls`), unless `may_hold_loop` says why it may."""
        self.directory = directory
        self._log_path = directory.parent / f"{directory.name}.log.jsonl"
        self._settings = {
            "data_dir": str(directory),
            "listen_port": 0,
            "unix_socket": str(directory.parent / f"{directory.name}.sock"),
            "log_format": "json",
            "log_level": "debug",
        } | settings
        self._replica: in_a_cluster.Replica | None = None
        watch = _WATCH.format(limit_ms=stalls.limit_ms()) if not program and not may_hold_loop else ""
        self._main = _MAIN.format(prelude=prelude, watch=watch)
        self._program = program
        self._process: subprocess.Popen[bytes] | forking.Forked | None = None
        self.urls: list[str] = []

    @property
    def process(self) -> subprocess.Popen[bytes] | forking.Forked:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def url(self) -> str:
        """Its TCP address."""
        return next(url for url in self.urls if url.startswith("tickwheel://"))

    @property
    def tls_url(self) -> str:
        """Its TCP address on IPv4's loopback, with TLS."""
        return next(url for url in self.urls if url.startswith("tickwheels://127.0.0.1:"))

    @property
    def unix_url(self) -> str:
        """Its Unix socket."""
        return next(url for url in self.urls if url.startswith("tickwheel+unix://"))

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        settings, modules = self._settings, (*self.modules, stalls.__name__)
        self._replica = in_a_cluster.replica_of(self.directory)
        if self._replica is not None:
            settings, modules = self._replica.prepare(settings), (*modules, *in_a_cluster.MODULES)
        with open(self._log_path, "ab") as log:
            log.truncate(0)
            words = self._main, json.dumps(settings), str(_WITHOUT)
            if self._program:
                self._process = subprocess.Popen([*self._program, "-c", *words], stderr=log, stdout=log)
            else:
                self._process = forking.start(*words, modules=modules, files=(0, log.fileno(), log.fileno()))

    def start(self) -> Daemon:
        """Start the process and wait until clients can connect."""
        self.launch()
        started = self.wait_for_event("started")
        self.urls = started["urls"].split()
        if self._replica is not None:
            self.wait_for_event("started", exactly=True)  # until now it was only there
            self._replica.follow()
        return self

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        lines = self.log().splitlines(keepends=True)
        found = []
        for line in lines:
            if line.startswith("{") and line.endswith("}\n"):
                with suppress(
                    json.JSONDecodeError
                ):  # a kill tore one, and the next process went on behind it
                    found.append(json.loads(line))
        return found

    def log(self) -> str:
        """All that it and the processes beside it have written to standard error since it was launched."""
        return self._log_path.read_text()

    @property
    def child_pids(self) -> list[int]:
        """All processes that it has started so far; the last is the one that runs."""
        return [event["pid"] for event in self.events() if event["event"] == "process started"]

    def wait_for_event(self, text: str, *, exactly: bool = False) -> dict[str, Any]:
        """The first logged event whose text contains `text`, or is `text`; waits for it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for event in self.events():
                if event["event"] == text if exactly else text in event["event"]:
                    return event
            assert not ended, f"the daemon ended with {self.process.returncode}:\n{self.log()}"
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not logged:\n{self.log()}")

    def wait_exit(self) -> int:
        """The exit code; waits for the end of the process. Raises if a step held its loop for long."""
        code = self.process.wait(PATIENCE_S)
        stalls.fail_for(self.events())
        return code

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._end_follower()
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self._end_follower()
        self.process.kill()
        self.wait_exit()

    def _end_follower(self) -> None:
        if self._replica is not None:
            self._replica.end_follower()

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_follower()
        if self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
                raise


def is_refused(url: str) -> bool:
    """Whether nobody listens on its port."""
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False


async def wait_ready(client: tickwheel.Client, topic: str, messages: int) -> None:
    """Until so many messages are in their topic."""
    with trio.fail_after(PATIENCE_S):
        while next((t.ready for t in await client.topics() if t.name == topic), 0) < messages:
            await trio.sleep(0.01)


class RawConnection:
    """A client made of bytes, which may say anything."""

    def __init__(self, url: str) -> None:
        if url.startswith("tickwheel+unix://"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(url.removeprefix("tickwheel+unix://"))
        else:
            host, port = url.removeprefix("tickwheel://").rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(PATIENCE_S)
        self._reader = FrameReader(1 << 26)
        self._last = 0

    def greet(self) -> RawConnection:
        """The handshake."""
        answer = self.ask(FrameType.HELLO, encode_body(hello("raw")))
        assert answer.type == FrameType.HELLO_OK
        return self

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.socket.sendall(data)

    def ask(self, frame_type: int, payload: bytes = b"") -> Frame:
        """Send one request and receive one frame, which must be its answer."""
        self._last += 1
        self.send(encode_frame(frame_type, self._last, payload))
        answer = self.receive()
        assert answer.correlation == self._last
        return answer

    def request(self, frame_type: FrameType, request: Request) -> Frame:
        """Like `ask`, for a request with a body."""
        return self.ask(frame_type, encode_body(request))

    def open_topic(self, name: str = "t") -> int:
        """The number of a topic, which is made if there is none of that name."""
        answer = self.request(FrameType.OPEN_TOPIC, OpenTopic(name, True))
        assert answer.type == FrameType.OPEN_TOPIC_OK
        return msgspec.msgpack.decode(answer.payload, type=OpenTopicOk).topic_id

    def receive(self) -> Frame:
        """The next frame."""
        while (frame := self._reader.next_frame()) is None:
            data = self.socket.recv(1 << 16)
            assert data, "the broker closed the connection"
            self._reader.feed(data)
        return frame

    def has_answer(self) -> bool:
        """Whether something has arrived, or the broker has closed, without waiting for it."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def is_closed(self) -> bool:
        """Wait for the broker to close; False if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


def without_privileges() -> str:
    """A prelude that gives up root's right to write everywhere."""
    return "os.setuid(65534)" if os.geteuid() == 0 else ""
