"""A scripted broker for sends of the blocking client: it takes them in turn, and a test says how each one ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tests.unit.tickwheel.blocking.scripted_server import Peer, Server, pong
from tests.unit.tickwheel.server_frames import encode_send_ok
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk, Ping, encode_body
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.machine import Requested, SendRequested
from tickwheel.protocol.messages import ItemException, SendColumns, SendOk

TOPIC = "tea"
TOPIC_ID = 3
Ending: TypeAlias = "Callable[[Sends, Peer, SendRequested], None]"


def send_ok(correlation: int, first_id: int, *exceptions: ItemException, stored: int = 1) -> bytes:
    """A whole frame."""
    return encode_frame(FrameType.SEND_OK, correlation, encode_send_ok(SendOk(first_id, stored, exceptions)))


class Sends:
    """Answers sends of any connection, but for the second one of all, whose end is told."""

    def __init__(self, *endings: Ending) -> None:
        """``endings``: of the second send and those behind it; then all is as usual."""
        self._endings = list(endings)
        self.seen: list[tuple[int, int, SendColumns]] = []
        """(connection, number of the topic, message) of each frame."""
        self.others: list[str] = []
        """The other requests."""
        self._connections = 0

    def server(self) -> Server:
        """A server that does so."""
        return Server(self._serve)

    def answer(self, peer: Peer, request: SendRequested) -> None:
        """The good end. Ids are the numbers of sends."""
        peer.sock.sendall(send_ok(request.correlation, len(self.seen)))

    def _serve(self, peer: Peer) -> None:
        self._connections += 1
        connection = self._connections
        peer.greet()
        while (request := peer.next()) is not None:
            self.take(peer, connection, request)

    def take(self, peer: Peer, connection: int, request: Any) -> None:
        """One request."""
        if isinstance(request, SendRequested):
            self.seen.append((connection, request.topic_id, request.columns))
            is_first = len(self.seen) == 1
            ending = self._endings.pop(0) if self._endings and not is_first else Sends.answer
            ending(self, peer, request)
            return
        assert isinstance(request, Requested)
        self.others.append(type(request.request).__name__)
        if isinstance(request.request, OpenTopic):
            told = OpenTopicOk(topic_id=TOPIC_ID, created=False)
            peer.sock.sendall(encode_frame(FrameType.OPEN_TOPIC_OK, request.correlation, encode_body(told)))
        elif isinstance(request.request, Ping):
            peer.sock.sendall(pong(request.correlation))
