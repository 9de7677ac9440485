"""`tickwheel web` as a process."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import dataclass
from http.client import HTTPConnection

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.piped import Piped


@dataclass(frozen=True)
class Web:
    """Where it serves, and its process."""

    url: str
    process: subprocess.Popen[bytes] | Piped

    @property
    def port(self) -> int:
        """Its free TCP port."""
        return int(self.url.rpartition(":")[2])

    def connection(self) -> HTTPConnection:
        """A new one."""
        return HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def say(self, words: bytes) -> tuple[bytes, dict[str, object]]:
        """What is answered to bytes of any kind: the first line, and the problem."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as raw:
            raw.sendall(words)
            found = b""
            while part := raw.recv(1 << 16):
                found += part
        head, _, body = found.partition(b"\r\n\r\n")
        assert b"application/problem+json" in head
        return head.partition(b"\r\n")[0], json.loads(body)


def started(shell: Shell, *options: str) -> Web:
    """The process, when it serves."""
    process = shell.start("web", "--port", "0", "--json", *options)
    return Web(json.loads(process.stdout.readline())["url"], process)
