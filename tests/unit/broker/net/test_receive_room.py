"""Room for large frames is shared, first come, first served, and never lost."""

from __future__ import annotations

import trio
import trio.testing

from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel_broker.net.inbox import STEADY_BYTES, Inbox
from tickwheel_broker.net.receive_room import ReceiveRoom


async def test_first_come_first_served() -> None:
    room, served = ReceiveRoom(100), []

    async def want(count_bytes: int) -> None:
        await room.take(count_bytes)
        served.append(count_bytes)

    await room.take(60)
    async with trio.open_nursery() as nursery:
        for count_bytes in (50, 10, 90):
            nursery.start_soon(want, count_bytes)
            await trio.testing.wait_all_tasks_blocked()
        assert served == [], "10 would fit and must not overtake 50"
        room.give_back(60)
        await trio.testing.wait_all_tasks_blocked()
        assert set(served) == {50, 10}
        room.give_back(60)
    assert served[2] == 90
    room.give_back(90)
    assert room.free_bytes == 100


async def test_who_gives_up_waiting_takes_nothing_along() -> None:
    room = ReceiveRoom(100)
    await room.take(80)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await room.take(90)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(room.take, 20)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    room.give_back(100)
    assert room.free_bytes == 100


async def test_served_and_cancelled_in_the_same_moment() -> None:
    room = ReceiveRoom(100)
    await room.take(100)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await room.take(70)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        room.give_back(100)
    assert room.free_bytes == 100


def feed(inbox: Inbox, data: bytes) -> None:
    while data:
        room = inbox.free()
        part = data[: len(room)]
        room[: len(part)] = part
        inbox.received(len(part))
        data = data[len(part) :]


def test_an_inbox_says_beforehand_what_it_will_take() -> None:
    inbox = Inbox(8 << 20)
    large = encode_frame(FrameType.SEND, 1, bytes(2 << 20))
    assert inbox.wanted_large_bytes() == 0
    feed(inbox, large[:100])
    wanted_bytes = inbox.wanted_large_bytes()
    assert wanted_bytes == len(large) - STEADY_BYTES
    inbox.free()
    assert inbox.large_bytes == wanted_bytes == inbox.wanted_large_bytes()
    feed(inbox, large[100:])
    inbox.consume(len(large))
    assert inbox.wanted_large_bytes() == 0
    inbox.free()
    assert inbox.large_bytes == 0


def test_an_inbox_that_gets_little_becomes_small_again() -> None:
    inbox = Inbox(8 << 20)
    small = encode_frame(FrameType.PING, 1)
    for _ in range(4):
        feed(inbox, bytes(len(inbox.free())))
        inbox.consume(len(inbox))
    assert len(inbox.free()) == STEADY_BYTES
    for _ in range(32):
        feed(inbox, small)
        inbox.consume(len(inbox))
    assert len(inbox.free()) == 16 << 10
