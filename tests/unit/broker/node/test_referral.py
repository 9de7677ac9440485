"""A node that does not serve: whoever says HELLO is told which one does, and nothing else is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.support.native.driver import NOW_MS
from tickwheel.protocol.bodies.requests import encode_body, hello
from tickwheel.protocol.errors import ServerError, TickwheelError, error_from_wire, to_wire
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.machine import ClientMachine, Refused
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.net.listeners import Listener, open_listeners
from tickwheel_broker.node import referral
from tickwheel_broker.node.referral import Referral
from tickwheel_broker.security import tokens
from tickwheel_broker.security.access import Access

PATIENCE_S = 60.0
OWNER = "tickwheel://there:7411"


class Referring:
    """A node that refers, on a port of its own."""

    def __init__(self, listener: Listener, counters: Counters) -> None:
        self.listener, self.counters = listener, counters
        self.owner_url = OWNER
        host, port = listener.url.removeprefix("tickwheel://").rsplit(":", 1)
        self._address = host, int(port)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self._address)

    async def ask(self, said: bytes) -> TickwheelError:
        """The error that it says before it closes."""
        machine, answers = ClientMachine(), []
        async with await self.connect() as stream:
            await stream.send_all(said)
            async for data in stream:
                answers.extend(machine.receive_data(data))
        (answer,) = answers
        assert isinstance(answer, Refused)
        return answer.error


@asynccontextmanager
async def referring(access: Access | None = None, timeout_s: float = PATIENCE_S) -> AsyncIterator[Referring]:
    clock, counters = TrioClock(NOW_MS), Counters()
    (listener,) = await open_listeners(Settings(listen_host="127.0.0.1", listen_port=0))
    node = Referring(listener, counters)
    server = Referral(lambda: node.owner_url, access or Access(clock), counters, timeout_s)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, [listener])
            yield node
            nursery.cancel_scope.cancel()
    listener.close()


def hello_frame(token: str = "") -> bytes:
    return ClientMachine().hello("test", token)


async def test_a_hello_is_told_who_serves() -> None:
    async with referring() as node:
        error = await node.ask(hello_frame())
        assert isinstance(error, referral.NotOwner)
        assert (error.code, error.retryable, error.url) == ("not_owner", True, OWNER)
        assert node.counters.refusals == {"not_owner": 1}


async def test_the_answer_is_that_of_the_moment_and_may_be_that_it_is_not_known() -> None:
    async with referring() as node:
        node.owner_url = ""
        error = await node.ask(hello_frame())
        assert isinstance(error, referral.NotOwner)
        assert error.url == ""
        node.owner_url = "tickwheel://elsewhere:1"
        error = await node.ask(hello_frame())
        assert isinstance(error, referral.NotOwner)
        assert error.url == "tickwheel://elsewhere:1"


def test_older_clients_know_that_they_may_try_again() -> None:
    """Those do not know the code, and go by ``retryable``."""
    wire = to_wire(referral.NotOwner.naming(OWNER))
    assert wire["details"] == {"url": OWNER}
    old = error_from_wire(wire | {"code": "code_of_the_future"})
    assert type(old) is ServerError
    assert old.retryable


async def test_a_hello_may_come_in_pieces_beside_others() -> None:
    async with referring() as node:
        frame = hello_frame()
        async with await node.connect() as slow:
            for one in frame[:-1]:
                await slow.send_all(bytes((one,)))
            assert (await node.ask(hello_frame())).code == "not_owner"
            await slow.send_all(frame[-1:])
            assert await slow.receive_some()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" + bytes(64), "frame_too_large"),
        (encode_frame(FrameType.PING, 1, b""), "bad_handshake"),
        (encode_frame(FrameType.HELLO, 1, encode_body(hello("x", ""))).replace(b"\x01", b"\x02"), "bad_crc"),
    ],
)
async def test_what_is_no_hello_is_refused_as_by_a_broker(said: bytes, code: str) -> None:
    async with referring() as node:
        assert (await node.ask(said)).code == code


async def test_who_may_not_log_in_is_not_told_where_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with tokens.changing(path) as all_tokens:
        token_of_someone, text = tokens.new_token("someone", ["publish:*"], NOW_MS)
        all_tokens[token_of_someone.id] = token_of_someone
    async with referring(Access(TrioClock(NOW_MS), path)) as node:
        assert (await node.ask(hello_frame(text))).code == "not_owner"
        for token, code in (("", "login_required"), ("twk_wrong", "bad_token")):
            error = await node.ask(hello_frame(token))
            assert (error.code, dict(error.details)) == (code, {})


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with referring(timeout_s=0.05) as node, await node.connect() as stream:
        assert await stream.receive_some() == b""


async def test_more_than_it_can_answer_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referral, "MAX_CONNECTIONS", 1)
    async with referring() as node, await node.connect() as first:
        await first.send_all(hello_frame()[:1])
        async with await node.connect() as second:
            assert await second.receive_some() == b""
        await first.send_all(hello_frame()[1:])
        assert await first.receive_some()


async def test_the_listeners_stay_open_for_what_serves_next() -> None:
    (listener,) = await open_listeners(Settings(listen_host="127.0.0.1", listen_port=0))
    server = Referral(lambda: OWNER, Access(TrioClock(NOW_MS)), Counters(), PATIENCE_S)
    with trio.move_on_after(0):
        await server.run([listener])
    async with await Referring(listener, Counters()).connect():
        (await listener.accept()).close()
    listener.close()
