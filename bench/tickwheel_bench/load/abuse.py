"""Clients that no broker wants, for the overload benchmark and its tests: each runs in a process of its own.

``python -m tickwheel_bench.load.abuse NAME URL SECONDS`` prints what it did as JSON.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from tickwheel.protocol.bodies.requests import OpenTopic, Subscribe, decode_error, encode_body, hello
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.frames import FrameReader, FrameType, encode_frame

FLOODERS: Final = 4
FLOOD_BATCH: Final = 1_000
SILENT_READERS: Final = 20
IDLE: Final = 10_000
TRICKLERS: Final = 400
STORMERS: Final = 20
TOPIC: Final = "abused"


class Visitor:
    """One connection, by hand."""

    def __init__(self, stream: trio.SocketStream, counts: Counter[str]) -> None:
        self.stream = stream
        self._counts = counts
        self._reader = FrameReader(1 << 26)

    async def greet(self) -> None:
        await self.stream.send_all(encode_frame(FrameType.HELLO, 1, encode_body(hello("abuse"))))
        await self.receive()

    async def receive(self) -> bytes:
        """The payload of the next frame; an error is counted, and raised. Raises BrokenResourceError at the end."""
        while (frame := self._reader.next_frame()) is None:
            data = await self.stream.receive_some(1 << 16)
            if not data:
                raise trio.BrokenResourceError
            self._reader.feed(data)
        if frame.type == FrameType.ERROR:
            error = decode_error(frame.payload)
            self._counts[error.code] += 1
            raise error
        return frame.payload

    async def topic_id(self) -> int:
        await self.stream.send_all(encode_frame(FrameType.OPEN_TOPIC, 2, encode_body(OpenTopic(TOPIC, True))))
        return (await self.receive())[-1]


class Abuse:
    """Where to go, and what came of it."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 0
        self.counts: Counter[str] = Counter()

    async def again_and_again(self, visit: Callable[[Visitor], Awaitable[None]]) -> None:
        """Connects anew whenever the broker has had enough."""
        while True:
            try:
                async with await trio.open_tcp_stream(self._host, self._port) as stream:
                    self.counts["connections"] += 1
                    await visit(Visitor(stream, self.counts))
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.counts["closed"] += 1
            except* TickwheelError:
                pass  # counted by its code
            await trio.sleep(0.01)

    async def flood(self, visitor: Visitor) -> None:
        """Sends without end, and only looks at the answers that have come."""
        await visitor.greet()
        topic_id = await visitor.topic_id()
        due_ms = int(time.time() * 1_000) + 3_600_000
        head = struct.pack("<IIIIq", topic_id, FLOOD_BATCH, 0, 50, due_ms)
        payload = head + struct.pack("<I", 100) * FLOOD_BATCH + bytes(100 * FLOOD_BATCH)
        frame = encode_frame(FrameType.SEND, 3, payload)

        async def read() -> None:
            while True:
                await visitor.receive()
                self.counts["confirmed"] += FLOOD_BATCH

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while True:
                await visitor.stream.send_all(frame)
                self.counts["sent"] += FLOOD_BATCH

    async def subscribe_and_sleep(self, visitor: Visitor) -> None:
        """Takes as much as it may, and reads nothing of it."""
        await visitor.greet()
        request = Subscribe(TOPIC, f"sleeper-{self.counts['connections']}", 1_000_000, 10_000)
        await visitor.stream.send_all(encode_frame(FrameType.SUBSCRIBE, 2, encode_body(request)))
        await trio.sleep_forever()

    async def idle(self, visitor: Visitor) -> None:
        """Says hello, and then nothing for as long as it may."""
        await visitor.greet()
        self.counts["greeted"] += 1
        await visitor.receive()

    async def trickle(self, visitor: Visitor) -> None:
        """A byte a second: every other one in the handshake, the rest in the midst of a frame."""
        if self.counts["connections"] % 2:
            await visitor.greet()
            data = struct.pack("<I", 1 << 20) + bytes(1 << 20)
        else:
            data = encode_frame(FrameType.HELLO, 1, encode_body(hello("x" * 900)))

        async def write() -> None:
            for byte in data:
                await visitor.stream.send_all(bytes([byte]))
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await visitor.receive()
            nursery.cancel_scope.cancel()

    async def storm(self, visitor: Visitor) -> None:
        """Comes and goes at once, sometimes with a greeting."""
        if self.counts["connections"] % 3 == 0:
            await visitor.greet()


def _visits(abuse: Abuse) -> dict[str, tuple[int, Callable[[Visitor], Awaitable[None]]]]:
    return {
        "flood": (FLOODERS, abuse.flood),
        "sleep": (SILENT_READERS, abuse.subscribe_and_sleep),
        "idle": (IDLE, abuse.idle),
        "trickle": (TRICKLERS, abuse.trickle),
        "storm": (STORMERS, abuse.storm),
    }


async def run(name: str, url: str, seconds: float, count: int | None = None) -> dict[str, Any]:
    """So many such clients at once (by default as many as the benchmark has), for so long."""
    abuse = Abuse(url)
    usual, visit = _visits(abuse)[name]
    with trio.move_on_after(seconds) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, scope)
            for number in range(usual if count is None else count):
                nursery.start_soon(abuse.again_and_again, visit)
                if number % 100 == 99:
                    await trio.sleep(0.05)
    return dict(abuse.counts)


async def _end_on_signal(scope: trio.CancelScope) -> None:
    """SIGTERM: enough for this time."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


def main() -> None:
    """For a process of its own."""
    name, url, seconds, *count = sys.argv[1:]
    counts = trio.run(run, name, url, float(seconds), int(count[0]) if count else None)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
