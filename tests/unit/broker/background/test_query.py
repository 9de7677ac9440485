"""Who may query and when: turns, their limit, and what is told about a failure."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest
import trio
import trio.testing

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.support.stores.damage import flip
from tickwheel.protocol.bodies.requests import Query, decode_error
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.frames import FrameReader, FrameType
from tickwheel_broker.background.queries import MAX_AT_ONCE, MAX_WAITING, Queries
from tickwheel_broker.clock.clock import SystemClock
from tickwheel_broker.net.outgoing import Outgoing
from timerlog.query.worker import Job
from timerlog.store import Store


class Sink:
    """Keeps the frames that would be written."""

    def __init__(self) -> None:
        self.reader = FrameReader(1 << 20)

    def put(self, frames: bytes) -> None:
        self.reader.feed(frames)

    def error(self) -> TickwheelError:
        """The next frame, which must be an error."""
        frame = self.reader.next_frame()
        assert frame is not None
        assert frame.type == FrameType.ERROR
        return decode_error(frame.payload)


def at_once(outgoing: Outgoing, frame: bytes) -> None:
    """On a disk that is always done."""
    outgoing.put(frame)


class Held(Queries):
    """Queries whose processes never end."""

    running = 0

    async def _run_process(self, job: Job) -> bytes:
        self.running += 1
        try:
            await trio.sleep_forever()
        finally:
            self.running -= 1
        raise AssertionError("unreachable")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "data", SMALL, NOW_MS)


async def test_turns_are_limited_and_so_are_those_who_wait(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    queries, sink = (
        Held(
            log=store.log,
            tables=store.tables,
            clock=SystemClock(),
            max_frame_bytes=1 << 20,
            tell=at_once,
            heal=store.select.heal,
        ),
        Sink(),
    )
    outgoing = cast(Outgoing, sink)
    async with trio.open_nursery() as nursery:
        for number in range(MAX_AT_ONCE + MAX_WAITING):
            nursery.start_soon(queries.answer, outgoing, number, Query("select 1", 10, 60_000))
        await trio.testing.wait_all_tasks_blocked()
        assert queries.running == MAX_AT_ONCE
        assert sink.reader.buffered_bytes == 0
        await queries.answer(outgoing, 99, Query("select 1", 10, 60_000))
        assert sink.error().code == "too_many_queries"
    for _ in range(MAX_AT_ONCE + MAX_WAITING):  # a minute later all have timed out
        assert sink.error().code == "query_timeout"
    assert queries.running == 0
    store.close()


async def test_a_process_that_does_not_start_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    sink = Sink()
    await Queries(
        log=store.log,
        tables=store.tables,
        clock=SystemClock(),
        max_frame_bytes=1 << 20,
        tell=at_once,
        heal=store.select.heal,
    ).answer(cast(Outgoing, sink), 1, Query("select 1", 10, 60_000))
    error = sink.error()
    assert (error.code, error.retryable) == ("query_failed", False)
    assert "No such file" in error.message
    store.close()


async def test_a_process_that_says_nothing_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/true")
    sink = Sink()
    await Queries(
        log=store.log,
        tables=store.tables,
        clock=SystemClock(),
        max_frame_bytes=1 << 20,
        tell=at_once,
        heal=store.select.heal,
    ).answer(cast(Outgoing, sink), 1, Query("select 1", 10, 60_000))
    assert sink.error().code == "query_failed"
    store.close()


async def test_what_a_query_finds_damaged_is_to_be_healed(store: Store, tmp_path: Path) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x" * 100] * 5, times_ms=[NOW_MS + 60_000] * 5), NOW_MS)
    store.log.flush()
    flip(tmp_path / "data", int(store.tables.rows["position"][2]) + 50, store.log.segment_bytes)
    healed: list[int] = []
    queries = Queries(
        log=store.log,
        tables=store.tables,
        clock=SystemClock(),
        max_frame_bytes=1 << 20,
        tell=at_once,
        heal=lambda ids: healed.extend(ids.tolist()),
    )
    sink = Sink()
    await queries.answer(cast(Outgoing, sink), 1, Query("select body from t order by id", 10, 60_000))
    frame = sink.reader.next_frame()
    assert frame is not None
    bodies = [row[0] for row in msgspec.msgpack.decode(frame.payload)["rows"]]
    assert bodies == [b"x" * 100, None, *[b"x" * 100] * 3]
    assert healed == [2]
    assert sink.reader.buffered_bytes == 0
    store.close()
