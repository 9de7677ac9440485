"""How late requests of `tickwheel push` are on the wire, alone and beside an endpoint that never answers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.messages import schedule

DUE_PER_S: Final = 500
LEAD_MS: Final = 3_000
PATIENCE_S: Final = 120.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_DUE: Final = re.compile(rb"\r\ntickwheel-due: ([^\r]+)\r\n")
_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Receiver:
    """Answers at once, and keeps how late each request came, in milliseconds."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.came = asyncio.Event()

    def protocol(self) -> asyncio.Protocol:
        """That of one connection."""
        return _Connection(self)

    def take(self, head: bytes) -> None:
        """A request."""
        now_ms = time.time_ns() / 1e6
        found = _DUE.search(head)
        assert found is not None
        self.late_ms.append(now_ms - datetime.fromisoformat(found[1].decode()).timestamp() * 1e3)
        self.came.set()

    async def wait_for(self, count: int) -> None:
        """Until so many came."""
        while len(self.late_ms) < count:
            self.came.clear()
            await self.came.wait()

    def figures(self) -> dict[str, Any]:
        """Of what has come."""
        late_ms = np.asarray(self.late_ms)
        return {
            "requests": len(late_ms),
            "early": int((late_ms < 0).sum()),
            "late_ms": {
                name: round(float(np.percentile(late_ms, percent)), 3)
                for name, percent in (("min", 0), ("p50", 50), ("p99", 99), ("max", 100))
            },
        }


class _Connection(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and length is not None and len(rest) >= int(length[1]):
            self._received = b""
            self._receiver.take(head + b"\r\n")
            self._transport.write(_OK)


def push(directory: Path, scale: float) -> dict[str, Any]:
    """500 messages due each second for ten seconds; then again, and another endpoint of the topic hangs."""
    count = max(50, int(10 * DUE_PER_S * scale))
    with Daemon(directory) as daemon:
        return {
            "due_per_s": DUE_PER_S,
            "alone": asyncio.run(_one(daemon, "alone", count, hangs=False)),
            "beside_a_hanging_endpoint": asyncio.run(_one(daemon, "beside", count, hangs=True)),
        }


async def _one(daemon: Daemon, topic: str, count: int, *, hangs: bool) -> dict[str, Any]:
    loop, receiver = asyncio.get_running_loop(), Receiver()
    quick = await loop.create_server(receiver.protocol, "127.0.0.1", 0)
    never = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with quick, never, Client(daemon.url) as client:
        ports = [server.sockets[0].getsockname()[1] for server in (quick, never)]
        await client.set_endpoint(topic, topic=topic, url=f"http://127.0.0.1:{ports[0]}/", max_in_flight=64)
        if hangs:
            await client.set_endpoint(f"{topic}-hangs", topic=topic, url=f"http://127.0.0.1:{ports[1]}/")
        with _running(daemon.url, ports) as process:
            start_ms = int(time.time() * 1000) + LEAD_MS
            await schedule(client, topic, start_ms + np.arange(count) * 1_000 // DUE_PER_S)
            push_s, broker_s = _cpu_s(process.pid), daemon.cpu_s()
            async with asyncio.timeout(PATIENCE_S):
                await receiver.wait_for(count)
            used_s = {"push": _cpu_s(process.pid) - push_s, "broker": daemon.cpu_s() - broker_s}
            each_ms = {name: round(cpu_s / count * 1e3, 3) for name, cpu_s in used_s.items()}
            return receiver.figures() | {"cpu_ms_a_request": each_ms}


@contextmanager
def _running(url: str, ports: list[int]) -> Iterator[subprocess.Popen[bytes]]:
    """`tickwheel push`, which may call this machine."""
    allowed = ["--allow-http", "--allow-network", "127.0.0.0/8"]
    for port in ports:
        allowed += ["--port", str(port)]
    program = [
        sys.executable,
        "-m",
        "tickwheel",
        "--url",
        url,
        "push",
        "--json",
        "--drain",
        "100ms",
        *allowed,
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["ready"]
            yield process
        finally:
            process.terminate()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
