"""A network in memory: bytes take their time, arrive in pieces, and connections break, also within a frame.

Every connection has its own delays, so what goes over two of them may overtake each other.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import trio
from anyio.abc import ByteStream

from tickwheel.client.url import Address
from tickwheel.protocol.frames import FrameReader, FrameType

PIPE_BYTES = 256 * 1024
_MAX_FRAME_BYTES = 1 << 26
LATE_S = 0.06
"""With a lease of 1 s a probe and its answer may take twice as long: then the broker takes who runs for standing
still."""


@dataclass(frozen=True)
class NetworkFaults:
    """How bad the network is; probabilities are those of each connection, or of each piece of bytes."""

    delay_s: float
    slow_piece: float
    partial: float
    cut_after_bytes: float
    silent: float
    refused: float
    lost_answers: float = 0.0
    """Of the answers: the connection breaks exactly when this one arrives."""


class Pipe:
    """One direction of a connection."""

    def __init__(self, rng: random.Random, faults: NetworkFaults, tell_late: Callable[[float], None]) -> None:
        """`tell_late` is called with the time of arrival of each piece of bytes that takes longer than `LATE_S`, and
        with the time now for each that is lost."""
        self._rng = rng
        self._faults = faults
        self._tell_late = tell_late
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._arrives_s = 0.0
        self._changed = trio.lowlevel.ParkingLot()
        self._is_ended = self._is_broken = False
        self.is_silent = False
        self._holds_reader = self._holds_sender = False
        self.passed_bytes = 0

    async def send_some(self, data: bytes | memoryview) -> int:
        """Takes what fits. Raises trio.BrokenResourceError."""
        await trio.lowlevel.checkpoint()
        while self._holds_sender or (self._queued_bytes >= PIPE_BYTES and not self._is_broken):
            await self._changed.park()
        if self._is_broken or self._is_ended:
            raise trio.BrokenResourceError("the connection is gone")
        return self.send_at_once(data)

    def send_at_once(self, data: bytes | memoryview) -> int:
        """Takes what fits now; 0 also when the connection is gone."""
        if self._is_broken or self._is_ended or self._queued_bytes >= PIPE_BYTES:
            return 0
        count = min(len(data), PIPE_BYTES - self._queued_bytes)
        if self._rng.random() < self._faults.partial:
            count = self._rng.randint(1, count)
        self.passed_bytes += count
        if self.is_silent:
            self._tell_late(trio.current_time())
        else:
            self._pieces.append((self._next_arrival(), bytes(data[:count])))
            self._queued_bytes += count
            self._changed.unpark_all()
        return count

    async def receive_some(self, most_bytes: int) -> bytes:
        """What has arrived; nothing at the end. Raises trio.BrokenResourceError."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._holds_reader:
                await self._changed.park()
            elif self._pieces:
                arrives_s = self._pieces[0][0]
                if arrives_s <= trio.current_time():
                    return self._take(most_bytes)
                with trio.move_on_at(arrives_s):
                    await self._changed.park()
            elif self._is_broken:
                raise trio.BrokenResourceError("connection reset")
            elif self._is_ended:
                return b""
            else:
                await self._changed.park()

    def hold_reader(self) -> None:
        """Who reads stands still, and does not see an end either."""
        self._holds_reader = True

    def hold_sender(self) -> None:
        """Who sends stands still."""
        self._holds_sender = True

    def let_go(self) -> None:
        """Both run."""
        self._holds_reader = self._holds_sender = False
        self._changed.unpark_all()

    def end(self) -> None:
        """Nothing more is sent; what is on its way arrives."""
        self._is_ended = True
        self._changed.unpark_all()

    def cut(self) -> None:
        """The connection breaks; of what is on its way only a part arrives, however the frames lie."""
        if self._is_broken:
            return
        self._is_broken = True
        left_bytes = self._rng.randint(0, self._queued_bytes)
        kept: deque[tuple[float, bytes]] = deque()
        for arrives_s, piece in self._pieces:
            if left_bytes > 0:
                kept.append((arrives_s, piece[:left_bytes]))
            left_bytes -= len(piece)
        self._pieces = kept
        self._changed.unpark_all()

    def _take(self, most_bytes: int) -> bytes:
        arrives_s, piece = self._pieces.popleft()
        count = min(len(piece), most_bytes)
        if self._rng.random() < self._faults.partial:
            count = self._rng.randint(1, count)
        if count < len(piece):
            self._pieces.appendleft((arrives_s, piece[count:]))
        self._queued_bytes -= count
        self._changed.unpark_all()
        return piece[:count]

    def _next_arrival(self) -> float:
        """Bytes of one direction never overtake each other."""
        delay_s = self._rng.random() * self._faults.delay_s
        if self._rng.random() < self._faults.slow_piece:
            delay_s += self._rng.random() * 2.0
        self._arrives_s = max(self._arrives_s, trio.current_time() + delay_s)
        if self._arrives_s > trio.current_time() + LATE_S:
            self._tell_late(self._arrives_s)
        return self._arrives_s


