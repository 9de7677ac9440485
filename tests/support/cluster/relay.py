"""Three brokers of Kafka whose every connection goes through here: the way between any two machines can be cut, in each
direction by itself. Who connects says so in its first request: each has a client id of its own."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from tickwheel_bench.cluster.kafka import Kafka, start_all
from tickwheel_bench.processes import free_port

NUMBERS: Final = (1, 2, 3)
_CHUNK_BYTES: Final = 1 << 16
_LOOK_S: Final = 0.02
_CLIENT_ID_AT: Final = 12
_SOURCES: Final = (
    (re.compile(r"node-(\d+)"), "node"),
    (re.compile(r"(?:broker-|raft-client-)?(\d+)(?:-fetcher-\d+)?"), "broker"),
)


def source_of(client_id: str) -> str:
    """``node 1``, ``broker 2``, or what it calls itself."""
    for pattern, kind in _SOURCES:
        if found := pattern.fullmatch(client_id):
            return f"{kind} {found[1]}"
    return client_id


@dataclass
class Links:
    """What is cut: pairs of who sends and who does not get it. It waits there until the link is mended."""

    cut: set[tuple[str, str]] = field(default_factory=set)

    def between(self, one: str, others: list[str]) -> set[tuple[str, str]]:
        """Both directions."""
        return {pair for other in others for pair in ((one, other), (other, one))}


class Relay:
    """Listens for each broker, and hands on. It has a thread of its own."""

    def __init__(self) -> None:
        self.links = Links()
        self._ways: list[tuple[int, int, str]] = []
        self._is_up = threading.Event()
        self._scope = trio.CancelScope()

    def way_to(self, port: int, target: str) -> int:
        """A port that stands for another one."""
        self._ways.append((free_port(), port, target))
        return self._ways[-1][0]

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        thread.start()
        self._is_up.wait()
        try:
            yield
        finally:
            self._token.run_sync_soon(self._scope.cancel)
            thread.join()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                for listens_on, port, target in self._ways:
                    serve = partial(self._relay, port, target)
                    await nursery.start(partial(trio.serve_tcp, serve, listens_on, host="127.0.0.1"))
                self._is_up.set()

    async def _relay(self, port: int, target: str, near: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            first = b""
            while len(first) < _CLIENT_ID_AT + 2 or len(first) < _CLIENT_ID_AT + 2 + _length(first):
                received = await near.receive_some(_CHUNK_BYTES)
                if not received:
                    return
                first += received
            source = source_of(first[_CLIENT_ID_AT + 2 :][: _length(first)].decode())
            far = await trio.open_tcp_stream("127.0.0.1", port)
            async with far, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, near, far, (source, target), first)
                await self._pump(far, near, (target, source), b"")
                nursery.cancel_scope.cancel()

    async def _pump(
        self, give: trio.SocketStream, take: trio.SocketStream, way: tuple[str, str], data: bytes
    ) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            while data or (data := await give.receive_some(_CHUNK_BYTES)):
                while way in self.links.cut:
                    await trio.sleep(_LOOK_S)
                await take.send_all(data)
                data = b""
            await take.aclose()


def _length(first: bytes) -> int:
    (found,) = struct.unpack_from(">h", first, _CLIENT_ID_AT)
    return max(0, int(found))


@dataclass
class RelayedKafka:
    """``servers``: for `bootstrap.servers`."""

    brokers: list[Kafka]
    links: Links
    servers: str


@contextmanager
def relayed_kafka(directory: Path) -> Iterator[RelayedKafka]:
    """Three brokers that keep copies of each other's topics."""
    relay = Relay()
    inner = {number: free_port() for number in NUMBERS}
    controllers = {number: free_port() for number in NUMBERS}
    voters = ",".join(
        f"{number}@127.0.0.1:{relay.way_to(port, f'broker {number}')}" for number, port in controllers.items()
    )
    brokers, servers = [], []
    for number in NUMBERS:
        broker = Kafka(directory / f"kafka{number}", number=number, controllers=controllers)
        outside = relay.way_to(broker.port, f"broker {number}")
        servers.append(f"127.0.0.1:{outside}")
        inside = relay.way_to(inner[number], f"broker {number}")
        broker.configure(
            {
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},BROKER://127.0.0.1:{inner[number]},"
                f"CONTROLLER://127.0.0.1:{controllers[number]}",
                "advertised.listeners": f"PLAINTEXT://{servers[-1]},BROKER://127.0.0.1:{inside}",
                "listener.security.protocol.map": ",".join(
                    f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "BROKER", "CONTROLLER")
                ),
                "inter.broker.listener.name": "BROKER",
                "offsets.topic.replication.factor": 3,
                "min.insync.replicas": 2,
            }
        )
        brokers.append(broker)
    with ExitStack() as stack:
        stack.enter_context(relay.running())
        for broker in brokers:
            stack.callback(broker.kill)
        start_all(brokers)
        yield RelayedKafka(brokers, relay.links, ",".join(servers))
