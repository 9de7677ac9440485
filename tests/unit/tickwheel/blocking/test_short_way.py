"""The short way of a send, beside the usual one: whatever the broker does, they end alike, with as many frames."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S, Peer, until
from tests.unit.tickwheel.blocking.short_way_broker import TOPIC, Ending, Sends, send_ok
from tickwheel import SendResult, sync
from tickwheel.blocking import short_way
from tickwheel.blocking.session import BlockingSession
from tickwheel.blocking.short_way import ShortWaySession
from tickwheel.blocking.wire import Wire
from tickwheel.errors import (
    BadArgument,
    BadTime,
    BodyTooLarge,
    ClientClosed,
    DiskFull,
    KeyTooLong,
    SendUncertain,
    ShuttingDown,
    TickwheelError,
    UnknownTopic,
)
from tickwheel.protocol.bodies.requests import GoAway, encode_body, encode_error
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.machine import SendRequested
from tickwheel.protocol.messages import ItemException, SendCode
from tickwheel_native import call as _call


@pytest.fixture(autouse=True)
def _is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_way, "is_open", True)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of what was written by the short way."""
    found: list[bytes] = []
    genuine = _call.send

    def send(call: Any, fd: int, correlation: int, columns: bytes, key: bytes, body: bytes) -> bool:
        found.append(body)
        return genuine(call, fd, correlation, columns, key, body)

    monkeypatch.setattr(_call, "send", send)
    return found


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
OPTIONS: dict[str, dict[str, Any]] = {
    "key": {"key": "k"},
    "automatic key, delay": {"delay": timedelta(hours=1)},
    "time": {"key": "k", "deliver_at": datetime(2031, 1, 1, tzinfo=UTC)},
}


def outcome(ending: Ending, options: dict[str, Any], *, is_short: bool, **of_client: Any) -> Any:
    """What three sends return or raise, and what the broker saw of them."""
    sends, said = Sends(ending), []
    short_way.is_open = is_short
    with sends.server() as server, client_of(server.url, **of_client) as client:
        for number in range(3):
            try:
                said.append(client.send(TOPIC, b"%d" % number, **options))
            except TickwheelError as error:
                said.append((type(error), error.message))  # type: ignore[arg-type]
        connections = server.connections
        assert client.ping() >= 0
        assert is_idle(client)
    frames = [(connection, topic, own_keys(columns)) for connection, topic, columns in sends.seen]
    return said, frames, [one for one in sends.others if one != "Ping"], connections


def own_keys(columns: Any) -> Any:
    """Automatic keys are another client's each time."""
    keys = [b"~" if one.startswith(b"~") else bytes(one) for one in columns.keys or ()]
    return {**{name: getattr(columns, name) for name in columns.__struct_fields__}, "keys": keys}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_both_ways_end_alike(ending: Ending, options: dict[str, Any], written: list[bytes]) -> None:
    usual = outcome(ending, options, is_short=False)
    assert written == []
    short = outcome(ending, options, is_short=True)
    assert b"1" in written
    assert short == usual


@pytest.mark.parametrize(
    "ending", ["an end", "a reset", "a wrong checksum", "an end in the answer", "at once"]
)
def test_both_ways_end_alike_without_a_key(ending: str, written: list[bytes]) -> None:
    """What may have been stored is not sent twice."""
    usual = outcome(ENDINGS[ending], {}, is_short=False, auto_key=False)
    short = outcome(ENDINGS[ending], {}, is_short=True, auto_key=False)
    assert written[0] == b"1"
    assert short == usual
    assert (short[0][1] == (SendUncertain, SendUncertain().message)) == (ending != "at once")
    assert len(short[1]) == 3


