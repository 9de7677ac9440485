"""The outgoing queue: in order, bounded by its high-water mark, and honest about a reader that stalls."""

from __future__ import annotations

import trio
import trio.testing

from tickwheel_broker.net.outgoing import MAX_PROMISED, Outgoing

HIGH_WATER_BYTES = 100


class Pipe:
    """A transport whose other side reads only when told."""

    peer = "pipe"

    def __init__(self) -> None:
        self.sent = b""
        self.writes = 0
        self.room_at_once_bytes = 0
        self.room = trio.Semaphore(0)

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.sleep_forever()
        return 0

    async def send_some(self, data: bytes | memoryview) -> int:
        await self.room.acquire()
        self.writes += 1
        part = bytes(data[:150])
        self.sent += part
        return len(part)

    def send_at_once(self, data: bytes) -> int:
        part = data[: self.room_at_once_bytes]
        self.room_at_once_bytes -= len(part)
        self.sent += part
        return len(part)

    def end_sending(self) -> None:
        raise AssertionError("not used")

    def close(self) -> None:
        raise AssertionError("not used")


async def test_small_replies_are_joined_in_order() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            outgoing.put(b"%d" % number)
        nursery.start_soon(outgoing.run)
        pipe.room.release()
        await outgoing.flush()
        assert (pipe.sent, pipe.writes) == (b"0123456789", 1)
        assert outgoing.stalled_since_s is None
        nursery.cancel_scope.cancel()


async def test_a_stalled_reader_fills_it_and_a_reading_one_empties_it() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    calls: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        outgoing.put(bytes(300))
        await trio.testing.wait_all_tasks_blocked()
        assert outgoing.is_full
        assert outgoing.stalled_since_s is not None
        outgoing.when_low(lambda: calls.append("low"))
        pipe.room.release()
        await trio.testing.wait_all_tasks_blocked()
        assert outgoing.queued_bytes == 150
        assert calls == []
        pipe.room.release()
        await outgoing.wait_not_full()
        assert calls == ["low"]
        assert outgoing.queued_bytes == 0
        nursery.cancel_scope.cancel()


async def test_after_the_end_nothing_is_kept_and_nobody_waits() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        outgoing.put(bytes(300))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(outgoing.flush)
        nursery.start_soon(outgoing.wait_not_full)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    outgoing.put(b"too late")
    assert outgoing.queued_bytes == 0


async def test_a_reader_that_takes_a_few_bytes_now_and_then_counts_as_stalled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        outgoing.put(bytes(70_000))
        for _ in range(64 * 1024 // 150):
            await trio.sleep(1)
            pipe.room.release()
        assert outgoing.stalled_since_s == began_s
        pipe.room.release()
        await trio.sleep(1)
        assert outgoing.stalled_since_s is not None
        assert outgoing.stalled_since_s > began_s + 400, "64 KiB are progress"
        nursery.cancel_scope.cancel()


async def test_answers_that_wait_for_the_disk_are_counted() -> None:
    outgoing = Outgoing(Pipe(), HIGH_WATER_BYTES)
    promises = [outgoing.promise() for _ in range(MAX_PROMISED)]
    assert outgoing.has_promised_much
    promises[0](b"answer")
    assert not outgoing.has_promised_much
    assert outgoing.queued_bytes == len(b"answer")


async def test_the_last_answer_that_waited_for_the_disk_takes_all_along_at_once() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        first, last = outgoing.promise(), outgoing.promise()
        pipe.room_at_once_bytes = 10
        outgoing.put(b"1")
        first(b"2")
        assert pipe.sent == b"", "it waits for the other one"
        last(b"3")
        assert (pipe.sent, outgoing.queued_bytes, outgoing.written_bytes) == (b"123", 0, 3)
        outgoing.promise()(b"45678901")
        assert (pipe.sent, outgoing.queued_bytes) == (b"1234567890", 1), (
            "what does not fit is left to the task"
        )
        pipe.room.release()
        await outgoing.flush()
        assert pipe.sent == b"12345678901"
        nursery.cancel_scope.cancel()


async def test_nothing_overtakes_what_the_task_is_writing() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        outgoing.put(bytes(151))
        await trio.testing.wait_all_tasks_blocked()
        pipe.room_at_once_bytes = 10
        outgoing.promise()(b"1")
        assert pipe.sent == b""
        for _ in range(3):
            pipe.room.release()
        await outgoing.flush()
        assert pipe.sent == bytes(151) + b"1"
        nursery.cancel_scope.cancel()


async def test_who_waits_for_a_low_queue_is_told_by_the_task() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        outgoing.when_low(lambda: told.append(outgoing.queued_bytes))
        pipe.room_at_once_bytes = 10
        outgoing.promise()(b"1")
        assert (pipe.sent, told) == (b"", [])
        pipe.room.release()
        await outgoing.flush()
        assert (pipe.sent, told) == (b"1", [0])
        nursery.cancel_scope.cancel()


async def test_answers_to_requests_that_are_being_taken_leave_together() -> None:
    pipe = Pipe()
    outgoing = Outgoing(pipe, HIGH_WATER_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        outgoing.gathers, pipe.room_at_once_bytes = True, 10
        for number in range(3):
            outgoing.promise()(b"%d" % number)
        outgoing.gathers = False
        assert pipe.sent == b""
        pipe.room.release()
        await outgoing.flush()
        assert (pipe.sent, pipe.writes) == (b"012", 1)
        nursery.cancel_scope.cancel()
