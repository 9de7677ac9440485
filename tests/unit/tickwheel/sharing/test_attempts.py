"""Wrong tokens by address."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from tickwheel.errors import TooManyAttempts
from tickwheel.sharing.attempts import MAX_WRONG, WINDOW_S, Attempts, network_of


def digest(number: int) -> bytes:
    return number.to_bytes(4, "big")


async def guess_wrongly(attempts: Attempts, address: str, number: int) -> None:
    await attempts.begin(address, digest(number))
    attempts.was_wrong(address, digest(number))


async def test_who_guesses_has_to_wait_and_no_one_else(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    for number in range(MAX_WRONG):
        await guess_wrongly(attempts, "2001:db8::1", number)
        await trio.sleep(1)
    with pytest.raises(TooManyAttempts, match=r"from 2001:db8::/64; wait 55 s"):
        await attempts.begin("2001:db8::2", digest(99))
    await guess_wrongly(attempts, "2001:db8:0:1::2", 99)
    await trio.sleep(WINDOW_S - MAX_WRONG)
    await guess_wrongly(attempts, "2001:db8::2", 99)
    with pytest.raises(TooManyAttempts, match=r"wait 1 s"):
        await attempts.begin("2001:db8::2", digest(100))


async def test_many_good_tokens_at_once_wait_for_each_other(autojump_clock: MockClock) -> None:
    """As behind a proxy, whose address all have."""
    attempts, at_once, most = Attempts(), 0, 0

    async def log_in(number: int, *, is_good: bool) -> None:
        nonlocal at_once, most
        await attempts.begin("192.0.2.1", digest(number))
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(1)
        at_once -= 1
        (attempts.was_good if is_good else attempts.was_wrong)("192.0.2.1", digest(number))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(partial(log_in, number, is_good=number % 25 != 0))
    assert most == MAX_WRONG


async def test_many_wrong_ones_at_once_gain_nothing(autojump_clock: MockClock) -> None:
    attempts, made, refused = Attempts(), 0, 0

    async def log_in(number: int) -> None:
        nonlocal made, refused
        try:
            await attempts.begin("192.0.2.1", digest(number))
        except TooManyAttempts:
            refused += 1
            return
        made += 1
        await trio.sleep(1)
        attempts.was_wrong("192.0.2.1", digest(number))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(log_in, number)
    assert (made, refused) == (MAX_WRONG, 100 - MAX_WRONG)


async def test_the_same_token_counts_once_and_a_good_one_never() -> None:
    attempts = Attempts()
    await attempts.begin("192.0.2.1", digest(0))
    attempts.was_good("192.0.2.1", digest(0))
    for _ in range(3):
        for number in range(MAX_WRONG):
            await guess_wrongly(attempts, "192.0.2.1", number + 1)
    await attempts.begin("192.0.2.1", digest(0))
    with pytest.raises(TooManyAttempts):
        await attempts.begin("192.0.2.1", digest(99))


async def test_what_is_no_guess_makes_room() -> None:
    attempts = Attempts()
    for number in range(3 * MAX_WRONG):
        await attempts.begin("192.0.2.1", digest(number))
        attempts.was_no_guess("192.0.2.1", digest(number))


async def test_not_without_end() -> None:
    attempts = Attempts()
    for number in range(20_000):
        await attempts.begin(f"10.0.{number >> 8}.{number & 255}", digest(number))
        attempts.was_good(f"10.0.{number >> 8}.{number & 255}", digest(number))
    assert len(attempts._networks) == len(attempts._good) == 10_000


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_whom_a_failure_is_held_against(address: str, network: str) -> None:
    assert network_of(address) == network
