"""The short way of a send, beside the usual one: whatever the broker does, they end alike, with as many frames."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S, Peer
from tests.unit.tickwheel.blocking.short_way_broker import (
    ENDINGS,
    PROBE,
    TOPIC,
    Ending,
    Sends,
    client_of,
    is_idle,
    send_ok,
    session_of,
)
from tickwheel import SendResult, sync
from tickwheel.blocking import short_way
from tickwheel.blocking.session import BlockingSession
from tickwheel.blocking.wire import Wire
from tickwheel.errors import (
    BadArgument,
    BadTime,
    BodyTooLarge,
    KeyTooLong,
    SendUncertain,
    TickwheelError,
)
from tickwheel.protocol.machine import SendRequested
from tickwheel_native import call as _call

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
        assert server.connections == 1
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