class Connection:
    """Both directions; the server's end is a `tickwheel_broker.net.transport.Transport`."""

    is_owner = False
    is_established = True

    def __init__(
        self, rng: random.Random, faults: NetworkFaults, number: int, tell_late: Callable[[float], None]
    ) -> None:
        self.peer = f"simulated-{number}"
        self.to_server, self.to_client = Pipe(rng, faults, tell_late), Pipe(rng, faults, tell_late)
        self._cut_at_bytes = (
            rng.randint(1, 1 << rng.randint(5, 16)) if rng.random() < faults.cut_after_bytes else 0
        )
        self._is_silent_at_bytes = rng.randint(1, 1 << 14) if rng.random() < faults.silent else 0
        self.is_over = self.is_still = self.was_still = False
        self.unread_since_s: float | None = None
        """Since when a client that stands still has messages that it has not read."""
        self.listener: MemoryListener | None = None

    def stop(self) -> None:
        """The client stands still, as after SIGSTOP: what is sent to it is taken as ever, but not read."""
        self.is_still = self.was_still = True
        self.unread_since_s = None
        self.to_client.hold_reader()
        self.to_server.hold_sender()

    def go_on(self) -> None:
        """It runs again."""
        self.is_still = False
        self.to_client.let_go()
        self.to_server.let_go()

    def cut(self) -> None:
        """Break it."""
        self.is_over = True
        self.to_server.cut()
        self.to_client.cut()

    def _wear(self) -> None:
        """A connection may be made to break, or to fall silent without a word, after so many bytes."""
        passed = self.to_server.passed_bytes + self.to_client.passed_bytes
        if self._cut_at_bytes and passed >= self._cut_at_bytes:
            self.cut()
        if self._is_silent_at_bytes and passed >= self._is_silent_at_bytes:
            self.to_server.is_silent = self.to_client.is_silent = True

    async def client_send(self, data: bytes) -> None:
        """For the client: all of it."""
        view = memoryview(data)
        while view:
            count = await self.to_server.send_some(view)
            self._wear()
            view = view[count:]

    async def receive_into(self, buffer: memoryview) -> int:
        """See `Transport`."""
        data = await self.to_server.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def send_some(self, data: bytes | memoryview) -> int:
        """See `Transport`."""
        count = await self.to_client.send_some(data)
        self._wear()
        return count

    def send_at_once(self, data: bytes) -> int:
        """See `Transport`."""
        count = self.to_client.send_at_once(data)
        self._wear()
        return count

    def end_sending(self) -> None:
        """See `Transport`."""
        self.to_client.end()

    def close(self) -> None:
        """See `Transport`."""
        self.is_over = True
        self.to_client.end()
        self.to_server.cut()


class ClientStream(ByteStream):
    """The client's end."""

    def __init__(self, connection: Connection, network: Network) -> None:
        self._connection = connection
        self._network = network
        self._reader = FrameReader(_MAX_FRAME_BYTES)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            data = await self._connection.to_client.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        if self._loses_answer(data):
            self._connection.cut()
            raise anyio.BrokenResourceError
        return data

    def _loses_answer(self, data: bytes) -> bool:
        """Whether an answer ends in these bytes, and is to be lost."""
        self._reader.feed(data)
        while (frame := self._reader.next_frame()) is not None:
            is_answer = frame.correlation != 0 and frame.type != FrameType.HELLO_OK
            if is_answer and self._network.loses_answer(frame.type):
                return True
        return False

    async def send(self, item: bytes) -> None:
        try:
            await self._connection.client_send(item)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        self._connection.to_server.end()

    async def aclose(self) -> None:
        self._connection.to_server.end()
        self._connection.to_client.cut()