def test_a_broker_that_does_not_answer(written: list[bytes]) -> None:
    """The time of the call is over, and the connection is kept; the answer that comes too late is not missed."""
    came = threading.Event()

    def late(sends: Sends, peer: Peer, request: SendRequested) -> None:
        came.wait(PATIENCE_S)
        sends.answer(peer, request)

    results = []
    for is_short in (False, True):
        short_way.is_open = is_short
        came.clear()
        sends = Sends(late)
        with sends.server() as server, client_of(server.url, timeout=0.6) as client:
            client.send(TOPIC, b"0")
            began = time.monotonic()
            with pytest.raises(TickwheelError) as raised:
                client.send(TOPIC, b"1")
            assert 0.5 < time.monotonic() - began < PATIENCE_S / 2
            came.set()
            assert client.send(TOPIC, b"2") == SendResult(3)
            assert is_idle(client)
            results.append((type(raised.value), raised.value.message, server.connections, len(sends.seen)))
    assert written == [b"1"]
    assert results[0] == results[1]


# -- what it leaves to the usual way --


@pytest.mark.parametrize("body_bytes", [0, 100, 16_000])
def test_bodies(written: list[bytes], body_bytes: int) -> None:
    sends = Sends()
    with sends.server() as server, client_of(server.url) as client:
        for _ in range(3):
            client.send(TOPIC, b"x" * body_bytes)
        assert [columns.bodies for _, _, columns in sends.seen] == [[b"x" * body_bytes]] * 3
    assert len(written) == 2, "the first one asks for the number of the topic"


USUAL: dict[str, dict[str, Any]] = {
    "priority": {"priority": 3},
    "headers": {"headers": {"a": 1}},
    "ordering key": {"order_key": "o"},
}


@pytest.mark.parametrize("options", USUAL.values(), ids=USUAL)
def test_options_that_it_does_not_know(written: list[bytes], options: dict[str, Any]) -> None:
    sends = Sends()
    with sends.server() as server, client_of(server.url) as client:
        for _ in range(2):
            client.send(TOPIC, b"x", **options)
    assert written == []
    assert len(sends.seen) == 2


BAD: dict[str, tuple[Any, dict[str, Any], type[Exception]]] = {
    "text": ("text", {}, BadArgument),
    "large": (b"x" * 20_000, {}, BodyTooLarge),
    "long key": (b"x", {"key": "k" * 300}, KeyTooLong),
    "empty key": (b"x", {"key": ""}, BadArgument),
    "half a surrogate": (b"x", {"key": "\ud800"}, BadArgument),
    "seconds": (b"x", {"deliver_at": 1_900_000_000}, BadTime),
    "two times": (b"x", {"delay_ms": 1, "delay": timedelta(1)}, BadTime),
    "negative": (b"x", {"delay_ms": -1}, BadTime),
    "misspelt": (b"x", {"delay_s": 1}, TypeError),
}


@pytest.mark.parametrize(("body", "options", "error"), BAD.values(), ids=BAD)
def test_bad_arguments(
    written: list[bytes], body: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    sends, said = Sends(), []
    with sends.server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"x")
        for is_short in (False, True):
            short_way.is_open = is_short
            with pytest.raises(error) as raised:
                client.send(TOPIC, body, **options)
            said.append(str(raised.value))
        with pytest.raises(TypeError, match="body"):
            client.send(TOPIC)  # type: ignore[call-arg]
        with pytest.raises(TickwheelError):
            client.send(["no", "name"], b"x")  # type: ignore[arg-type]
        client.send(topic=TOPIC, body=b"y")
        assert is_idle(client)
    assert said[0] == said[1]
    assert written == []
    assert len(sends.seen) == 2


def sends_usually(client: sync.Client, written: list[bytes]) -> None:
    before = len(written)
    client.send(TOPIC, b"usual")
    assert len(written) == before
    client.ping()


