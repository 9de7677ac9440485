"""Floods end in GOAWAY ENHANCE_YOUR_CALM, are counted, and leave nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import h2.connection
import pytest
import trio
import trio.testing
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.transport.peer import Peer, Service, head, serving
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.with_h2.frames import PREFACE

pytestmark = pytest.mark.usefixtures("stack")

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, CALM = 1, 3, 11


async def rapid_reset(peer: Peer) -> None:
    for _ in range(300):
        stream_id = peer.ask(b"x", headers=head("/t/Wait"))
        peer.h2.reset_stream(stream_id)
    await peer.flush()


async def resets_made_by_the_server(peer: Peer) -> None:
    for _ in range(300):
        stream_id = peer.ask(b"x", headers=head("/t/Wait"))
        await peer.send(WindowUpdateFrame(stream_id, 2**31 - 1))


async def malformed_trailers(peer: Peer) -> None:
    for _ in range(300):
        stream_id = peer.ask(b"x", headers=head("/t/Wait"), end=False)
        trailers = peer.h2.encoder.encode([("Upper", "x")])
        await peer.send(HeadersFrame(stream_id, trailers, flags=["END_HEADERS", "END_STREAM"]))


#: Mistakes in a stream. For the first of them h2 and newer versions of nghttp2 end the connection.
MISTAKES = (resets_made_by_the_server, malformed_trailers)


async def continuations(peer: Peer) -> None:
    """A header in pieces: each is a value of 1,000 bytes."""
    part = (b"\0\1a\x7f\xe9\6" + b"x" * 1_000) * 16
    await peer.send(
        HeadersFrame(1, part[:16_000]), ContinuationFrame(1, part[16_000:]), *[ContinuationFrame(1, part)] * 8
    )


async def empty_continuations(peer: Peer) -> None:
    await peer.send(HeadersFrame(1, b""), *[ContinuationFrame(1, b"")] * 10_000)


async def pings(peer: Peer) -> None:
    await peer.send(*[PingFrame(0, b"12345678")] * 3_000)


async def many_settings(peer: Peer) -> None:
    await peer.send(*[SettingsFrame(0, {3: 100})] * 2_000)


async def empty_data(peer: Peer) -> None:
    stream_id = peer.ask(end=False)
    await peer.send(*[DataFrame(stream_id, b"")] * 1_100)


async def header_bomb(peer: Peer) -> None:
    block = peer.h2.encoder.encode([*head(), ("a", "x" * 4_000)])
    entry = peer.h2.encoder.encode([("a", "x" * 4_000)])
    assert len(entry) == 1
    await peer.send(HeadersFrame(1, block + entry * 60, flags=["END_HEADERS", "END_STREAM"]))


@pytest.mark.parametrize(
    ("flood", "reasons"),
    [
        (rapid_reset, "resets"),
        (resets_made_by_the_server, "resets"),
        (malformed_trailers, "resets"),
        (continuations, "header_block header_list"),  # nghttp2 opens each part when it comes
        (empty_continuations, "header_block"),
        (pings, "control_frames"),
        (many_settings, "control_frames"),
        (empty_data, "empty_frames"),
        (header_bomb, "header_list"),
    ],
)
async def test_floods(
    flood: Callable[[Peer], Any], reasons: str, autojump_clock: trio.testing.MockClock
) -> None:
    service = Service()
    async with serving(service) as (server, connect):
        peer = connect()
        with contextlib.suppress(trio.BrokenResourceError):
            await flood(peer)
        await peer.until(lambda: bool(peer.goaways))
        code = peer.goaways[0][0]
        assert code == CALM or (flood in MISTAKES and code in (PROTOCOL_ERROR, FLOW_CONTROL_ERROR))
        await peer.until_end()
        assert server.tally.abuses.total() == (code == CALM)
        assert set(server.tally.abuses) <= set(reasons.split())
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (server.tally.connections, server.tally.calls) == (0, 0)
        assert len(service.cancelled) == len(service.seen)
        assert (await connect().call(b"others are served")).status == 0


async def test_data_on_closed_streams(stack: str) -> None:
    """What is answered by a reset each time is bounded; what is passed over need not be."""
    async with serving(Service()) as (server, connect):
        peer = connect()
        stream_id = peer.ask(end=False, headers=head("/t/Unknown"))
        await peer.answer(stream_id)
        with contextlib.suppress(trio.BrokenResourceError):
            await peer.send(*[DataFrame(stream_id, b"x")] * 5_000)
        if stack == "h2":
            await peer.until(lambda: bool(peer.goaways))
            assert peer.goaways[0][0] == CALM
            assert server.tally.abuses == {"control_frames": 1}
        else:
            assert (await peer.call(b"x")).status == 0
            assert not server.tally.abuses


async def test_pings_without_reading_are_bounded() -> None:
    """The socket takes nothing: what waits is bounded by the count."""
    service = Service()
    ours, theirs = trio.testing.memory_stream_pair()
    stuck = trio.Event()
    theirs.send_stream.send_all_hook = stuck.wait  # type: ignore[union-attr]
    async with serving(service, Limits(farewell_s=0.0)) as (server, _), trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        await ours.send_all(PREFACE + SettingsFrame(0).serialize())
        for _ in range(30):
            await ours.send_all(PingFrame(0, b"12345678").serialize() * 50)
            await trio.testing.wait_all_tasks_blocked()
        assert server.tally.abuses == {"control_frames": 1}
        await ours.aclose()
        stuck.set()


async def test_no_window_for_too_long(autojump_clock: trio.testing.MockClock) -> None:
    service = Service()
    async with serving(service) as (server, connect):
        peer = connect(gives_windows=False, window=3)
        began_at = trio.current_time()
        peer.ask(b"hello")
        await peer.until(lambda: bool(peer.goaways))
        assert peer.goaways[0][0] == CALM
        assert peer.reason == b"no_window"
        assert 30 <= trio.current_time() - began_at < 33
        assert server.tally.abuses == {"no_window": 1}


async def test_a_window_in_time_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (server, connect):
        peer = connect(gives_windows=False, window=1)
        stream_id = peer.ask(b"hello")
        for _ in range(9):
            await peer.flush()
            await trio.sleep(20)
            peer.h2.increment_flow_control_window(1, stream_id)
        assert (await peer.answer(stream_id)).messages == [b"hello"]
        assert not server.tally.abuses


async def test_a_socket_that_takes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    theirs.send_stream.send_all_hook = trio.sleep_forever  # type: ignore[union-attr]
    async with serving(Service()) as (server, _):
        await ours.send_all(PREFACE)
        began_at = trio.current_time()
        await server.serve_stream(theirs)
        assert 30 <= trio.current_time() - began_at < 33
        assert server.tally.connections == 0
        assert server.tally.abuses == {"no_reading": 1}


async def test_resets_of_answered_streams_are_no_abuse() -> None:
    async with serving(Service()) as (server, connect):
        peer = connect()
        for _ in range(300):
            stream_id = peer.ask(b"x")
            await peer.answer(stream_id)
            await peer.send(RstStreamFrame(stream_id, 8))
        assert (await peer.call(b"x")).status == 0
        assert not server.tally.abuses


def some_frames() -> st.SearchStrategy[list[bytes]]:
    encoder = h2.connection.H2Connection().encoder
    block = encoder.encode([*head()]), encoder.encode([*head("/t/Chat")])
    flags = st.sets(st.sampled_from(["END_STREAM", "END_HEADERS"]))
    streams = st.integers(0, 9)

    def headers(stream_id: int, number: int, flags: set[str]) -> Frame:
        return HeadersFrame(stream_id, block[number], flags=sorted(flags))

    made = st.one_of(
        st.builds(headers, st.integers(1, 9), st.integers(0, 1), flags),
        st.builds(
            lambda stream_id, data, flags: DataFrame(stream_id, data, flags=sorted(flags - {"END_HEADERS"})),
            st.integers(1, 9),
            st.sampled_from([b"", b"\0\0\0\0\1a", b"\0\0\0", b"\1\0\0\0\0", b"\0\xff\0\0\0"]),
            flags,
        ),
        st.builds(RstStreamFrame, st.integers(1, 9), st.integers(0, 20)),
        st.builds(lambda: PingFrame(0, b"12345678")),
        st.builds(lambda value: SettingsFrame(0, {4: value}), st.integers(0, 2**31)),
    ).map(lambda frame: frame.serialize())
    raw = st.builds(
        lambda kind, flags, stream, body: (
            len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
        ),
        st.integers(0, 12),
        st.integers(0, 255),
        streams,
        st.binary(max_size=20),
    )
    return st.lists(st.one_of(made, made, made, raw), max_size=12)


@settings(max_examples=40)
@given(some_frames(), st.integers(1, 50))
async def test_any_frames_leave_nothing_behind(frames: list[bytes], size: int) -> None:
    """Whatever comes: no task breaks, the connection ends, and others are served."""
    with trio.fail_after(60):
        async with serving(Service(), Limits(farewell_s=0.1)) as (server, connect):
            ours, theirs = trio.testing.memory_stream_pair()
            data = PREFACE + SettingsFrame(0).serialize() + b"".join(frames)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve_stream, theirs)
                for at in range(0, len(data), size):
                    try:
                        await ours.send_all(data[at : at + size])
                    except trio.BrokenResourceError:
                        break
                await trio.testing.wait_all_tasks_blocked()
                await ours.aclose()
            assert (server.tally.connections, server.tally.calls) == (0, 0)
            assert (await connect().call(b"x")).status == 0
