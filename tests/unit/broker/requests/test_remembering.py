"""Requests that are made again: while the first try is at work, after its connection broke, after a crash, too late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.unit.broker.connections.test_connection import PATIENCE_S, Wire
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.requests import (
    FRAME_TYPE_OF_REQUEST,
    Cancel,
    CancelOk,
    Ping,
    encode_body,
    hello,
)
from tickwheel.protocol.bodies.settling import Change, ChangeOk, MessageFilter
from tickwheel.protocol.errors import error_from_wire
from tickwheel.protocol.frames import Frame, FrameType, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.connections.connection import Connection, Parts
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.security.grants import Identity
from tickwheel_broker.wiring import connection_parts
from timerlog.store import Store
from timerlog.tables.answers import RememberedAnswers

MANY = 10_000
SESSION = 77
CHANGE = Change(action="cancel", topic="t", filter=MessageFilter())
KEYS = [f"k{number}" for number in range(MANY)]
CANCEL = Cancel(topic="t", keys=[*KEYS, "unknown"])


def identity(number: int = 1, since: int | None = None) -> RequestIdentity:
    return RequestIdentity(SESSION, number, 1, since)


def frame_of(request: Request, named: RequestIdentity) -> bytes:
    frame_type = FRAME_TYPE_OF_REQUEST[type(request)]
    return encode_frame(frame_type, 9, (named.encode(), encode_body(request)), named.flags)


class Asking(Wire):
    """A client that makes requests with an identity."""

    def __init__(self) -> None:
        super().__init__()
        self.scope = trio.CancelScope()

    def ask(self, request: Request, named: RequestIdentity) -> None:
        self._to_read += frame_of(request, named)
        self._written.set()

    async def answer(self) -> Frame:
        """The first answer after that to HELLO."""
        return (await self.wait_answers(1))[0]

    async def serve(self, parts: Parts) -> None:
        self.connection = Connection(parts, self, 1)
        with self.scope:
            await self.connection.serve()


@asynccontextmanager
async def connected(store: Store, clients: int = 2) -> AsyncIterator[list[Asking]]:
    """Clients of a broker that have greeted it."""
    async with trio.open_nursery() as nursery:
        broker = Broker(
            settings=Settings(), store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery
        )
        nursery.start_soon(broker.run)
        parts = connection_parts(broker)
        asking = [Asking() for _ in range(clients)]
        for one in asking:
            nursery.start_soon(one.serve, parts)
            one.write(hello("asking"))
            await one.wait_answers(0)
        yield asking
        nursery.cancel_scope.cancel()


def filled(directory: Path) -> Store:
    """Many messages with keys, for later."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    for start in range(0, MANY, 500):
        keys = [key.encode() for key in KEYS[start : start + 500]]
        store.produce.ingest(
            send(topic, [b"x"] * 500, keys=keys, times_ms=[NOW_MS + 3_600_000] * 500), NOW_MS
        )
    store.sync()
    return store


def send_newer(store: Store) -> None:
    """Somebody uses a key again, which was freed."""
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"newer"], keys=[b"k0"], times_ms=[NOW_MS + 3_600_000]), NOW_MS)


async def wait_cancelled(store: Store, count: int) -> None:
    """Until some steps are done."""
    with trio.fail_after(PATIENCE_S):
        while store.look.stats(NOW_MS)["cancelled"] < count:
            await trio.lowlevel.checkpoint()


def told(frame: Frame) -> object:
    """What an answer says."""
    if frame.type == FrameType.CHANGE_OK:
        done = msgspec.msgpack.decode(frame.payload, type=ChangeOk)
        return done.matched, done.results
    return msgspec.msgpack.decode(frame.payload, type=CancelOk).results


WHOLE = {Change: (MANY, {"cancelled": MANY}), Cancel: [*["cancelled"] * MANY, "not_found"]}
REQUESTS = pytest.mark.parametrize("request_", [CHANGE, CANCEL], ids=["change", "cancel"])


@REQUESTS
async def test_it_waits_for_the_one_that_is_at_work(tmp_path: Path, request_: Request) -> None:
    store = filled(tmp_path / "data")
    async with connected(store) as (first, second):
        first.ask(request_, identity())
        await wait_cancelled(store, 1)
        second.ask(request_, identity(since=store.log.durable_position))
        one, other = await first.answer(), await second.answer()
        assert one == other
        assert told(one) == WHOLE[type(request_)]
    store.close(clean=False)


@REQUESTS
async def test_it_goes_on_where_a_broken_connection_ended(tmp_path: Path, request_: Request) -> None:
    store = filled(tmp_path / "data")
    async with connected(store) as (first, second):
        first.ask(request_, identity())
        await wait_cancelled(store, 1)
        first.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        done = store.look.stats(NOW_MS)["cancelled"]
        assert 0 < done < MANY
        send_newer(store)
        second.ask(request_, identity(since=store.log.durable_position))
        assert told(await second.answer()) == WHOLE[type(request_)]
        assert store.select.find("t", ["k0"]) == [MANY + 1], "what is newer is left alone"
    store.close(clean=False)


