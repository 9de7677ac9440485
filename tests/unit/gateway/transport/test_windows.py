"""Flow control, and what a connection holds: both are bounded, and nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from h2.settings import SettingCodes

from tests.unit.gateway.transport.peer import Peer, Service, head, serving
from tickwheel_gateway.transport.call import Call, Method
from tickwheel_gateway.transport.framing import framed
from tickwheel_gateway.transport.limits import Limits

pytestmark = pytest.mark.usefixtures("stack")

_KIB = 1 << 10


async def test_windows_are_wide() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        await peer.call(b"x")
        settings = peer.h2.remote_settings
        assert settings.initial_window_size == 1 << 20
        assert peer.h2.outbound_flow_control_window >= (16 << 20) - 100
        assert settings.max_concurrent_streams == 4096
        assert settings.max_header_list_size == 16 << 10
        assert settings[SettingCodes.ENABLE_PUSH] == 0


async def put_all(peer: Peer, stream_id: int, body: bytes) -> None:
    """More than the windows take at once."""
    while body:
        await peer.until(lambda: peer.h2.local_flow_control_window(stream_id) > 0)
        size = min(len(body), peer.h2.local_flow_control_window(stream_id), peer.h2.max_outbound_frame_size)
        peer.h2.send_data(stream_id, body[:size], end_stream=size == len(body))
        body = body[size:]
        await peer.flush()


async def test_messages_larger_than_all_windows() -> None:
    limits = Limits(stream_window_bytes=64 * _KIB, connection_window_bytes=128 * _KIB)
    async with serving(Service(), limits) as (_, connect):
        peer = connect(window=20_000)
        for size in (300_000, 500_000):
            stream_id = peer.ask(end=False)
            await put_all(peer, stream_id, framed(bytes(size)))
            assert (await peer.answer(stream_id)).messages == [bytes(size)]


async def test_a_small_window_is_filled_exactly_and_waited_for() -> None:
    service = Service()
    async with serving(service) as (_, connect):
        peer = connect(gives_windows=False, window=10)
        stream_id = peer.ask(b"\x02" + bytes(9), headers=head("/t/Times"))
        await peer.until(lambda: len(peer.answers[stream_id].body) == 10)
        await trio.testing.wait_all_tasks_blocked()
        assert service.seen[0].written == 0
        peer.h2.increment_flow_control_window(5, stream_id)
        await peer.until(lambda: len(peer.answers[stream_id].body) == 15)
        await trio.testing.wait_all_tasks_blocked()
        assert service.seen[0].written == 1
        peer.h2.increment_flow_control_window(100, stream_id)
        assert len((await peer.answer(stream_id)).messages) == 2
        assert service.seen[0].written == 2


async def test_a_window_widened_by_settings() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect(gives_windows=False, window=0)
        stream_id = peer.ask(b"hello")
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        assert (await peer.answer(stream_id)).messages == [b"hello"]


async def test_one_window_for_many_streams_is_shared() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect(gives_windows=False, window=1 << 20)
        await peer.call(b"x")
        peer.h2.increment_flow_control_window(6)
        asked = [peer.ask(bytes(60_000)) for _ in range(4)]

        def received() -> int:
            return sum(len(peer.answers[each].body) for each in asked)

        for given in (65_535, 131_070, 196_605, 4 * 60_005):
            await peer.until(lambda given=given: received() == given)  # type: ignore[misc]
            peer.h2.increment_flow_control_window(65_535)
        for each in asked:
            await peer.answer(each)
        assert [len(peer.answers[each].messages[0]) for each in asked] == [60_000] * 4


async def test_what_was_not_written_can_be_given_back() -> None:
    """A reset in the middle: the handler knows how many went."""
    told: list[int] = []

    async def many(call: Call) -> None:
        try:
            await call.stream(*[bytes(995)] * 10)
        finally:
            told.append(call.written)

    service = Service()
    service.methods["/t/Many"] = Method(many)
    async with serving(service) as (_, connect):
        peer = connect(gives_windows=False, window=3500)
        stream_id = peer.ask(b"x", headers=head("/t/Many"))
        await peer.until(lambda: len(peer.answers[stream_id].body) == 3500)
        peer.h2.reset_stream(stream_id)
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [3]


async def test_a_handler_that_gives_up_takes_back_what_was_not_begun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def impatient(call: Call) -> None:
        with trio.move_on_after(1):
            await call.stream(b"a" * 95, b"b" * 95, b"c" * 95)
        await call.stream(b"d")

    service = Service()
    service.methods["/t/Impatient"] = Method(impatient)
    async with serving(service) as (_, connect):
        peer = connect(gives_windows=False, window=150)
        stream_id = peer.ask(b"x", headers=head("/t/Impatient"))
        await peer.until(lambda: len(peer.answers[stream_id].body) == 150)
        await trio.sleep(2)
        peer.h2.increment_flow_control_window(1000, stream_id)
        answer = await peer.answer(stream_id)
        assert [message[:1] for message in answer.messages] == [b"a", b"b", b"d"]


async def test_the_deadline_within_a_message_resets(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (server, connect):
        peer = connect(gives_windows=False, window=50)
        stream_id = peer.ask(bytes(100), headers=head(grpc_timeout="2S"))
        answer = await peer.answer(stream_id)
        assert answer.reset == 8
        assert server.tally.ended == {4: 1}


async def test_the_deadline_before_a_message_is_a_status(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (_, connect):
        peer = connect(gives_windows=False, window=0)
        answer = await peer.call(bytes(100), headers=head(grpc_timeout="2S"))
        assert answer.status == 4
        assert answer.body == b""


async def test_reading_stops_with_much_in_work() -> None:
    service = Service()
    async with serving(service, Limits(pending_bytes=10_000)) as (_, connect):
        peer = connect()
        await peer.call(b"x")
        asked = []
        for _ in range(5):
            asked.append(peer.ask(bytes(4_000), headers=head("/t/Gate")))
            await peer.flush()
            await trio.testing.wait_all_tasks_blocked()
        assert len(service.seen) == 1 + 3
        service.go.set()
        for stream_id in asked:
            assert (await peer.answer(stream_id)).status == 0


async def test_large_requests_that_do_not_become_whole_are_bounded() -> None:
    async with serving(Service(), Limits(pending_bytes=10_000)) as (_, connect):
        peer = connect()
        asked = []
        for _ in range(5):
            stream_id = peer.ask(end=False)
            peer.put(stream_id, framed(bytes(4_000))[:-1])
            asked.append(stream_id)
        await peer.until(lambda: peer.answers[asked[4]].is_over)
        assert [peer.answers[each].headers.get("grpc-status") for each in asked] == [
            None,
            None,
            "8",
            "8",
            "8",
        ]
        for stream_id in asked[:2]:
            peer.put(stream_id, b"\0", end=True)
            assert (await peer.answer(stream_id)).status == 0


async def test_answers_that_nobody_takes_are_bounded() -> None:
    async with serving(Service(), Limits(pending_bytes=10_000)) as (_, connect):
        peer = connect(gives_windows=False, window=0)
        for _ in range(3):
            peer.ask(bytes(4_000))
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert (await peer.call(b"x")).status == 8


async def test_a_handler_that_is_behind_holds_its_client_up() -> None:
    service = Service()
    limits = Limits(stream_window_bytes=64 * _KIB)
    async with serving(service, limits) as (_, connect):
        peer = connect()
        await peer.call(b"x")
        stream_id = peer.ask(end=False, headers=head("/t/Hold"))
        for _ in range(4):
            peer.put(stream_id, framed(bytes(16_000)))
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        peer.h2.ping(b"12345678")
        await peer.until(lambda: bool(peer.pings))
        assert peer.h2.local_flow_control_window(stream_id) < 2_000
        service.go.set()
        await peer.until(lambda: peer.h2.local_flow_control_window(stream_id) > 60_000)
        peer.h2.end_stream(stream_id)
        assert (await peer.answer(stream_id)).messages == [b"\0"] * 4


@pytest.mark.parametrize("way", ["reset", "end"])
async def test_nothing_is_held_after_the_end(way: str) -> None:
    service = Service()
    async with serving(service) as (server, connect):
        peer = connect()
        asked = [peer.ask(bytes(1000), headers=head("/t/Gate")) for _ in range(3)]
        asked.append(peer.ask(end=False))
        peer.put(asked[3], b"\0\0\0\1\0abc")
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = server._connections
        held: Any = connection
        assert held._work_bytes == 3000
        assert held._engine.partial_bytes == 8
        if way == "reset":
            for stream_id in asked:
                peer.h2.reset_stream(stream_id)
            await peer.flush()
        else:
            service.go.set()
            peer.put(asked[3], b"", end=True)
            for stream_id in asked:
                await peer.answer(stream_id)
        await trio.testing.wait_all_tasks_blocked()
        assert (held._work_bytes, held._engine.partial_bytes, held._calls) == (0, 0, {})


async def test_much_data_then_a_reset_then_others() -> None:
    """All in one read: the window of a stream that is gone is not widened."""
    async with serving(Service(), Limits(stream_window_bytes=64 * _KIB)) as (_, connect):
        peer = connect()
        await peer.call(b"x")
        stream_id = peer.ask(end=False)
        peer.put(stream_id, framed(bytes(60_000))[:40_000])
        peer.h2.reset_stream(stream_id)
        asked = [peer.ask(b"x") for _ in range(30)]
        for each in asked:
            assert (await peer.answer(each)).status == 0