def test_it_is_closed_where_blocking_code_cooperates(
    written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poll:
        """As gevent has one."""

        def __init__(self) -> None:
            self._poll = genuine()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._poll, name)

    genuine = select.poll
    with Sends().server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"first")
        with monkeypatch.context() as patch:
            patch.setattr(select, "poll", Poll)
            sends_usually(client, written)
            patch.delattr(select, "poll")
            sends_usually(client, written)
        client.send(TOPIC, b"short")
    assert written == [b"short"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda session, link: setattr(session, "_look_at", 0.0),
        lambda session, link: setattr(session, "_seen_at", session.waits.now() - 2),
        lambda session, link: session.holdings.setdefault(Renewing()),
    ],
    ids=["time to look", "nothing was read for long", "leases are held"],
)
def test_what_it_does_not_see_to(written: list[bytes], spoil: Callable[[Any, Any], object]) -> None:
    with Sends().server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"first")
        session = session_of(client)
        spoil(session, session.link)
        sends_usually(client, written)
        session.holdings.clear()
        client.send(TOPIC, b"short")
        assert is_idle(client)
    assert written == [b"short"]


class Renewing:
    """Something that is held."""

    def turn(self, now: float) -> float:
        return now + 3_600


def test_through_tls(written: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wire, "is_plain", False)
    with Sends().server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"first")
        sends_usually(client, written)


def test_a_part_of_a_frame_that_came_before(written: list[bytes]) -> None:
    """Its rest is not taken for the answer."""

    def answers(sends: Sends, peer: Peer, request: SendRequested) -> None:
        peer.sock.sendall(send_ok(request.correlation, 2) + PROBE[:9])

    def goes_on(sends: Sends, peer: Peer, request: SendRequested) -> None:
        peer.sock.sendall(PROBE[9:] + send_ok(request.correlation, 3))

    sends = Sends(answers, goes_on)
    with sends.server() as server, client_of(server.url) as client:
        assert [client.send(TOPIC, b"x").id for _ in range(4)] == [1, 2, 3, 4]
        assert server.connections == 1


def test_what_the_usual_way_keeps_is_kept(written: list[bytes]) -> None:
    with Sends().server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"first")
        session = session_of(client)
        link = session.link
        assert link is not None
        before = session.waits.now()
        link.heard_at = 0.0
        client.send(TOPIC, b"short")
        assert written == [b"short"]
        assert link.heard_at >= before
        assert session._seen_at >= before
        assert session._turned_at <= session._seen_at
        assert is_idle(client)


