"""What waits to be written to one connection: a queue that never blocks its feeders, and the task that
empties it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from tickwheel_broker.bell import Bell
from tickwheel_broker.net.transport import Transport

_PROGRESS_BYTES = 64 << 10
"""A client that reads less than this (or than all there is) in its time does not read."""

MAX_PROMISED = 10_000
"""So many answers of one connection may wait for the disk; until one goes, it is not read from."""

_JOIN_BYTES = 1 << 19
"""Small replies are joined up to this size: one system call, one packet train."""

_AT_ONCE_BYTES = 1 << 16
"""More than this is left to the task, which gives others a turn."""


class Outgoing:
    """The outgoing side of a connection.

    `put` is synchronous: the group commit and the dispatchers never wait for a client. They look at `is_full`
    instead, and `stalled_since_s` tells the watchman of a client that does not read.
    """

    def __init__(self, transport: Transport, high_water_bytes: int) -> None:
        self._transport = transport
        self._high_water_bytes = high_water_bytes
        self._chunks: deque[bytes] = deque()
        self._bell = Bell()
        self._is_closed = False
        self._on_low: list[Callable[[], None]] = []
        self._promised = 0
        self._promised_bytes = 0
        self._is_writing = False
        self.gathers = False
        """Whether more answers may follow at once, because requests are being taken: they leave together."""
        self.queued_bytes = 0
        self.put_bytes = 0
        """How much was queued since the beginning, also what was dropped after the end of the connection."""
        self.written_bytes = 0
        """How much of that the operating system has taken."""
        self.stalled_since_s: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be offered for now. What waits for the disk counts, too."""
        return self.queued_bytes + self._promised_bytes >= self._high_water_bytes

    def put(self, frames: bytes) -> None:
        """Queue whole frames, for the task to write. After the end of the connection they are dropped."""
        self.queue(frames)
        self._bell.ring()

    def queue(self, frames: bytes) -> None:
        """All that ever leaves comes through here. What is queued must be written, or the bell be rung."""
        self.put_bytes += len(frames)
        if not self._is_closed:
            self._chunks.append(frames)
            self.queued_bytes += len(frames)

    def promise(self) -> Callable[[bytes], None]:
        """A `put` for an answer that has to wait for the disk; call it once."""
        self._promised += 1
        return self._keep_promise

    def _keep_promise(self, frames: bytes) -> None:
        self._promised -= 1
        self.queue(frames)
        self._write_at_once()

    def hold(self, frame: bytes) -> None:
        """A frame that is not small waits for the disk; `let_go` or `withdraw` it later."""
        self._promised += 1
        self._promised_bytes += len(frame)

    def let_go(self, frame: bytes) -> None:
        """Queue a frame that was held."""
        self._promised -= 1
        self._promised_bytes -= len(frame)
        self.queue(frame)
        self._write_at_once()

    def withdraw(self, frame: bytes) -> None:
        """A frame that was held will never leave."""
        self._promised -= 1
        self._promised_bytes -= len(frame)
        if self._on_low and not self.is_full:
            self._tell_low()

    @property
    def has_promised_much(self) -> bool:
        """Whether so many answers wait for the disk that the client should wait with more requests."""
        return self._promised >= MAX_PROMISED

    def when_low(self, call: Callable[[], None]) -> None:
        """Call once when the queue has fallen below the high-water mark."""
        if call not in self._on_low:
            self._on_low.append(call)

    async def wait_not_full(self) -> None:
        """Return once the queue is below its high-water mark, or nothing more will be written."""
        while self.is_full and not self._is_closed:
            await self._wait_low()

    async def flush(self) -> None:
        """Return once everything queued was written, or nothing more will be."""
        while self.queued_bytes and not self._is_closed:
            await self._wait_low()

    async def _wait_low(self) -> None:
        fell = trio.Event()
        self._on_low.append(fell.set)
        await fell.wait()

    async def run(self) -> None:
        """Write until cancelled. Raises trio.BrokenResourceError when the other side is gone."""
        try:
            while True:
                await self._bell.wait()
                self._is_writing = True
                while self._chunks:
                    await self._write_some()
                self._is_writing = False
        finally:
            self._is_closed = True
            self._chunks.clear()
            self.queued_bytes = 0
            self._tell_low()

    def _write_at_once(self) -> None:
        """The last answer that waited for the disk takes all of them along; the task, which would need a turn of the
        loop for that, writes what is left."""
        if self._is_alone and self._chunks:
            data = self._take()
            sent_bytes = self._transport.send_at_once(data)
            self.queued_bytes -= sent_bytes
            self.written_bytes += sent_bytes
            if sent_bytes == len(data):
                return
            self._chunks.appendleft(data[sent_bytes:])
        self._bell.ring()

    @property
    def _is_alone(self) -> bool:
        """Whether nothing else is about to be written, and little waits."""
        is_waited_for = self.gathers or self._promised or self._is_writing or self._on_low
        return not is_waited_for and self.queued_bytes <= _AT_ONCE_BYTES

    async def _write_some(self) -> None:
        data: bytes | memoryview = self._take()
        progress_bytes = _PROGRESS_BYTES
        while data:
            if progress_bytes >= _PROGRESS_BYTES:
                self.stalled_since_s, progress_bytes = trio.current_time(), 0
            sent_bytes = await self._transport.send_some(data)
            self.queued_bytes -= sent_bytes
            self.written_bytes += sent_bytes
            progress_bytes += sent_bytes
            data = data[sent_bytes:] if sent_bytes == len(data) else memoryview(data)[sent_bytes:]
        self.stalled_since_s = None
        if self._on_low and not self.is_full:
            self._tell_low()

    def _take(self) -> bytes:
        chunks = self._chunks
        if len(chunks) == 1 or len(chunks[0]) >= _JOIN_BYTES:
            return chunks.popleft()
        taken, size_bytes = [], 0
        while chunks and size_bytes < _JOIN_BYTES:
            taken.append(chunks.popleft())
            size_bytes += len(taken[-1])
        return b"".join(taken)

    def _tell_low(self) -> None:
        calls, self._on_low = self._on_low, []
        for call in calls:
            call()
