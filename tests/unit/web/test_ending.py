"""What waits for long ends when the server does."""

from __future__ import annotations

import trio

from tickwheel_web.ending import Ending


async def test_all_that_wait_are_told_and_nobody_waits_afterwards() -> None:
    ending = Ending()
    ended: list[int] = []

    async def wait(number: int) -> None:
        with ending.ends() as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        ended.append(number)

    with ending.ends() as early:
        await trio.lowlevel.checkpoint()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        ending.come()
    assert sorted(ended) == [0, 1, 2]
    assert not early.cancel_called
    await wait(3)
    assert ended[-1] == 3
