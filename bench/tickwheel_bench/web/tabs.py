"""Ten tabs with the first page of the dashboard, as browsers keep them: a process of its own, until its standard input
ends. Each reads the stream of figures and loads the page anew every 5 s: python -m tickwheel_bench.web.tabs URL
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Final
from urllib.parse import urlsplit

TABS: Final = 10
_REFRESH_S: Final = 5.0


class Tab:
    """One of them."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self.figures = 0
        self.pages = 0
        self.is_open = asyncio.Event()

    async def read_figures(self) -> None:
        """The stream, as long as it lasts."""
        reader, writer = await self._ask("/events", "text/event-stream")
        try:
            while line := await reader.readline():
                if line.startswith(b"data:"):
                    self.figures += 1
                    self.is_open.set()
        finally:
            writer.close()
        raise ConnectionError("the stream has ended")

    async def load_anew(self, first_s: float) -> None:
        """The page, again and again."""
        await asyncio.sleep(first_s)
        while True:
            reader, writer = await self._ask("/", "text/html", "HX-Request: true\r\n")
            try:
                answer = await reader.read()
            finally:
                writer.close()
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise ConnectionError(answer.partition(b"\r\n")[0].decode())
            self.pages += 1
            await asyncio.sleep(_REFRESH_S)

    async def _ask(
        self, path: str, kind: str, more: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        lines = f"Host: {self._host}:{self._port}\r\nAccept: {kind}\r\nConnection: close\r\n{more}"
        head = f"GET {path} HTTP/1.1\r\n{lines}\r\n"
        writer.write(head.encode())
        return reader, writer


async def keep_open(url: str) -> None:
    """Says when all are open, and at the end what they got."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    tabs = [Tab(parts.hostname, parts.port) for _ in range(TABS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(tab.read_figures()) for tab in tabs]
        tasks += [
            group.create_task(tab.load_anew(number * _REFRESH_S / TABS)) for number, tab in enumerate(tabs)
        ]
        for tab in tabs:
            await tab.is_open.wait()
        print(json.dumps({"tabs": TABS}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
    print(json.dumps({"figures": sum(tab.figures for tab in tabs), "pages": sum(tab.pages for tab in tabs)}))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    asyncio.run(keep_open(parser.parse_args().url))


if __name__ == "__main__":
    main()
