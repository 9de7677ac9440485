"""A connection whose client asks for more than it may: it waits, and so nobody else has to."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.unit.broker.net.test_outgoing import Pipe
from tickwheel.protocol.bodies.admin import DeleteTopic, GetTopic
from tickwheel.protocol.bodies.requests import (
    FRAME_TYPE_OF_REQUEST,
    Cancel,
    Ping,
    Request,
    Subscribe,
    Unsubscribe,
    encode_body,
    hello,
)
from tickwheel.protocol.bodies.settling import Change, ChangeOk, Return
from tickwheel.protocol.errors import TokenRevoked
from tickwheel.protocol.frames import Frame, FrameReader, FrameType, encode_frame
from tickwheel.protocol.messages import decode_deliver
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.connections.connection import MAX_SLOW_REQUESTS, Connection
from tickwheel_broker.delivery.subscriptions import RELEASE_STEP
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.requests.answers import MAX_AT_ONCE
from tickwheel_broker.requests.changes import ChangeRequests
from tickwheel_broker.security.grants import NOBODY, OWNER, Identity
from tickwheel_broker.wiring import connection_parts
from timerlog.store import Store

PATIENCE_S = 60.0
MANY = 100
FLOOD = 2_000
"""Far more than fits into some turns."""


class Wire(Pipe):
    """A client in memory: what it writes is read as soon as the connection reads, and it takes all answers."""

    def __init__(self) -> None:
        super().__init__()
        self.room = trio.Semaphore(1 << 20)
        self._to_read = b""
        self._written = trio.Event()
        self._reader = FrameReader(1 << 20)
        self.answers: list[Frame] = []

    def write(self, *requests: Request) -> None:
        """Requests one behind the other, each with the next number."""
        for number, request in enumerate(requests, 1):
            self._to_read += encode_frame(FRAME_TYPE_OF_REQUEST[type(request)], number, encode_body(request))
        self._written.set()

    def write_bytes(self, data: bytes) -> None:
        """Whole frames."""
        self._to_read += data
        self._written.set()

    async def receive_into(self, buffer: memoryview) -> int:
        if not self._to_read:
            self._written = trio.Event()
            await self._written.wait()
        count = min(len(buffer), len(self._to_read))
        buffer[:count] = self._to_read[:count]
        self._to_read = self._to_read[count:]
        return count

    async def send_some(self, data: bytes | memoryview) -> int:
        await trio.lowlevel.checkpoint()
        self._reader.feed(bytes(data))
        while (frame := self._reader.next_frame()) is not None:
            self.answers.append(frame)
        return len(data)

    async def wait_answers(self, count: int) -> list[Frame]:
        """So many answers after that to HELLO."""
        with trio.fail_after(PATIENCE_S):
            while len(self.answers) < count + 1:
                await trio.sleep(0.001)
        return self.answers[1:]

    def delivered(self) -> int:
        """How many messages have come."""
        frames = [answer for answer in self.answers if answer.type == FrameType.DELIVER]
        return sum(decode_deliver(frame.payload).count for frame in frames)

    def close(self) -> None:
        """The broker leaves."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close(clean=False)


@asynccontextmanager
async def connected(store: Store, clients: int = 1) -> AsyncIterator[list[Wire]]:
    """Clients of a broker that have greeted it."""
    async with trio.open_nursery() as nursery:
        broker = Broker(
            settings=Settings(), store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery
        )
        nursery.start_soon(broker.run)
        parts = connection_parts(broker)
        wires = [Wire() for _ in range(clients)]
        for number, wire in enumerate(wires):
            nursery.start_soon(Connection(parts, wire, number).serve)
            wire.write(hello("wire"))
        for wire in wires:
            await wire.wait_answers(0)
        yield wires
        nursery.cancel_scope.cancel()


