"""The bell: rings are never lost, and are remembered as one."""

import trio
import trio.testing

from tickwheel_broker.bell import Bell


async def test_ring_before_and_after_wait() -> None:
    bell = Bell()
    woken = 0

    async def sleeper() -> None:
        nonlocal woken
        while True:
            await bell.wait()
            woken += 1

    bell.ring()
    bell.ring()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == 1
        bell.ring()
        bell.ring()
        await trio.testing.wait_all_tasks_blocked()
        assert woken == 2
        nursery.cancel_scope.cancel()


async def test_a_cancelled_wait_leaves_the_bell_usable(autojump_clock: trio.testing.MockClock) -> None:
    bell = Bell()
    with trio.move_on_after(1) as scope:
        await bell.wait()
    assert scope.cancelled_caught
    bell.ring()
    with trio.fail_after(1):
        await bell.wait()
