"""How connections end: idle, by the client, and when the server stops."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hyperframe.frame import GoAwayFrame

from tests.unit.gateway.transport.peer import Service, head, serving
from tickwheel_gateway.transport.call import Call, Method
from tickwheel_gateway.transport.engine import ANY_STREAM
from tickwheel_gateway.transport.limits import Limits

pytestmark = pytest.mark.usefixtures("stack")


async def test_without_streams_for_two_minutes(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        await peer.flush()
        await trio.sleep(100)
        await peer.call(b"x")
        began_at = trio.current_time()
        await trio.sleep(100)
        await peer.until_end()
        assert peer.goaways == [(0, 1)]
        assert 120 <= trio.current_time() - began_at < 123


async def test_a_stream_keeps_a_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        stream_id = peer.ask(b"x", end=False, headers=head("/t/Chat"))
        await peer.flush()
        await trio.sleep(1_000)
        peer.h2.end_stream(stream_id)
        assert (await peer.answer(stream_id)).status == 0


async def test_a_connection_that_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (server, connect):
        peer = connect()
        assert await peer.stream.receive_some(100) == b""
        assert 9 < trio.current_time() < 12
        assert server.tally.failed_handshakes == 1


async def test_a_connection_that_is_http_1() -> None:
    async with serving(Service()) as (server, connect):
        peer = connect()
        await peer.stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with trio.fail_after(60):
            while await peer.stream.receive_some(10_000):
                pass
            await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.tally.connections == 0


async def test_the_client_leaves_but_wants_its_answers() -> None:
    service = Service()
    async with serving(service) as (_, connect):
        peer = connect()
        stream_id = peer.ask(b"x", headers=head("/t/Gate"))
        await peer.send(GoAwayFrame(0, 0))
        await service.began.wait()
        service.go.set()
        assert (await peer.answer(stream_id)).messages == [b"x"]
        await peer.until_end()


async def test_stop_finishes_what_runs(autojump_clock: trio.testing.MockClock) -> None:
    service = Service()
    async with serving(service) as (server, connect):
        peer = connect()
        peer.answers_pings = False
        stream_id = peer.ask(b"x", headers=head("/t/Gate"))
        await peer.flush()
        await service.began.wait()
        server.stop()
        await peer.until(lambda: len(peer.goaways) == 1)
        assert peer.goaways == [(0, ANY_STREAM)]
        late = peer.ask(b"just in time")
        assert (await peer.answer(late)).messages == [b"just in time"]
        await peer.until(lambda: len(peer.goaways) == 2)
        assert peer.goaways[1] == (0, late)
        too_late = peer.ask(b"too late")
        assert (await peer.answer(too_late)).reset == 7
        service.go.set()
        assert (await peer.answer(stream_id)).messages == [b"x"]
        await peer.until_end()


async def test_stop_has_an_end(autojump_clock: trio.testing.MockClock) -> None:
    service = Service()
    async with serving(service, Limits(stop_s=20)) as (server, connect):
        peer = connect()
        stream_id = peer.ask(b"x", headers=head("/t/Wait"))
        await peer.flush()
        await service.began.wait()
        server.stop()
        answer = await peer.answer(stream_id)
        assert answer.status == 14
        assert 20 <= trio.current_time() < 23
        assert service.cancelled
        await peer.until_end()


async def test_handlers_are_told_of_the_stop(autojump_clock: trio.testing.MockClock) -> None:
    service = Service()
    async with serving(service) as (server, connect):

        async def telemetry(call: Call) -> None:
            await call.stream(b"settings")
            await server.stopping.wait()

        service.methods["/t/Telemetry"] = Method(telemetry, takes_stream=True)
        peer = connect()
        stream_id = peer.ask(b"x", end=False, headers=head("/t/Telemetry"))
        await peer.until(lambda: peer.answers[stream_id].messages == [b"settings"])
        server.stop()
        assert (await peer.answer(stream_id)).status == 0
        await peer.until_end()
        assert trio.current_time() == 0  # the client showed that it knows


@pytest.mark.parametrize("is_idle", [True, False])
async def test_serve_returns(is_idle: bool, autojump_clock: trio.testing.MockClock) -> None:
    service = Service()
    async with serving(service) as (server, connect):
        if not is_idle:
            peer = connect()
            await peer.call(b"x")
        server.stop()
        with trio.fail_after(60):
            while server.tally.connections:
                await trio.sleep(1)
        assert server.stopping.is_set()


async def test_a_handler_that_cleans_up_slowly_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    given_back = []

    async def careful(call: Call) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            given_back.append(call)

    service = Service()
    service.methods["/t/Careful"] = Method(careful)
    async with serving(service) as (server, connect):
        peer = connect()
        peer.ask(b"x", headers=head("/t/Careful"))
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.aclose()
        await trio.sleep(10)
        assert len(given_back) == 1
        assert server.tally.connections == 0


async def test_stop_while_a_connection_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (server, connect):
        peer = connect()
        await peer.call(b"x")
        await peer.flush()
        await peer.stream.send_all(b"\0\0\1\0\0\0\0\0\0x")  # DATA of no stream
        await peer.until_end()
        server.stop()
        await trio.sleep(5)
        assert server.tally.connections == 0
