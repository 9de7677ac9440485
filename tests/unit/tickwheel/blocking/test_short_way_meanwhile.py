"""What comes between a send on the short way and its answer: other threads, handlers of signals, Ctrl-C."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S, Peer, until
from tests.unit.tickwheel.blocking.short_way_broker import (
    ENDINGS,
    TOPIC,
    Sends,
    client_of,
    is_idle,
    send_ok,
    session_of,
)
from tickwheel.blocking import short_way
from tickwheel.blocking.monitor import _LONGEST_SLEEP_S
from tickwheel.blocking.short_way import ShortWaySession
from tickwheel.errors import (
    ClientClosed,
    TickwheelError,
)
from tickwheel.protocol.machine import SendRequested
from tickwheel_native import call as _call

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
        threads[1].join(_LONGEST_SLEEP_S - 1.0)
        assert not threads[1].is_alive(), "it woke up by itself"
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


def test_closed_when_there_was_something_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the connection's descriptor is another's by now: nothing is read from that."""
    pairs: list[socket.socket] = []
    with Sends().server() as server:
        client = client_of(server.url).__enter__()
        client.send(TOPIC, b"0")
        descriptor = session_of(client).fileno()

        def wait(*_: int) -> bool:
            closing = threading.Thread(target=client.close)
            closing.start()
            closing.join(PATIENCE_S)
            while descriptor not in [one.fileno() for one in pairs]:
                pairs.extend(socket.socketpair())
                pairs[-1].sendall(b"1")
                pairs[-2].sendall(b"2")
            return True

        monkeypatch.setattr(_call, "wait", wait)
        with pytest.raises(ClientClosed):
            client.send(TOPIC, b"1")
    for one in pairs:
        one.setblocking(False)
        assert len(one.recv(10)) == 1
        one.close()


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


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("is_written", [False, True])
def test_interrupted_and_not_sent_again(monkeypatch: pytest.MonkeyPatch, is_written: bool) -> None:
    """What was not written stays so; what was, is not repeated when the connection breaks, though it has a key."""
    name = "wait" if is_written else "send"

    def interrupts(*_: Any) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    sends = Sends(lambda *_: None) if is_written else Sends()
    with sends.server() as server, client_of(server.url) as client:
        client.send(TOPIC, b"0")
        monkeypatch.setattr(_call, name, interrupts)
        with pytest.raises(KeyboardInterrupt):
            client.send(TOPIC, b"1", key="k")
        if is_written:
            until(lambda: len(sends.seen) == 2)
            server._open[0].shutdown(socket.SHUT_RDWR)
        client.send(TOPIC, b"2")
        client.ping()
        assert is_idle(client)
    bodies = [columns.bodies[0] for _, _, columns in sends.seen]
    assert bodies == ([b"0", b"1", b"2"] if is_written else [b"0", b"2"])


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
