"""A stream: credit, leases that are renewed, heartbeats, readers that do not read, and what its end does."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
from starlette.requests import Request
from starlette.types import Message
from trio.testing import MockClock

from tests.support.clients.waiting import until
from tickwheel import Client, ReceiptResult
from tickwheel.errors import Forbidden, RequestUncertain, TickwheelError, UnknownGroup
from tickwheel.protocol.receipts import Receipt, decode_receipt
from tickwheel_web.consuming.shapes import StreamQuery
from tickwheel_web.consuming.streaming import HEARTBEAT, MAX_HOLD_S, stream_messages
from tickwheel_web.credit import Credits
from tickwheel_web.ending import Ending
from tickwheel_web.endpoints import Asked, Shared
from tickwheel_web.limits import limits_of
from tickwheel_web.problems import Refused

GROUP_ID = 7
EPOCH = datetime.fromtimestamp(0, UTC)


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@dataclass
class FakeFetched:
    """So many messages."""

    numbers: Sequence[int]
    topic: str = "t"
    group_id: int = GROUP_ID

    @property
    def ids(self) -> Sequence[int]:
        return self.numbers

    @property
    def epochs(self) -> Sequence[int]:
        return [1] * len(self.numbers)

    @property
    def attempts(self) -> Sequence[int]:
        return [1] * len(self.numbers)

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers:
            yield SimpleNamespace(
                id=number,
                epoch=1,
                topic="t",
                key=None,
                order_key=None,
                priority=50,
                deliver_at=EPOCH,
                created=EPOCH,
                body=b'{"n":\n%d}' % number,
                headers={"content-type": "application/json"},
            )


@dataclass
class Fake:
    """A client of a broker that has messages without end, or so many, and knows what is leased."""

    ready: deque[int] = field(default_factory=lambda: deque(range(1, 10_000)))
    leased: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    ended: dict[str, list[int]] = field(default_factory=dict)
    refuses: TickwheelError | None = None

    async def fetch(
        self, topic: str, group: str, *, count: int, wait: timedelta | None = None, **rest: Any
    ) -> FakeFetched:
        await trio.lowlevel.checkpoint()
        if self.refuses is not None:
            raise self.refuses
        self.counts["fetched" if count else "opened"] += 1
        if count and not self.ready:
            assert wait is not None
            await trio.sleep(wait.total_seconds())
        found = [self.ready.popleft() for _ in range(min(count, len(self.ready)))]
        self.leased.update(found)
        return FakeFetched(found)

    async def extend(
        self, group_id: int, receipts: Sequence[tuple[int, int]], lease: timedelta
    ) -> list[ReceiptResult]:
        assert group_id == GROUP_ID
        self.counts["extended"] += 1
        await trio.sleep(0.01)
        gone = ReceiptResult.ALREADY_ACKED
        return [ReceiptResult.EXTENDED if number in self.leased else gone for number, _ in receipts]

    async def give_back(self, group_id: int, receipts: Sequence[tuple[int, int]]) -> list[ReceiptResult]:
        self.ended["given back"] = sorted(number for number, _ in receipts)
        return []

    async def nack(
        self, group_id: int, receipts: Sequence[tuple[int, int]], delay: timedelta, error: str
    ) -> list[ReceiptResult]:
        assert (delay, error) == (timedelta(0), "the stream ended")
        self.ended["nacked"] = sorted(number for number, _ in receipts)
        return []


class Reader:
    """Asks for a stream, and reads what comes, as long as it wants to."""

    def __init__(self, client: Fake, query: StreamQuery | None = None, **limits: int) -> None:
        self.shared = Shared(limits_of(**limits), Ending(), Credits())
        self.said: list[bytes] = []
        self.leaves = trio.Event()
        self.reads_on = trio.Event()
        self.reads_on.set()
        self.is_over = False
        self._client, self._query = client, query or StreamQuery()

    async def run(self) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path_params": {"topic": "t", "group": "g"},
            "headers": [],
        }

        async def receive() -> Message:
            await self.leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await self.reads_on.wait()
            await trio.sleep(0.01)
            self.said.append(message.get("body", b"start"))
            self.is_over |= not message.get("more_body", True)

        asked = Asked(Request(scope), cast(Client, self._client), self._query, b"", "me", self.shared)
        response = await stream_messages(asked)
        await response(scope, receive, send)

    @property
    def received(self) -> list[Any]:
        """The messages."""
        events = [said.decode().rstrip("\n").split("\n") for said in self.said if said.startswith(b"id: ")]
        return [
            msgspec.json.decode("\n".join(line.removeprefix("data: ") for line in lines[1:]))
            for lines in events
        ]

    def settle(self, *numbers: int) -> None:
        self._client.leased -= set(numbers)
        self.shared.credits.settled(Receipt(GROUP_ID, number, 1) for number in numbers)


async def test_no_more_than_the_credit_and_more_when_some_is_settled(autojump_clock: MockClock) -> None:
    client = Fake()
    reader = Reader(client, StreamQuery(credit=3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 3)
        assert [item["body"] for item in reader.received] == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert decode_receipt("t", "g", reader.received[0]["receipt"]) == Receipt(GROUP_ID, 1, 1)
        await trio.sleep(100)
        assert len(reader.received) == 3
        reader.settle(2, 3, 99)
        await until(lambda: len(reader.received) == 5)
        reader.leaves.set()
    assert client.ended == {"nacked": [1, 4, 5]}
    assert not reader.is_over


async def test_leases_are_renewed_and_what_is_settled_elsewhere_is_found_out(
    autojump_clock: MockClock,
) -> None:
    client = Fake()
    reader = Reader(client, StreamQuery(credit=2, lease="30s"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 2)
        began = trio.current_time()
        client.leased.remove(1)
        await until(lambda: len(reader.received) == 3)
        assert trio.current_time() - began < 2, "at first it is asked soon"
        client.counts.clear()
        await trio.sleep(300)
        assert 300 / 10 < client.counts["extended"] < 300 / 10 * 2 + 10
        began = trio.current_time()
        client.leased.remove(2)
        await until(lambda: len(reader.received) == 4)
        assert trio.current_time() - began <= 10.1
        reader.leaves.set()


async def test_one_that_is_forgotten_is_not_held_for_ever(autojump_clock: MockClock) -> None:
    client = Fake(ready=deque([1, 2]))
    reader = Reader(client, StreamQuery(credit=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 1)
        await trio.sleep(MAX_HOLD_S - 60)
        assert len(reader.received) == 1
        await trio.sleep(120)
        assert [item["id"] for item in reader.received] == ["1", "2"]
        reader.leaves.set()
    assert client.ended == {"nacked": [2]}


@pytest.mark.parametrize("ready", [0, 1])
async def test_heartbeats_with_and_without_credit(autojump_clock: MockClock, ready: int) -> None:
    reader = Reader(Fake(ready=deque(range(ready))), StreamQuery(credit=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        for _ in range(5):
            before = reader.said.count(b":\n\n")
            await trio.sleep(HEARTBEAT.total_seconds() * 2)
            assert reader.said.count(b":\n\n") > before
        reader.leaves.set()


async def test_nothing_is_fetched_for_who_does_not_read(autojump_clock: MockClock) -> None:
    client = Fake()
    reader = Reader(client, StreamQuery(credit=1_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: reader.received)
        reader.reads_on = trio.Event()
        await trio.sleep(1)  # what was being written
        fetched = client.counts["fetched"]
        read = len(reader.received)
        await trio.sleep(50)
        assert client.counts["fetched"] == fetched
        assert len(reader.received) == read
        await trio.sleep(30)  # it has not read for a whole lease: it is taken for gone
    assert not reader.is_over
    assert set(client.ended) <= {"nacked", "given back"}
    assert sorted(number for numbers in client.ended.values() for number in numbers) == sorted(client.leased)
    assert len(client.ended["given back"]) == len(client.leased) - read


async def test_when_the_server_ends_nothing_was_an_attempt(autojump_clock: MockClock) -> None:
    client = Fake()
    reader = Reader(client, StreamQuery(credit=3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 3)
        reader.shared.ending.come()
    assert client.ended == {"given back": [1, 2, 3]}
    assert reader.is_over


@pytest.mark.parametrize(
    ("error", "code"), [(Forbidden(), "forbidden"), (RequestUncertain(), "request_uncertain")]
)
async def test_what_the_broker_refuses_later_is_the_last_event(
    autojump_clock: MockClock, error: TickwheelError, code: str
) -> None:
    client = Fake()
    reader = Reader(client, StreamQuery(credit=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 2)
        client.refuses = error
        reader.settle(1)
    last = reader.said[-2].decode().split("\n")
    assert last[0] == "event: problem"
    assert msgspec.json.decode(last[1].removeprefix("data: "))["code"] == code
    assert reader.is_over
    assert client.ended == {"nacked": [2]}


async def test_what_is_refused_at_once_is_no_stream(autojump_clock: MockClock) -> None:
    reader = Reader(Fake(refuses=Forbidden()))
    with pytest.raises(Forbidden):
        await reader.run()
    assert reader.said == []
    for lease in ("0s", "999ms", "2h"):
        with pytest.raises(Refused, match="lease"):
            await Reader(Fake(), StreamQuery(lease=lease)).run()


async def test_so_many_streams(autojump_clock: MockClock) -> None:
    reader = Reader(Fake(), max_streams=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: reader.received)
        with pytest.raises(Refused) as refused:
            await reader.run()
        assert (refused.value.status, refused.value.code) == (429, "too_many_streams")
        reader.leaves.set()


@dataclass
class MadeAnew(Fake):
    """Its topic is deleted and made again after each fetch; the group of before is not there any more."""

    given_back: list[int] = field(default_factory=list)
    group_id: int = 0

    async def fetch(self, *arguments: Any, **options: Any) -> FakeFetched:
        fetched = await super().fetch(*arguments, **options)
        self.group_id += bool(fetched.numbers)
        fetched.group_id = self.group_id
        return fetched

    async def give_back(self, group_id: int, receipts: Sequence[tuple[int, int]]) -> list[ReceiptResult]:
        if group_id < self.group_id:
            raise UnknownGroup
        self.given_back += [number for number, _ in receipts]
        return [ReceiptResult.STALE_RECEIPT] * len(receipts)


async def test_what_is_refused_for_one_group_is_given_back_for_another(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = MadeAnew(ready=deque([1, 2]))
    reader = Reader(client, StreamQuery(credit=10))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 2)
        client.ready.append(3)
        await until(lambda: len(reader.received) == 3)
        reader.shared.ending.come()
    assert client.given_back == [3]
    assert "2 messages of 't' were not given back: " in caplog.text
    assert "1 of 1 messages of 't' were not given back: stale_receipt (1)" in caplog.text


async def test_what_is_not_given_back_in_time_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await trio.sleep_forever()

    caplog.set_level("INFO")
    client = Fake()
    monkeypatch.setattr(client, "give_back", never)
    reader = Reader(client, StreamQuery(credit=3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await until(lambda: len(reader.received) == 3)
        reader.shared.ending.come()
    assert "3 messages of 't' were not given back within 5 s" in caplog.text
