"""The connection of a blocking client: nodes, reconnecting, silence, ends in the middle of a frame, threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S, Peer, Server, pong, until
from tickwheel import sync
from tickwheel.blocking import session as _session
from tickwheel.errors import ClientClosed, NotConnected, NotOwner, RequestTimeout


def serves(peer: Peer) -> None:
    peer.greet()
    peer.answer_pings()


def client(*servers: Server, **options: float) -> sync.Client:
    return sync.Client([one.url for one in servers], token="", **options)  # type: ignore[arg-type]


def test_a_connection_that_ends_in_the_middle_of_a_frame() -> None:
    def breaks(peer: Peer) -> None:
        peer.greet()
        request = peer.next()
        peer.sock.sendall(pong(request.correlation)[:-3])

    with Server(breaks, serves) as server, client(server) as one:
        assert one.ping() >= 0
        assert server.connections == 2


def test_bytes_that_come_one_by_one() -> None:
    def dribbles(peer: Peer) -> None:
        peer.greet()
        while (request := peer.next()) is not None:
            for byte in pong(request.correlation):
                peer.sock.sendall(bytes([byte]))

    with Server(dribbles) as server, client(server) as one:
        one.ping()
        one.ping()
        assert server.connections == 1


def test_a_connection_that_ended_while_no_thread_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seen before anything is written, so that even what must not be repeated goes over the next one."""
    ended = threading.Event()

    def ends(peer: Peer) -> None:
        peer.greet()
        assert peer.next() is not None
        peer.sock.sendall(pong(2))
        peer.sock.close()
        ended.set()

    monkeypatch.setattr(_session, "_STALE_S", 0.0)
    seen: list[object] = []

    def counts(peer: Peer) -> None:
        peer.greet()
        while (request := peer.next()) is not None:
            seen.append(request)
            peer.sock.sendall(pong(request.correlation))

    with Server(ends, counts) as server, client(server) as one:
        one.ping()
        assert ended.wait(PATIENCE_S)
        one.ping()
        assert len(seen) == 1
        assert server.connections == 2


def test_a_node_that_names_another() -> None:
    with Server(serves) as other:

        def refers(peer: Peer) -> None:
            peer.refuse(NotOwner.naming(other.url))
            peer.next()

        with Server(refers) as server, client(server, other) as one:
            one.ping()
            assert (server.connections, other.connections) == (1, 1)


def test_a_node_that_says_nothing() -> None:
    def is_silent(peer: Peer) -> None:
        while peer.next() is not None:
            pass

    with (
        Server(is_silent) as server,
        Server(serves) as other,
        client(server, other, connect_timeout=4.0) as one,
    ):
        one.ping()
        assert (server.connections, other.connections) == (1, 1)


def test_a_broker_that_does_not_answer() -> None:
    def greets_only(peer: Peer) -> None:
        peer.greet()
        while peer.next() is not None:
            pass

    with Server(greets_only) as server, client(server, timeout=0.1) as one:
        with pytest.raises(RequestTimeout):
            one.ping()
        with pytest.raises(RequestTimeout):
            one.ping()
        assert server.connections == 1, "the connection is not silent yet"


def test_a_broker_that_does_not_read() -> None:
    """What is unwritten is bounded: a send waits for room, and has its time."""
    reads = threading.Event()

    def reads_late(peer: Peer) -> None:
        peer.greet()
        reads.wait(PATIENCE_S)

    with (
        Server(reads_late) as server,
        client(server, timeout=0.2, max_pending_bytes=100_000) as one,
    ):
        for _ in range(8):
            with pytest.raises((RequestTimeout, NotConnected)):
                one.send("full", b"x" * 10_000)
        assert one._running._budget.taken <= 100_000
        reads.set()


def test_silence_while_no_thread_waited_is_not_the_brokers() -> None:
    with Server(serves) as server, client(server, keepalive=0.2) as one:
        one.ping()
        link = one._running.link
        assert link is not None
        link.heard_at -= 3_600
        link.pinged_at -= 3_600
        one._running._look_at -= 3_600
        one.ping()
        assert server.connections == 1


def test_a_handler_that_closes_while_others_call() -> None:
    def answers_some(peer: Peer) -> None:
        peer.greet()
        while peer.next() is not None:
            pass

    said: list[str] = []

    def calls(one: sync.Client) -> None:
        try:
            one.ping()
        except (ClientClosed, NotConnected) as error:
            said.append(error.code)

    with Server(answers_some) as server:
        one = client(server).__enter__()
        threads = [threading.Thread(target=calls, args=(one,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        until(lambda: len(one._running._live) == 20)
        one.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert said == ["client_closed"] * 20


def test_threads_share_answers_that_come_in_any_order() -> None:
    def reverses(peer: Peer) -> None:
        peer.greet()
        requests = [peer.next() for _ in range(30)]
        for request in reversed(requests):
            peer.sock.sendall(pong(request.correlation))
        peer.next()

    with Server(reverses) as server, client(server) as one:
        done: list[float] = []
        threads = [threading.Thread(target=lambda: done.append(one.ping())) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(done) == 30


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Server(serves) as server:
        before, threads = descriptors(), threading.active_count()
        for _ in range(5):
            with client(server) as one:
                one.ping()
        until(lambda: (descriptors(), threading.active_count()) <= (before, threads))
        url = server.url
    closed = sync.Client(url, token="", connect_timeout=0.2)
    with pytest.raises(NotConnected):
        closed.__enter__()
    until(lambda: descriptors() <= before)
