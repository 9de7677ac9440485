"""Clients of RocketMQ that wait for messages which do not come: what they cost the gateway, and the broker."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any, Final

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.processes import children_of, memory_bytes_of, wait_until
from tickwheel_bench.program import Program, module_command
from tickwheel_bench.rocketmq.idle_clients import OPENING
from tickwheel_bench.usage import Processes, percent, used_s

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
        _wait_begun(address)
        servers = daemon.processes("gateway")
        before = _bytes(servers)
        started_s = time.perf_counter()
        with Program(module_command("tickwheel_bench.rocketmq.idle_clients", address, count)) as clients:
            clients.line()  # all have begun
            began_s = time.perf_counter() - started_s
            begin_cpu_s = used_s(servers)["gateway"]
            time.sleep(settled_s)
            processes = {**servers, "clients": [clients.pid]}
            used_before_s, start_s = used_s(processes), time.perf_counter()
            time.sleep(seconds)
            took_s = time.perf_counter() - start_s
            cpu_percent = percent(used_before_s, used_s(processes), took_s)
            after, resident = _bytes(servers), _bytes(servers, "VmRSS")
            answered = clients.last()
    return {
        "clients": count,
        "began_in_s": round(began_s, 1),
        "begin_gateway_cpu_ms_each": round(begin_cpu_s * 1_000 / count, 3),
        "cpu_percent": cpu_percent,
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


def _bytes(processes: Processes, field: str = "RssAnon") -> dict[str, int]:
    return {name: sum(memory_bytes_of(pid, field) for pid in pids) for name, pids in processes.items()}
