"""Redis in a process of its own, that writes each change to its disk before it answers (appendfsync always)."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tickwheel_bench.processes import free_port, guard, wait_until


def is_installed() -> bool:
    """Whether there is one: `apt-get install redis-server` brings it."""
    return shutil.which("redis-server") is not None


def command(directory: Path, port: int, *, is_durable: bool = True) -> list[str]:
    """What starts one in the foreground, on loopback. Its data stay in the directory, if it `is_durable`."""
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes" if is_durable else "no",
        "appendfsync": "always",
        "logfile": "redis.log",
    }
    return ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]


@contextmanager
def redis_server(directory: Path, *, is_durable: bool = True) -> Iterator[int]:
    """The port of one."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    process = subprocess.Popen(
        command(directory, port, is_durable=is_durable), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    watcher = guard(process.pid)
    try:
        wait_until(lambda: _listens(port), lambda: f"redis-server did not start: see {directory}/redis.log")
        yield port
    finally:
        process.terminate()
        process.wait()
        watcher.kill()
        watcher.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
