"""Clients of RocketMQ that wait for messages which do not come: what they cost the gateway, and the broker."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tickwheel_bench.daemon import Daemon, cpu_s_of
from tickwheel_bench.processes import children_of, wait_until
from tickwheel_bench.rocketmq.idle_clients import OPENING

CLIENTS: Final = 5_000
_SECONDS: Final = 60.0
"""Three receives of each client, and six heartbeats."""
_SETTLED_S: Final = 25.0
"""Until each has received once."""


def idle(directory: Path, scale: float) -> dict[str, Any]:
    """5,000 connections, each with a stream, a heartbeat every 10 s and a receive that waits 20 s."""
    count = max(10, int(CLIENTS * scale))
    seconds, settled_s = (_SECONDS, _SETTLED_S) if scale >= 1 else (12.0, 1.0)
    with Daemon(directory, "--rocketmq", "--rocketmq-listen", "127.0.0.1:0") as daemon:
        (address,) = daemon.announced["rocketmq"]
        wait_until(lambda: bool(children_of(daemon.pid)), lambda: "there is no gateway")
        (gateway,) = children_of(daemon.pid)
        _wait_begun(address)
        before = {"gateway": _anonymous_bytes(gateway), "broker": _anonymous_bytes(daemon.pid)}
        command = [sys.executable, "-m", "tickwheel_bench.rocketmq.idle_clients", address, str(count)]
        started_s = time.perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin is not None
            assert clients.stdout is not None
            if not clients.stdout.readline():
                raise RuntimeError("not all clients could begin")
            began_s = time.perf_counter() - started_s
            begin_cpu_s = cpu_s_of(gateway)
            time.sleep(settled_s)
            processes = {"gateway": gateway, "broker": daemon.pid, "clients": clients.pid}
            cpu_s = {name: cpu_s_of(pid) for name, pid in processes.items()}
            start_s = time.perf_counter()
            time.sleep(seconds)
            took_s = time.perf_counter() - start_s
            used_s = {name: cpu_s_of(pid) - cpu_s[name] for name, pid in processes.items()}
            after = {"gateway": _anonymous_bytes(gateway), "broker": _anonymous_bytes(daemon.pid)}
            resident = {"gateway": _bytes(gateway, "VmRSS"), "broker": _bytes(daemon.pid, "VmRSS")}
            clients.stdin.close()
            answered = json.loads(clients.stdout.readline())
    return {
        "clients": count,
        "began_in_s": round(began_s, 1),
        "begin_gateway_cpu_ms_each": round(begin_cpu_s * 1_000 / count, 3),
        "cpu_percent": {name: round(100 * each / took_s, 1) for name, each in used_s.items()},
        "resident_mib": {name: round(each / 2**20, 1) for name, each in resident.items()},
        "anonymous_mib": {name: round(each / 2**20, 1) for name, each in after.items()},
        "kib_a_client": {name: round((after[name] - before[name]) / 1_024 / count, 1) for name in after},
        "answered": answered,
    }


def _wait_begun(address: str) -> None:
    """The broker listens for the gateway, which answers when it has begun: its memory without clients is that then."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as one:
        one.sendall(OPENING)
        if not one.recv(1):
            raise RuntimeError("the gateway has hung up")


def _anonymous_bytes(pid: int) -> int:
    return _bytes(pid, "RssAnon")


def _bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
