"""How late requests of `tickwheel push` are on the wire, alone and beside an endpoint that never answers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import late_figures
from tickwheel_bench.load.messages import schedule_evenly
from tickwheel_bench.program import Program, module_command
from tickwheel_bench.usage import ms_a_request, used_s

DUE_PER_S: Final = 500
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
        late = late_figures(self.late_ms, "min", "p50", "p99", "max")
        return {"requests": len(self.late_ms), **late}


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
        with Program(_command(daemon.url, ports), errors=subprocess.DEVNULL) as pushing:
            assert pushing.line()["ready"]
            await schedule_evenly(client, topic, count, DUE_PER_S)
            processes = {"push": [pushing.pid], "broker": [daemon.pid]}
            before_s = used_s(processes)
            async with asyncio.timeout(PATIENCE_S):
                await receiver.wait_for(count)
            each_ms = ms_a_request(before_s, used_s(processes), count)
            return receiver.figures() | {"cpu_ms_a_request": each_ms}


def _command(url: str, ports: list[int]) -> list[str]:
    """`tickwheel push`, which may call this machine."""
    allowed = ["--allow-http", "--allow-network", "127.0.0.0/8"]
    for port in ports:
        allowed += ["--port", str(port)]
    words = ["--url", url, "push", "--json", "--drain", "100ms", *allowed]
    return module_command("tickwheel", *words)
