"""Requests over HTTP, as fast as so many connections get answers or at a rate; a process of its own, which prints what
it saw, and what it cost itself.

It speaks as much HTTP as is needed, so that it costs less than what it measures: python -m tickwheel_bench.web.load
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import numpy as np
import uvloop

from tickwheel_bench.figures import percentiles

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SINGLE: Final = b'{"text": "%s", "delay": "1d"}' % (b"x" * 100)


class Connection(asyncio.Protocol):
    """Asks again as soon as there is an answer, or when it is time."""

    def __init__(
        self, request: bytes, begins_s: float, every_s: float, done: Callable[[bytes, float], bool]
    ) -> None:
        """`begins_s`: when to ask first, by the loop's clock. `every_s`: so long after that comes the next request,
        and its time counts from when it was due, however late the one before was answered; 0: at once.
        `done`: the first line of an answer, and how long it took; whether there is another request."""
        self._request = request
        self._every_s = every_s
        self._done = done
        self._due_s = begins_s
        self._received = b""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request."""
        self._transport = transport
        self._loop.call_at(self._due_s, self._ask)

    def data_received(self, data: bytes) -> None:
        """Once an answer is whole, the next request."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = _LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        self._received = b""
        now_s = self._loop.time()
        if not self._done(head.partition(b"\r\n")[0], now_s - self._due_s):
            assert self._transport is not None
            self._transport.close()
            return
        self._due_s = self._due_s + self._every_s if self._every_s else now_s
        if self._due_s > now_s:
            self._loop.call_at(self._due_s, self._ask)
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self.ended.set_result(None)

    def _ask(self) -> None:
        assert self._transport is not None
        self._transport.write(self._request)


async def run(url: str, connections: int, seconds: float, batch: int, rate: float) -> dict[str, object]:
    """What was answered meanwhile. `batch`: messages of a request; 0: single sends. `rate`: requests a second, or 0."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    host, port = parts.hostname, parts.port
    times_s: list[float] = []
    wrong: list[str] = []
    loop = asyncio.get_running_loop()
    begun_s = loop.time() + _TO_CONNECT_S

    def done(line: bytes, took_s: float) -> bool:
        if not line.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 201 ")):
            wrong.append(line.decode(errors="replace"))
        times_s.append(took_s)
        return loop.time() - begun_s < seconds

    request = _request(parts.netloc, batch)
    every_s = connections / rate if rate else 0.0

    async def connected(number: int) -> Connection:
        begins_s = begun_s + every_s * number / connections
        made = await loop.create_connection(lambda: Connection(request, begins_s, every_s, done), host, port)
        return made[1]

    made = [await connected(number) for number in range(connections)]
    used_s = time.process_time()
    await asyncio.gather(*(one.ended for one in made))
    took_s, used_s = loop.time() - begun_s, time.process_time() - used_s
    return {
        "connections": connections,
        "requests": len(times_s),
        "requests_per_s": round(len(times_s) / took_s),
        **({"messages_per_s": round(len(times_s) * batch / took_s)} if batch else {}),
        "answer_ms": percentiles(np.array(times_s) * 1e3, "p50", "p99", "max", digits=2),
        "load_cpu_ms_a_request": round(used_s / len(times_s) * 1e3, 3),
        "refused": len(wrong),
        **({"first_refusal": wrong[0]} if wrong else {}),
    }


_TO_CONNECT_S: Final = 0.5


def _request(host: str, batch: int) -> bytes:
    path = "/v1/topics/http/messages"
    body, kind = _SINGLE, "application/json"
    if batch:
        path, body, kind = f"{path}/batch", b"\n".join([_SINGLE] * batch), "application/x-ndjson"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0)
    given = parser.parse_args()
    found = run(given.url, given.connections, given.seconds, given.batch, given.rate)
    print(json.dumps(uvloop.run(found)))


if __name__ == "__main__":
    main()