def test_once_in_a_while_the_time_is_looked_at(written: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast sends follow each other."""
    looks: list[float] = []
    genuine = BlockingSession.check_time
    monkeypatch.setattr(BlockingSession, "check_time", lambda self: (looks.append(1), genuine(self))[0])
    with Sends().server() as server, client_of(server.url, timeout=0.4) as client:
        deadline_s = time.monotonic() + 0.5
        while time.monotonic() < deadline_s:
            client.send(TOPIC, b"x")
    assert len(looks) >= 3
    assert len(written) > 20


# -- a full socket --


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The socket takes little at once: how much it took."""
    taken: list[int] = []

    def send(call: Any, fd: int, correlation: int, columns: bytes, key: bytes, body: bytes) -> bool:
        frame = encode_frame(FrameType.SEND, correlation, columns + key + body)
        taken.append(min(len(frame) - 1, (1, 15, 16, 40, 1_000)[len(taken) % 5]))
        call.frame_bytes, call.written_bytes = len(frame), os.write(fd, frame[: taken[-1]])
        return False

    monkeypatch.setattr(_call, "send", send)
    return taken


def test_a_socket_that_takes_a_part(narrow: list[int]) -> None:
    """The rest goes next, before anything else."""
    sends = Sends()
    body = bytes(range(256)) * 60
    with sends.server() as server, client_of(server.url) as client:
        assert [client.send(TOPIC, body).id for _ in range(7)] == list(range(1, 8))
        assert is_idle(client)
        assert server.connections == 1
    assert len(narrow) == 6
    assert [columns.bodies for _, _, columns in sends.seen] == [[body]] * 7


def test_a_socket_that_takes_nothing(written: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(call: Any, *_: Any) -> bool:
        call.frame_bytes = 100
        return False

    sends = Sends()
    monkeypatch.setattr(_call, "send", nothing)
    with sends.server() as server, client_of(server.url, auto_key=False) as client:
        assert [client.send(TOPIC, b"%d" % number).id for number in range(3)] == [1, 2, 3]
        assert is_idle(client)
    assert [columns.bodies for _, _, columns in sends.seen] == [[b"0"], [b"1"], [b"2"]]


def test_a_connection_that_has_ended_before(written: list[bytes]) -> None:
    """It was not written, or not read: with a key it goes again."""
    sends = Sends()
    with sends.server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        server._open[0].shutdown(socket.SHUT_RDWR)
        assert client.send(TOPIC, b"1", key="k").id >= 2
        assert server.connections == 2
        assert is_idle(client)
    assert [columns.bodies for _, _, columns in sends.seen][-1] == [b"1"]


# -- others meanwhile --


def test_another_thread_meanwhile(written: list[bytes]) -> None:
    """It does not wait for the first one's answer."""
    held: list[Callable[[], None]] = []

    def holds(sends: Sends, peer: Peer, request: SendRequested) -> None:
        held.append(lambda: peer.sock.sendall(send_ok(request.correlation, 200)))

    def both(sends: Sends, peer: Peer, request: SendRequested) -> None:
        sends.answer(peer, request)
        held[0]()

    sends = Sends(holds, both)
    with sends.server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        said: list[int] = []
        first = threading.Thread(target=lambda: said.append(client.send(TOPIC, b"1").id))
        first.start()
        until(lambda: held)
        assert client.send(TOPIC, b"2").id == 3
        first.join(PATIENCE_S)
        assert said == [200]
        assert is_idle(client)
        assert server.connections == 1
    assert [columns.bodies for _, _, columns in sends.seen] == [[b"0"], [b"1"], [b"2"]]
    assert written == [b"1"], "the second one was not alone"


def test_the_other_thread_goes_on_reading(written: list[bytes]) -> None:
    """The first one has its answer, and nobody reads for the second one but itself."""
    answers: list[Callable[[], None]] = []

    def holds(sends: Sends, peer: Peer, request: SendRequested) -> None:
        number = len(sends.seen)
        answers.append(lambda: peer.sock.sendall(send_ok(request.correlation, number)))

    with Sends(holds, holds).server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        said: list[int] = []
        threads = []
        for number in (1, 2):
            work = lambda number=number: said.append(client.send(TOPIC, b"%d" % number).id)  # noqa: E731
            threads.append(threading.Thread(target=work))
            threads[-1].start()
            until(lambda number=number: len(answers) == number)
        until(lambda: session_of(client).monitor._sleeping)
        answers[0]()
        threads[0].join(PATIENCE_S)
        assert said == [2]
        answers[1]()
        threads[1].join(PATIENCE_S)
        assert said == [2, 3]
        assert is_idle(client)
    assert written == [b"1"]


def test_another_thread_rings(written: list[bytes]) -> None:
    """The usual way waits on, and sees to what there is to do."""
    held: list[Callable[[], None]] = []

    def holds(sends: Sends, peer: Peer, request: SendRequested) -> None:
        held.append(lambda: sends.answer(peer, request))

    with Sends(holds).server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        said: list[int] = []
        first = threading.Thread(target=lambda: said.append(client.send(TOPIC, b"1").id))
        first.start()
        until(lambda: held)
        session = session_of(client)
        session.monitor.hold(session.monitor.wake_reader)
        until(lambda: not session._is_rung)
        held[0]()
        first.join(PATIENCE_S)
        assert said == [2]
        assert is_idle(client)
    assert written == [b"1"]


def test_closed_by_another_thread(written: list[bytes]) -> None:
    came = threading.Event()
    with Sends(lambda *_: came.set()).server() as server:
        client = client_of(server.url).__enter__()
        client.send(TOPIC, b"0")
        said: list[BaseException] = []

        def sends() -> None:
            try:
                client.send(TOPIC, b"1")
            except TickwheelError as error:
                said.append(error)

        first = threading.Thread(target=sends)
        first.start()
        assert came.wait(PATIENCE_S)
        client.close()
        first.join(PATIENCE_S)
        assert [type(one) for one in said] == [ClientClosed]
    assert written == [b"1"]


def test_a_handler_of_a_signal_calls_meanwhile(written: list[bytes]) -> None:
    """It reads in the place of the send that it came in, also that one's answer."""
    held: list[Callable[[], None]] = []

    def holds(sends: Sends, peer: Peer, request: SendRequested) -> None:
        held.append(lambda: peer.sock.sendall(send_ok(request.correlation, 200)))

    def both(sends: Sends, peer: Peer, request: SendRequested) -> None:
        held[0]()
        sends.answer(peer, request)

    said: list[int] = []
    with Sends(holds, both).server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        before = signal.signal(signal.SIGALRM, lambda *_: said.append(client.send(TOPIC, b"2").id))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert client.send(TOPIC, b"1").id == 200
        finally:
            signal.signal(signal.SIGALRM, before)
        assert said == [3]
        assert is_idle(client)
        assert server.connections == 1
    assert written == [b"1"]


# -- Ctrl-C --


@pytest.fixture
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.usefixtures("default_handler")
def test_interrupted_while_it_waits(written: list[bytes]) -> None:
    """The message may be stored; its answer is taken when it comes, and the connection is kept."""
    held: list[Callable[[], None]] = []

    def holds(sends: Sends, peer: Peer, request: SendRequested) -> None:
        held.append(lambda: sends.answer(peer, request))

    sends = Sends(holds)
    with sends.server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.send(TOPIC, b"1")
        timer.join()
        assert not session_of(client).monitor.lock._is_owned()
        held[0]()
        assert client.send(TOPIC, b"2").id == 3
        assert is_idle(client)
        assert server.connections == 1
    assert [columns.bodies for _, _, columns in sends.seen] == [[b"0"], [b"1"], [b"2"]]


PLACES: list[tuple[Any, str]] = [
    (_call, "begin"),
    (_call, "send"),
    (_call, "wait"),
    (_call, "answer"),
    (_call, "taken"),
    (short_way, "single_send_columns"),
    (short_way, "encode_frame"),
    (ShortWaySession, "_lone"),
    (ShortWaySession, "_is_answered"),
    (ShortWaySession, "_is_unread"),
    (ShortWaySession, "_finish"),
    (ShortWaySession, "_hand_over_lone"),
    (ShortWaySession, "_take_in"),
    (ShortWaySession, "_settle"),
]


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("is_narrow", [False, True], ids=["", "narrow"])
@pytest.mark.parametrize("ending", ["at once", "a probe first", "two pieces"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("of", "name"), PLACES, ids=[name for _, name in PLACES])
def test_interrupted_anywhere(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    of: Any,
    name: str,
    after: bool,
    ending: str,
    is_narrow: bool,
) -> None:
    """Ctrl-C comes at one step, or does not come because there is no such step: no message is lost or doubled, and the
    connection goes on."""
    if is_narrow:
        request.getfixturevalue("narrow")
    genuine, armed = getattr(of, name), [False]

    def trapped(*arguments: Any, **named: Any) -> Any:
        is_now = armed[0] and threading.current_thread() is threading.main_thread()
        if is_now:
            armed[0] = False
        if is_now and not after:
            signal.raise_signal(signal.SIGINT)
        result = genuine(*arguments, **named)
        if is_now and after:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(of, name, trapped)
    sends, body = Sends(ENDINGS[ending]), b"x" * 12_000
    with sends.server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"first")
        armed[0] = True
        with suppress(KeyboardInterrupt):
            assert client.send(TOPIC, b"1" + body).id == 2
        armed[0] = False
        assert not session_of(client).monitor.lock._is_owned()
        assert not session_of(client).monitor.is_read
        assert client.send(TOPIC, b"2" + body).id == len(sends.seen)
        assert client.send(TOPIC, b"3" + body).id == len(sends.seen)
        client.ping()
        assert is_idle(client)
        assert server.connections == 1, "it costs no connection"
    bodies = [columns.bodies[0][:1] for _, _, columns in sends.seen]
    assert bodies in ([b"f", b"1", b"2", b"3"], [b"f", b"2", b"3"])