class MemoryListener:
    """Where a broker takes connections; see `tickwheel_broker.net.listeners.Listener`."""

    def __init__(self, network: Network) -> None:
        self.url = "tickwheel://simulated:1"
        self._network = network
        self._waiting: deque[Connection] = deque()
        self._changed = trio.lowlevel.ParkingLot()

    async def accept(self) -> Connection:
        """The next connection."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            await self._changed.park()
        return self._waiting.popleft()

    def connect(self, connection: Connection) -> None:
        """A client wants to be heard."""
        connection.listener = self
        self._waiting.append(connection)
        self._changed.unpark_all()

    def close(self) -> None:
        """Stop listening."""
        self._network.stopped(self)
        for connection in self._waiting:
            connection.cut()


class Network:
    """All connections between clients and who serves them: clients try any that listens."""

    def __init__(self, rng: random.Random, faults: NetworkFaults) -> None:
        self._rng = rng
        self.faults = faults
        self._listeners: list[MemoryListener] = []
        self._connections: list[Connection] = []
        self.opened = self.cuts = 0
        self.late_until_s = -math.inf
        """When the last piece of bytes arrives that takes longer than `LATE_S`, or was lost."""
        self.lost_answers: dict[int, int] = {}
        """How many answers were lost, by their type."""

    @property
    def connections(self) -> list[Connection]:
        """Those that were made lately."""
        return self._connections

    @property
    def is_unheard(self) -> bool:
        """Whether some client may not have been heard in time: its connection fell silent, or it stood still."""
        return any(one.to_server.is_silent or one.was_still for one in self._connections)

    def listen(self) -> MemoryListener:
        """A broker begins to listen."""
        listener = MemoryListener(self)
        self._listeners.append(listener)
        return listener

    def stopped(self, listener: MemoryListener) -> None:
        """A broker listens no longer."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def dial(self, _address: Address) -> ByteStream:
        """What clients open connections with. Raises OSError."""
        return ClientStream(await self.connect(), self)

    async def connect(self) -> Connection:
        """A new connection to who listens. Raises OSError."""
        await trio.sleep(self._rng.random() * self.faults.delay_s)
        if not self._listeners or self._rng.random() < self.faults.refused:
            raise ConnectionRefusedError("nobody listens")
        several = len(self._listeners) > 1
        listener = self._rng.choice(self._listeners) if several else self._listeners[0]
        self.opened += 1
        connection = Connection(self._rng, self.faults, self.opened, self._tell_late)
        self._connections = [one for one in self._connections if not one.is_over]
        self._connections.append(connection)
        listener.connect(connection)
        return connection

    def _tell_late(self, until_s: float) -> None:
        self.late_until_s = max(self.late_until_s, until_s)

    def loses_answer(self, frame_type: int) -> bool:
        """Whether an answer that arrives now is to be lost."""
        if not self.faults.lost_answers or self._rng.random() >= self.faults.lost_answers:
            return False
        self.lost_answers[frame_type] = self.lost_answers.get(frame_type, 0) + 1
        return True

    def stop_one(self) -> Connection | None:
        """A client stands still, until its connection goes on. None: there is none that runs."""
        running = [one for one in self._connections if not one.is_over and not one.is_still]
        if not running:
            return None
        one = self._rng.choice(running)
        one.stop()
        return one

    def cut_one(self) -> bool:
        """Breaks some connection. False: there is none."""
        alive = [one for one in self._connections if not one.is_over]
        if not alive:
            return False
        self._rng.choice(alive).cut()
        self.cuts += 1
        return True

    def gone(self, listener: MemoryListener) -> None:
        """The broker that listened there is gone, with all connections to it."""
        self.stopped(listener)
        for connection in self._connections:
            if connection.listener is listener:
                connection.cut()
        self._connections = [one for one in self._connections if one.listener is not listener]