async def test_a_token_may_be_revoked_at_the_very_end_of_its_connection(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last task of a connection and its end: then nothing is started any more, and nobody falls."""

    def refuse(identity: Identity) -> Identity:
        raise TokenRevoked

    class AtTheEnd(trio.abc.Instrument):
        exits = 0

        def task_exited(self, task: trio.lowlevel.Task) -> None:
            if "Outgoing.run" in task.name:
                self.exits += 1
                connection.check_login()

    at_the_end = AtTheEnd()
    async with trio.open_nursery() as nursery:
        broker = Broker(
            settings=Settings(), store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery
        )
        monkeypatch.setattr(broker.access, "renewed", refuse)
        wire = Wire()
        connection = Connection(connection_parts(broker), wire, 1)
        connection.identity = OWNER
        connection.is_greeted = True
        trio.lowlevel.add_instrument(at_the_end)
        try:
            with trio.move_on_after(0.01):
                await connection.serve()
        finally:
            trio.lowlevel.remove_instrument(at_the_end)
    assert at_the_end.exits == 1
    assert connection.is_gone
    assert connection.identity is NOBODY


async def test_nothing_is_delivered_to_who_leaves_before_it_has_begun(store: Store) -> None:
    store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"] * 5), NOW_MS)
    async with connected(store) as (wire,):
        wire.write(
            Subscribe(topic="t", group="g", credit=10, batch=10),
            Return(subscription=1, ids=[], epochs=[]),
            Ping(),
        )
        await wire.wait_answers(3)
        await trio.testing.wait_all_tasks_blocked()
        answers = wire.answers[1:]
    assert {answer.type for answer in answers} == {
        FrameType.SUBSCRIBE_OK,
        FrameType.RETURN_OK,
        FrameType.PONG,
    }


async def test_who_leaves_with_much_gives_it_back_between_other_requests(store: Store) -> None:
    count = 3 * RELEASE_STEP
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    store.produce.ingest(send(topic, [b"x"] * count), NOW_MS)
    async with connected(store, 2) as (wire, other):
        wire.write(Subscribe(topic="t", group="g", credit=count, batch=count))
        with trio.fail_after(PATIENCE_S):
            while wire.delivered() < count:
                await trio.sleep(0.001)
        wire.write(Unsubscribe(subscription=1))
        with trio.fail_after(PATIENCE_S):
            while not store.tables.topic_ids.get("t.dead"):
                await trio.lowlevel.checkpoint()
        assert 0 < store.look.stats(NOW_MS)["leased"] < count, "a part of it, and then others"
        other.write(Ping())
        await other.wait_answers(1)
        with trio.fail_after(PATIENCE_S):
            while wire.answers[-1].type != FrameType.UNSUBSCRIBE_OK:
                await trio.sleep(0.001)
        answer = wire.answers[-1]
        assert msgspec.msgpack.decode(answer.payload) == {"released": count}
    assert store.look.describe_topic("t.dead")["messages"] == count
    assert store.holders.count(store.look.groups_of("t")) == 0


def refused_ack() -> bytes:
    return encode_frame(FrameType.ACK, 1, struct.pack("<IIQI", 77, 1, 5, 1))


def asked(request: Request) -> bytes:
    return encode_frame(FRAME_TYPE_OF_REQUEST[type(request)], 1, encode_body(request))


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(asked(Ping()), id="ping"),
        pytest.param(asked(Cancel(ids=[10**9])), id="cancel"),
        pytest.param(asked(GetTopic("none")), id="refused"),
        pytest.param(refused_ack(), id="ack"),
        pytest.param(send(77, [b"x"]), id="send"),
    ],
)
async def test_who_asks_for_much_at_once_lets_others_go_on_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    taken: Counter[int] = Counter()
    take = Connection._take

    def counted(connection: Connection, data: memoryview) -> None:
        taken[connection.number] += 1
        take(connection, data)

    monkeypatch.setattr(Connection, "_take", counted)
    async with connected(store, 2) as (wire, other):
        for _ in range(3):
            taken.clear()
            wire.write_bytes(frame * FLOOD)
            await trio.lowlevel.checkpoint()  # it is taken in the next turn of the loop
            before = len(other.answers)
            other.write(Ping())
            await other.wait_answers(before)
            assert taken[0] < FLOOD, "others come before the end"
            with trio.fail_after(PATIENCE_S):
                while taken[0] < FLOOD:
                    await trio.lowlevel.checkpoint()
    assert taken[0] == FLOOD


def dry_run() -> Change:
    return Change(action="cancel", topic="t", dry_run=True)


async def test_a_connection_is_not_read_from_while_much_of_it_is_at_work(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.open("t", NOW_MS)
    begun, may_end = 0, trio.Event()

    async def work(*_: object) -> ChangeOk:
        nonlocal begun
        begun += 1
        await may_end.wait()
        return ChangeOk(0, {})

    monkeypatch.setattr(ChangeRequests, "_change_all", work)
    monkeypatch.setattr("tickwheel_broker.requests.answers.MAX_AT_ONCE", MANY)
    async with connected(store, 2) as (wire, other):
        wire.write(*[dry_run() for _ in range(MANY)], Ping())
        other.write(Ping())
        await other.wait_answers(1)
        with trio.fail_after(PATIENCE_S):
            while begun < MAX_SLOW_REQUESTS:
                await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()
        assert (begun, len(wire.answers)) == (MAX_SLOW_REQUESTS, 1), "nothing behind them was looked at"
        may_end.set()
        answers = await wire.wait_answers(MANY + 1)
    assert begun == MANY
    assert [answer.type for answer in answers].count(FrameType.CHANGE_OK) == MANY


async def test_a_defect_in_a_slow_request_is_told_and_ends_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.open("t", NOW_MS)

    async def work(*_: object) -> ChangeOk:
        raise KeyError("a defect")

    monkeypatch.setattr(ChangeRequests, "_change_all", work)
    async with connected(store, 2) as (wire, other):
        wire.write(dry_run())
        (answer,) = await wire.wait_answers(1)
        assert (answer.type, b"internal" in answer.payload) == (FrameType.ERROR, True)
        other.write(Ping())
        await other.wait_answers(1)


async def test_few_bulk_changes_of_all_connections_work_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"]), NOW_MS)
    at_work, most = 0, 0
    select = ChangeRequests._change_all

    async def watched(*args: object) -> ChangeOk:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await trio.sleep(0.01)
        answer = await select(*args)  # type: ignore[arg-type]
        at_work -= 1
        return answer

    monkeypatch.setattr(ChangeRequests, "_change_all", watched)
    async with connected(store, 3) as wires:
        for wire in wires:
            wire.write(*[dry_run() for _ in range(MAX_SLOW_REQUESTS)])
        for wire in wires:
            answers = await wire.wait_answers(MAX_SLOW_REQUESTS)
            assert {answer.type for answer in answers} == {FrameType.CHANGE_OK}
    assert most == MAX_AT_ONCE


async def test_a_topic_may_be_deleted_before_its_change_begins(store: Store) -> None:
    store.topics.open("t", NOW_MS)
    async with connected(store) as (wire,):
        wire.write(dry_run(), DeleteTopic("t"), Ping())
        answers = await wire.wait_answers(3)
    assert sorted(answer.type for answer in answers) == sorted(
        [FrameType.PONG, FrameType.DELETE_TOPIC_OK, FrameType.CHANGE_OK]
    )