@pytest.mark.promise("when-an-answer-is-lost")
@REQUESTS
async def test_it_goes_on_where_a_crash_ended(tmp_path: Path, request_: Request) -> None:
    store = filled(tmp_path / "data")
    since = store.log.durable_position
    async with connected(store, 1) as (first,):
        first.ask(request_, identity())
        await wait_cancelled(store, 1)
    assert 0 < store.look.stats(NOW_MS)["cancelled"] < MANY
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    send_newer(store)
    async with connected(store, 1) as (again,):
        again.ask(request_, identity(since=since))
        assert told(await again.answer()) == WHOLE[type(request_)]
        assert store.select.find("t", ["k0"]) == [MANY + 1]
    state = store.look.state_hash()
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.look.state_hash() == state
    async with connected(store, 1) as (third,):
        third.ask(request_, identity(since=since))
        assert told(await third.answer()) == WHOLE[type(request_)]
    store.close(clean=False)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    opened.topics.open("t", NOW_MS)
    opened.sync()
    return opened


def code_of(frame: Frame) -> str:
    """Of an ERROR."""
    assert frame.type == FrameType.ERROR
    return error_from_wire(msgspec.msgpack.decode(frame.payload)).code


async def test_what_was_forgotten_is_uncertain(store: Store) -> None:
    store.tables.answers = RememberedAnswers(max_answers=1)
    since = store.log.durable_position
    async with connected(store, 4) as (first, other, again, later):
        first.ask(Cancel(ids=[1]), identity())
        await first.answer()
        other.ask(Cancel(ids=[1]), RequestIdentity(SESSION + 1, 1, 1))
        await other.answer()
        again.ask(Cancel(ids=[1]), identity(since=since))
        assert code_of(await again.answer()) == "request_uncertain"
        later.ask(Cancel(ids=[1]), RequestIdentity(SESSION + 2, 1, 1, store.log.durable_position))
        assert (await later.answer()).type == FrameType.CANCEL_OK
    store.close(clean=False)


async def test_a_first_try_that_comes_behind_its_repetition_does_nothing(store: Store) -> None:
    """A connection that its client has given up may still bring what was written to it."""
    topic, later_ms = store.topics.open("t", NOW_MS), [NOW_MS + 3_600_000]
    store.produce.ingest(send(topic, [b"old"], keys=[b"k"], times_ms=later_ms), NOW_MS)
    store.sync()
    cancel, since = Cancel(topic="t", keys=["k"]), store.log.durable_position
    async with connected(store, 3) as (given_up, other, again):
        again.ask(cancel, identity(since=since))
        assert (await again.answer()).payload == encode_body(CancelOk(["cancelled"]))
        store.produce.ingest(send(topic, [b"new"], keys=[b"k"], times_ms=later_ms), NOW_MS)
        other.ask(Cancel(ids=[99]), RequestIdentity(SESSION, 2, 2))
        await other.answer()
        given_up.ask(cancel, identity())
        assert code_of(await given_up.answer()) == "request_uncertain"
    assert store.select.find("t", ["k"]) != [0]
    store.close(clean=False)


async def test_an_error_that_stays_one_is_told_again(store: Store) -> None:
    request = Change(action="cancel", topic="unknown", filter=MessageFilter())
    async with connected(store) as (first, second):
        first.ask(request, identity())
        refused = await first.answer()
        assert code_of(refused) == "unknown_topic"
        store.topics.open("unknown", NOW_MS)
        second.ask(request, identity(since=store.log.durable_position))
        assert await second.answer() == refused
    store.close(clean=False)


async def test_an_identity_that_is_that_of_another_request(store: Store) -> None:
    async with connected(store) as (first, second):
        first.ask(Cancel(ids=[1]), identity())
        await first.answer()
        second.ask(CHANGE, identity(since=store.log.durable_position))
        assert code_of(await second.answer()) == "bad_request"
    store.close(clean=False)


async def test_a_right_is_asked_for_before_the_memory(store: Store) -> None:
    request = Cancel(topic="t", keys=["k"])
    async with connected(store) as (first, second):
        first.ask(request, identity())
        assert (await first.answer()).type == FrameType.CANCEL_OK
        second.connection._become(Identity("id", "stranger", frozenset()))
        second.ask(request, identity(since=store.log.durable_position))
        assert code_of(await second.answer()) == "forbidden"
    store.close(clean=False)


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(FrameType.CANCEL, 9, identity().encode() + encode_body(Cancel(ids=[1])), 4),
        encode_frame(FrameType.CANCEL, 9, identity().encode() + encode_body(Cancel(ids=[1])), 2),
        encode_frame(FrameType.CANCEL, 9, identity().encode()[:23], 1),
        encode_frame(FrameType.CANCEL, 9, bytes(24) + encode_body(Cancel(ids=[1])), 1),
        encode_frame(FrameType.CANCEL, 9, identity().encode() + encode_body(Cancel(ids=[1])), 3),
        frame_of(Ping(), identity()),
        encode_frame(FrameType.ACK, 9, identity().encode(), 1),
    ],
)
async def test_flags_that_mean_nothing_are_refused(store: Store, frame: bytes) -> None:
    async with connected(store, 1) as (first,):
        first._to_read += frame
        first._written.set()
        assert code_of(await first.answer()) in ("bad_frame", "bad_request")
        assert store.tables.answers.count == 0
    store.close(clean=False)
