"""The brokers, each a process of its own, on this machine only."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from tickwheel_bench.daemon import Daemon

_PATIENCE_S = 30.0


@contextmanager
def tickwheel(directory: Path) -> Iterator[str]:
    """The URL of a broker that answers when a message is on the disk."""
    with Daemon(directory / "data") as daemon:
        yield daemon.url


@contextmanager
def redis(directory: Path) -> Iterator[str]:
    """The URL of a Redis server with Debian's defaults, which keeps messages in memory."""
    program = shutil.which("redis-server")
    if program is None:
        raise click.ClickException("There is no Redis server: apt-get install redis-server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


SERVERS = {"tickwheel": tickwheel, "redis": redis}
