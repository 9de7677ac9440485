"""A blocking client that an event loop carries: its descriptor is watched, and nothing waits."""

from __future__ import annotations

import gc
import select
from pathlib import Path

import pytest

import tickwheel
from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S, Peer, Server, until
from tickwheel import sync
from tickwheel.blocking.session import BlockingSession
from tickwheel.client.calls import RequestCall
from tickwheel.errors import ClientClosed, NotConnected
from tickwheel.protocol.bodies.requests import Ping


def serves(peer: Peer) -> None:
    peer.greet()
    peer.answer_pings()


def turn_when_readable(session: BlockingSession) -> None:
    """What a loop does."""
    ready, _, _ = select.select([session.fileno()], [], [], PATIENCE_S)
    assert ready
    session.turn()


def test_an_answer_is_taken_when_the_descriptor_is_readable() -> None:
    with Server(serves) as server, sync.Client(server.url, token="") as client:
        session = client.session
        call = RequestCall(Ping(), session.deadline())
        session.change(lambda: session.submit(call))
        while not call.done.is_set():
            turn_when_readable(session)
        assert call.error is None


def test_a_turn_without_anything_to_do_does_not_wait() -> None:
    with Server(serves) as server, sync.Client(server.url, token="") as client:
        for _ in range(3):
            client.session.turn()
        assert client.ping() >= 0


def test_the_next_connection_is_opened_by_turns() -> None:
    def ends(peer: Peer) -> None:
        peer.greet()
        peer.sock.close()

    with Server(ends, serves) as server, sync.Client(server.url, token="") as client:
        session = client.session
        turn_when_readable(session)
        until(lambda: session.turn() or (server.connections == 2 and client.is_connected))
        assert session.fileno() >= 0


def test_each_node_is_tried_once_only() -> None:
    client = sync.Client("tickwheel://127.0.0.1:1", token="", connect_timeout=PATIENCE_S)
    with pytest.raises(NotConnected, match="refused"):
        client.try_to_open()
    with Server(serves) as server:
        nodes = ["tickwheel://127.0.0.1:1", server.url]
        opened = sync.Client(nodes, token="").try_to_open()
        assert opened.ping() >= 0
        opened.close()


class Owner:
    """What a client belongs to."""


def test_a_client_ends_with_its_owner(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker:
        client, owner = sync.Client(broker.url, token="").try_to_open(), Owner()
        client.close_with(owner)
        client.ping()
        del owner
        gc.collect()
        with pytest.raises(ClientClosed):
            client.ping()
