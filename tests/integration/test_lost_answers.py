"""Requests whose answer was lost with the connection: the client makes them again, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import anyio
import pytest
from anyio.abc import ByteStream

import tickwheel
from tests.integration.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Client
from tickwheel._security import dial
from tickwheel._url import Address
from tickwheel.errors import ScheduleExists, TopicExists, UnknownSchedule, UnknownTopic
from tickwheel.protocol.frames import FrameReader, FrameType

HOUR = timedelta(hours=1)


class Losing:
    """Dials a real broker; the connection breaks once, when the first answer of one kind arrives."""

    def __init__(self) -> None:
        self.lose: FrameType | None = None
        self.lost = 0

    async def dial(self, address: Address) -> ByteStream:
        return LosingStream(self, await dial(address))


class LosingStream(ByteStream):
    """A stream that ends with the answer that is to be lost."""

    def __init__(self, losing: Losing, stream: ByteStream) -> None:
        self._losing = losing
        self._stream = stream
        self._reader = FrameReader(1 << 26)

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self._reader.feed(data)
        while (frame := self._reader.next_frame()) is not None:
            if frame.type == self._losing.lose:
                self._losing.lose = None
                self._losing.lost += 1
                await self._stream.aclose()
                raise anyio.EndOfStream
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("lost") / "data", segment_bytes="64MiB") as running:
        yield running


@pytest.fixture
def losing() -> Losing:
    return Losing()


async def test_a_trigger_sends_one_message(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial) as client:
        await client.create_schedule("wages", "wages", cron="0 9 1 * *", body=b"pay")
        losing.lose = FrameType.TRIGGER_SCHEDULE_OK
        message_id = await client.trigger_schedule("wages")
        assert losing.lost == 1
        async with client.subscribe("wages") as subscription:
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            assert (message.id, message.body) == (message_id, b"pay")
        assert [one.id for one in await client.browse("wages")] == [message_id]
        assert await client.trigger_schedule("wages") != message_id, "asked for anew, it is another one"


async def test_a_schedule_is_created_changed_and_deleted(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial) as client:
        losing.lose = FrameType.SET_SCHEDULE_OK
        made = await client.create_schedule("hourly", "hours", every=HOUR, body=b"1")
        assert (losing.lost, made.body) == (1, b"1")
        with pytest.raises(ScheduleExists):
            await client.create_schedule("hourly", "hours", every=HOUR, body=b"2")
        losing.lose = FrameType.SET_SCHEDULE_OK
        changed = await client.set_schedule("hourly", body=b"2")
        assert (losing.lost, changed.body) == (2, b"2")
        losing.lose = FrameType.DELETE_SCHEDULE_OK
        await client.delete_schedule("hourly")
        assert losing.lost == 3
        with pytest.raises(UnknownSchedule):
            await client.delete_schedule("hourly")


async def test_a_topic_is_created_and_deleted(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial) as client:
        losing.lose = FrameType.SET_TOPIC_OK
        made = await client.create_topic("orders", rate=5)
        assert (losing.lost, made.settings) == (1, {"rate": 5})
        for other in ({"rate": 6}, {}, {"rate": 5, "shards": 2}):
            with pytest.raises(TopicExists):
                await client.create_topic("orders", **other)
        await client.pause_topic("orders")
        with pytest.raises(TopicExists):
            await client.create_topic("orders", rate=5)
        losing.lose = FrameType.DELETE_TOPIC_OK
        assert await client.delete_topic("orders") == 0
        assert losing.lost == 2
        with pytest.raises(UnknownTopic):
            await client.delete_topic("orders")


async def test_creating_a_topic_with_shards_twice_is_creating_it_once(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        made = await client.create_topic("events", shards=4)
        assert await client.create_topic("events", shards=4) == made
        with pytest.raises(TopicExists):
            await client.create_topic("events")
