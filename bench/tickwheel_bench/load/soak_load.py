"""The load of a soak: all that clients do, at a steady rate, so that what a broker holds should stay the same."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import anyio

from tickwheel import Client
from tickwheel.errors import TickwheelError
from tickwheel.protocol.bodies.requests import encode_body, hello
from tickwheel.protocol.frames import FrameType, encode_frame

TOPIC, BEATS = "soak", "soak-beats"
GROUPS = ("one", "two")
LONGEST_DELAY_MS = 10_000
_TICK_S = 0.1
_NACKED = 0.02
_CHANGED = 0.02


class Load:
    """Runs until cancelled; counts what it does, and how late messages come at their first delivery."""

    def __init__(self, url: str, rate: int, seed: int) -> None:
        """`rate`: messages a second."""
        self._url, self._rate = url, rate
        self._random = random.Random(seed)
        self.sent = 0
        self.delivered = 0
        self.errors: list[str] = []
        self._late_ms: list[float] = []
        self._recent: list[int] = []

    async def run(self) -> None:
        """Everything at once, each part in a task of its own."""
        async with Client(self._url) as client, anyio.create_task_group() as group:
            keep = timedelta(seconds=2)
            await client.create_topic(TOPIC, purge_after=keep, max_attempts=2, ack_wait=timedelta(seconds=5))
            for name in (BEATS, f"{TOPIC}.dead"):
                await client.create_topic(name, purge_after=keep)
            await client.create_schedule("beat", BEATS, every=timedelta(seconds=1), body=b"beat")
            for part in (self._send, self._change, self._commit):
                group.start_soon(self._repeat, part, client, _TICK_S)
            for name in GROUPS:
                group.start_soon(self._consume, TOPIC, name, _NACKED)
            for topic in (BEATS, f"{TOPIC}.dead"):
                group.start_soon(self._consume, topic, "reader", 0.0)
            group.start_soon(self._repeat, self._look, client, 1.0)
            group.start_soon(self._repeat, self._come_and_go, client, 0.2)

    def take_late_ms(self) -> list[float]:
        """How late each first delivery was since this was last called."""
        late_ms, self._late_ms = self._late_ms, []
        return late_ms

    async def _repeat(
        self, part: Callable[[Client], Awaitable[None]], client: Client, every_s: float
    ) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                await part(client)
            except TickwheelError as error:
                self.errors.append(f"{part.__name__}: {error.code}: {error}")
            await anyio.sleep(max(0.0, begun_s + every_s - time.monotonic()))

    async def _send(self, client: Client) -> None:
        count = max(1, int(self._rate * _TICK_S))
        delays = [self._random.randrange(LONGEST_DELAY_MS) for _ in range(count)]
        bodies = [self._random.randbytes(self._random.choice((20, 100, 1_000))) for _ in range(count)]
        orders = [f"order-{self._random.randrange(50)}" if n % 10 == 0 else None for n in range(count)]
        results = await client.send_many(
            TOPIC, bodies, delay_ms=delays, auto_key=self._random.random() < 0.5, order_keys=orders
        )
        results.raise_for_errors()
        self.sent += count
        self._recent = [result.id for result in results if not isinstance(result, TickwheelError)]

    async def _change(self, client: Client) -> None:
        chosen = [one for one in self._recent if self._random.random() < _CHANGED]
        if chosen:
            await client.cancel(ids=chosen[::2])
        if chosen[1::2]:
            await client.reschedule(ids=chosen[1::2], delay=timedelta(seconds=1))

    async def _commit(self, client: Client) -> None:
        async with client.transaction() as tx:
            tx.send(TOPIC, b"in a transaction", delay=timedelta(milliseconds=500))
        prepared = await client.prepare(TOPIC, b"prepared")
        await (prepared.commit() if self._random.random() < 0.5 else prepared.rollback())
        self.sent += 1

    async def _consume(self, topic: str, group: str, nacked: float) -> None:
        """Leaves and comes back now and then, each time on a connection of its own."""
        while True:
            async with Client(self._url) as client, client.subscribe(topic, group=group) as subscription:
                with anyio.move_on_after(self._random.uniform(5, 15)):
                    async for batch in subscription.batches():
                        await self._take(batch, topic, nacked)

    async def _take(self, batch: Any, topic: str, nacked: float) -> None:
        now_ms = time.time() * 1_000
        self.delivered += len(batch)
        for message in batch:
            if message.epoch == 1 and topic == TOPIC and message.order_key is None:
                self._late_ms.append(now_ms - message.deliver_at_ms)
            if self._random.random() < nacked:
                await message.nack(error="the soak gives it back")
            else:
                await message.ack()

    async def _look(self, client: Client) -> None:
        await client.topics()
        await client.wheel()
        await client.browse(TOPIC, limit=20)
        with suppress(TickwheelError):
            await client.topic("nowhere")  # refused, and counted

    async def _come_and_go(self, client: Client) -> None:
        """A client in good order, one that vanishes in the midst of a frame, and one that talks nonsense."""
        async with Client(self._url) as visitor:
            await visitor.ping()
        await anyio.to_thread.run_sync(self._vanish)

    def _vanish(self) -> None:
        address = urlsplit(self._url)
        with socket.create_connection((address.hostname or "127.0.0.1", address.port or 0)) as sock:
            sock.sendall(encode_frame(FrameType.HELLO, 1, encode_body(hello("vanishes"))))
            sock.sendall(struct.pack("<I", 1_000_000) + bytes(5_000))
        with socket.create_connection((address.hostname or "127.0.0.1", address.port or 0)) as sock:
            sock.sendall(self._random.randbytes(200))
