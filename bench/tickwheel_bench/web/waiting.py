"""How late messages reach who waits for them over HTTP: a long poll, or a stream of server-sent events.

A process of its own: python -m tickwheel_bench.web.waiting URL poll|stream TOPIC COUNT
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from datetime import datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

import uvloop

from tickwheel_bench.figures import late_figures

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_DUE: Final = re.compile(rb'"deliver_at":"([^"]+)"')
_RECEIPT: Final = re.compile(rb'"receipt":"([^"]+)"')
_READ_BYTES: Final = 1 << 20
_GROUP: Final = "groups/bench"


class Http:
    """One connection that asks, and waits for the answer."""

    def __init__(self, parts: SplitResult, topic: str) -> None:
        self._parts = parts
        self._topic = topic

    async def connect(self) -> None:
        """Before anything is asked."""
        self.reader, self.writer = await asyncio.open_connection(
            self._parts.hostname, self._parts.port, limit=_READ_BYTES
        )

    def ask(self, method: str, path: str, body: object = None) -> None:
        """About the group."""
        data = b"" if body is None else json.dumps(body).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n" if data else ""
        head = f"{method} /v1/topics/{self._topic}/{_GROUP}/{path} HTTP/1.1\r\nHost: {self._parts.netloc}\r\n{kind}\r\n"
        self.writer.write(head.encode() + data)

    async def answer(self) -> bytes:
        """The body of an answer that has a length. Raises RuntimeError for a refusal."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None
        body = await self.reader.readexactly(int(length[1]))
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"refused: {body.decode(errors='replace')}")
        return body


class Waiting:
    """Takes what comes, and settles it over another connection."""

    def __init__(self, url: str, topic: str, count: int) -> None:
        parts = urlsplit(url)
        self._waiting, self._settling = Http(parts, topic), Http(parts, topic)
        self._count = count
        self._late_ms: list[float] = []
        self._receipts: list[str] = []
        self._came = asyncio.Event()

    async def run(self, kind: str) -> list[float]:
        """How late each was, in milliseconds."""
        await self._waiting.connect()
        await self._settling.connect()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settle())
            await (self._poll() if kind == "poll" else self._stream())
        return self._late_ms

    @property
    def _is_over(self) -> bool:
        return len(self._late_ms) >= self._count

    def _take(self, said: bytes) -> None:
        now_ms = time.time_ns() / 1e6
        for due in _DUE.findall(said):
            self._late_ms.append(now_ms - datetime.fromisoformat(due.decode()).timestamp() * 1e3)
        self._receipts += [found.decode() for found in _RECEIPT.findall(said)]
        self._came.set()

    async def _poll(self) -> None:
        while not self._is_over:
            self._waiting.ask("POST", "receive", {"max": 100, "wait": "20s", "lease": "60s"})
            self._take(await self._waiting.answer())

    async def _stream(self) -> None:
        self._waiting.ask("GET", "stream?credit=1000")
        await self._waiting.reader.readuntil(b"\r\n\r\n")
        while not self._is_over:
            self._take(await self._waiting.reader.readuntil(b"\n\n"))

    async def _settle(self) -> None:
        while not (self._is_over and not self._receipts):
            await self._came.wait()
            self._came.clear()
            receipts, self._receipts = self._receipts, []
            if receipts:
                self._settling.ask("POST", "settle", {"ack": receipts})
                await self._settling.answer()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("kind", choices=("poll", "stream"))
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    late_ms = uvloop.run(Waiting(given.url, given.topic, given.count).run(given.kind))
    figures = {
        "messages": len(late_ms),
        **late_figures(late_ms, "p50", "p99", "max"),
        "load_cpu_ms_a_message": round(time.process_time() / len(late_ms) * 1e3, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
