"""A scripted broker for sends of the blocking client: it takes them in turn, and a test says how each one ends; the
endings that there are; and what is to be seen of the client."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from tests.unit.tickwheel.blocking.scripted_server import Peer, Server, pong
from tests.unit.tickwheel.server_frames import encode_send_ok
from tickwheel import sync
from tickwheel.blocking.short_way import ShortWaySession
from tickwheel.errors import DiskFull, ShuttingDown, TickwheelError, UnknownTopic
from tickwheel.protocol.bodies.requests import (
    GoAway,
    OpenTopic,
    OpenTopicOk,
    Ping,
    encode_body,
    encode_error,
)
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.machine import Requested, SendRequested
from tickwheel.protocol.messages import ItemException, SendCode, SendColumns, SendOk

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


# -- how the broker answers --


def in_pieces(*cuts: int) -> Ending:
    def answers(sends: Sends, peer: Peer, request: SendRequested) -> None:
        frame = send_ok(request.correlation, 2)
        for start, stop in zip((0, *cuts), (*cuts, len(frame)), strict=True):
            peer.sock.sendall(frame[start:stop])
            time.sleep(0.01)

    return answers


def behind(*frames: bytes) -> Ending:
    def answers(sends: Sends, peer: Peer, request: SendRequested) -> None:
        for frame in frames:
            peer.sock.sendall(frame)
        sends.answer(peer, request)

    return answers


def refusing(error: TickwheelError) -> Ending:
    def answers(sends: Sends, peer: Peer, request: SendRequested) -> None:
        peer.sock.sendall(encode_frame(FrameType.ERROR, request.correlation, encode_error(error)))

    return answers


def with_exception(code: int, message_id: int = 1) -> Ending:
    def answers(sends: Sends, peer: Peer, request: SendRequested) -> None:
        exception = ItemException(0, code, message_id)
        peer.sock.sendall(send_ok(request.correlation, 2, exception, stored=0))

    return answers


def with_bytes(make: Callable[[int], bytes]) -> Ending:
    def answers(sends: Sends, peer: Peer, request: SendRequested) -> None:
        peer.sock.sendall(make(request.correlation))

    return answers


def ends(sends: Sends, peer: Peer, request: SendRequested) -> None:
    peer.sock.shutdown(socket.SHUT_RDWR)


def resets(sends: Sends, peer: Peer, request: SendRequested) -> None:
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()
    raise ConnectionError


def says_nothing(sends: Sends, peer: Peer, request: SendRequested) -> None:
    pass


def goes_away(sends: Sends, peer: Peer, request: SendRequested) -> None:
    peer.sock.sendall(encode_frame(FrameType.GOAWAY, 0, encode_body(GoAway(reason="bye"))))
    sends.answer(peer, request)


def with_a_part_behind(sends: Sends, peer: Peer, request: SendRequested) -> None:
    peer.sock.sendall(send_ok(request.correlation, 2) + PROBE[:9])
    time.sleep(0.05)
    peer.sock.sendall(PROBE[9:])


def ends_in_the_answer(sends: Sends, peer: Peer, request: SendRequested) -> None:
    peer.sock.sendall(send_ok(request.correlation, 2)[:20])
    peer.sock.shutdown(socket.SHUT_RDWR)


def flipped(correlation: int) -> bytes:
    frame = bytearray(send_ok(correlation, 2))
    frame[20] ^= 1
    return bytes(frame)


PROBE = encode_frame(FrameType.PROBE, 0)
ENDINGS: dict[str, Ending] = {
    "at once": Sends.answer,
    "two pieces": in_pieces(17),
    "byte by byte": in_pieces(*range(1, 32)),
    "a probe first": behind(PROBE),
    "many probes first": behind(PROBE * 2_000),
    "a probe behind it": with_bytes(lambda number: send_ok(number, 2) + PROBE),
    "a part of a probe behind it": with_a_part_behind,
    "a duplicate": with_exception(SendCode.DUPLICATE),
    "one that differs": with_exception(SendCode.DUPLICATE_DIFFERS),
    "too large": with_exception(SendCode.BODY_TOO_LARGE, 0),
    "an unknown code": with_exception(99, 0),
    "refused": refusing(DiskFull()),
    "the topic is gone": refusing(UnknownTopic("It was deleted.")),
    "the broker stops": refusing(ShuttingDown()),
    "it goes away": goes_away,
    "a wrong checksum": with_bytes(flipped),
    "another correlation": with_bytes(lambda number: send_ok(number + 1, 2)),
    "two were stored": with_bytes(lambda number: send_ok(number, 2, stored=2)),
    "no frame": with_bytes(lambda _: b"\xff" * 40),
    "an end": ends,
    "a reset": resets,
    "an end in the answer": ends_in_the_answer,
}


# -- the client --


def client_of(url: str, **options: Any) -> sync.Client:
    return sync.Client(url, token="", **options)


def session_of(client: sync.Client) -> ShortWaySession:
    session = client._session
    assert session is not None
    return session


def is_idle(client: sync.Client) -> bool:
    """Whether nothing is under way, and nothing counts any more."""
    session = session_of(client)
    link = session.link
    return (
        not (session._live or session._outbox or session._budget.taken or session.monitor.is_read)
        and link is not None
        and not link.pending
        and not link.machine.outstanding
    )
