"""What is needed of processes to start servers: their children, costs and end, a port, and how to wait."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 60.0
"""How long a process may take to start or to end; far more than it needs, because machines are busy."""

_PORTS: Final = range(10_000, 32_000)
"""Below those that the kernel gives to clients: a server that was killed must find its own port free when it comes
back."""

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")

_given: set[int] = set()

# Its input is a pipe from us, and closes with us.
_GUARD: Final = 'cat; kill -s KILL -- "$1"'


def wait_until(
    condition: Callable[[], T], report: Callable[[], object] = lambda: "", patience_s: float = PATIENCE_S
) -> T:
    """Asks again until it is so; what the condition said then. Fails when that takes too long, and says what ``report``
    says."""
    end = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"this took longer than {patience_s:.0f} s; {report()}")
        time.sleep(0.02)
    return found


def free_port() -> int:
    """A port that is free now, each time another one: what it is for may begin to listen much later."""
    for _ in range(1_000):
        port = random.choice(_PORTS)
        if port in _given:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port
    raise AssertionError("there is no free port")


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def guard(pid: int) -> subprocess.Popen[bytes]:
    """Ends a process that we have started when ours ends, however that comes; of a group its number, negative. To be
    killed before the process is gone and its number is another's."""
    return subprocess.Popen(
        ["sh", "-c", _GUARD, "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def children_of(parent: int) -> list[int]:
    """The ids of the processes that a process has started, and that are still there."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (status := _status(int(folder.name))) and status[1] == parent:
            found.append(int(folder.name))
    return found


def family_of(pid: int) -> Iterator[int]:
    """The process, and all that it and its children have started."""
    yield pid
    for child in children_of(pid):
        yield from family_of(child)


def cpu_s_of(pid: int) -> float:
    """Processor seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def memory_bytes_of(pid: int, field: str = "RssAnon") -> int:
    """A field of /proc/PID/status: ``RssAnon``, ``RssFile``, ``VmRSS``, ``VmHWM``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def is_gone(pid: int) -> bool:
    """A zombie is gone: only who started it has not heard yet."""
    status = _status(pid)
    return status is None or status[0] in "ZX"


def _status(pid: int) -> tuple[str, int] | None:
    """A process's state and its parent; None if there is no such process."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = line.rpartition(")")[2].split()[:2]  # what is before may have spaces
    return state, int(parent)
