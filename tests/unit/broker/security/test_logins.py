"""Judging tokens: what is remembered, what takes a thread, and who has to wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
import trio

from tickwheel.protocol.errors import BadToken, TokenExpired, TokenRevoked, TooManyAttempts
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_broker.security import tokens
from tickwheel_broker.security.addresses import network_of
from tickwheel_broker.security.logins import MAX_FAILURES, MAX_WAITING, WINDOW_S, Attempts, Logins
from tickwheel_broker.security.tokens import Token

ID = "0123456789ab"
SECRET = "s" * 43
TEXT = f"twk_{ID}_{SECRET}"
NOW_MS = 1_900_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1_000, UTC)


class Verifier:
    """Stands in for argon2, and counts. The hash of a secret is the secret itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        monkeypatch.setattr(tokens, "matching", self.matching)

    def matching(self, secret: str, hashes: Sequence[str]) -> str:
        self.calls += 1
        return secret if secret in hashes else ""


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> Verifier:
    return Verifier(monkeypatch)


def known(**fields: object) -> dict[str, Token]:
    values = {"hash": SECRET, **fields}
    return {ID: Token(id=ID, name="shop", grants=[], created_ms=0, **values)}  # type: ignore[arg-type]


def guess(number: int) -> str:
    return f"twk_{number:012x}_{'g' * 43}"


async def test_a_good_token_is_verified_once(verifier: Verifier) -> None:
    logins = Logins(ManualClock(NOW))
    for _ in range(100):
        assert await logins.judge(TEXT, known(), "192.0.2.1:1") == (ID, SECRET)
    assert verifier.calls == 1


async def test_what_is_remembered_ends_with_the_hash(verifier: Verifier) -> None:
    logins = Logins(ManualClock(NOW))
    await logins.judge(TEXT, known(), "192.0.2.1:1")
    with pytest.raises(BadToken):
        await logins.judge(TEXT, known(hash="another"), "192.0.2.1:1")
    with pytest.raises(BadToken):
        await logins.judge(TEXT, {}, "192.0.2.1:1")


async def test_the_secret_before_is_good_until_its_time_is_over(verifier: Verifier) -> None:
    clock = ManualClock(NOW)
    logins = Logins(clock)
    rotated = known(hash="new", previous_hash=SECRET, previous_until_ms=NOW_MS + 1_000)
    assert await logins.judge(TEXT, rotated, "192.0.2.1:1") == (ID, SECRET)
    logins.admit(rotated[ID], SECRET)
    clock.advance(timedelta(seconds=1))
    with pytest.raises(BadToken):
        await logins.judge(TEXT, rotated, "192.0.2.1:1")
    with pytest.raises(BadToken, match="rotated"):
        logins.admit(rotated[ID], SECRET)


async def test_admission() -> None:
    logins = Logins(ManualClock(NOW))
    for fields, error in (({"expires_ms": NOW_MS}, TokenExpired), ({"revoked_ms": 1}, TokenRevoked)):
        with pytest.raises(error):
            logins.admit(known(**fields)[ID], SECRET)
    with pytest.raises(TokenRevoked):
        logins.admit(None, SECRET)
    assert logins.admit(known()[ID], SECRET) == known()[ID]


async def test_the_same_text_that_is_no_token_is_no_new_guess(verifier: Verifier) -> None:
    logins = Logins(ManualClock(NOW))
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(BadToken, match="form"):
            await logins.judge("nonsense", known(), "192.0.2.1:1")
    await logins.judge(TEXT, known(), "192.0.2.1:1")


async def test_the_same_wrong_token_is_no_new_guess(verifier: Verifier) -> None:
    logins = Logins(ManualClock(NOW))
    for _ in range(100):
        with pytest.raises(BadToken):
            await logins.judge(guess(1), known(), "192.0.2.1:1")
    assert verifier.calls == 1
    await logins.judge(TEXT, known(), "192.0.2.1:1")
    logins.forget_bad()
    with pytest.raises(BadToken):
        await logins.judge(guess(1), known(), "192.0.2.1:1")
    assert verifier.calls == 3


async def test_a_token_that_is_made_while_it_is_judged_is_not_wrong_for_ever(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = Logins(ManualClock(NOW))

    def matching(secret: str, hashes: Sequence[str]) -> str:
        trio.from_thread.run_sync(logins.forget_bad)  # the file was read anew, and has it now
        return verifier.matching(secret, hashes)

    monkeypatch.setattr(tokens, "matching", matching)
    with pytest.raises(BadToken):
        await logins.judge(TEXT, {}, "192.0.2.1:1")
    assert await logins.judge(TEXT, known(), "192.0.2.1:1") == (ID, SECRET)


@pytest.mark.parametrize("make", [guess, lambda number: f"nonsense {number}"])
async def test_who_guesses_has_to_wait(
    verifier: Verifier, make: Callable[[int], str], autojump_clock: trio.testing.MockClock
) -> None:
    logins = Logins(ManualClock(NOW))
    for number in range(MAX_FAILURES):
        with pytest.raises(BadToken):
            await logins.judge(make(number), known(), f"192.0.2.1:{number}")
    calls = verifier.calls
    with pytest.raises(TooManyAttempts, match=r"10 failed log-ins from 192\.0\.2\.1; wait 60 s"):
        await logins.judge(make(99), known(), "192.0.2.1:99")
    assert verifier.calls == calls
    with pytest.raises(BadToken):
        await logins.judge(make(99), known(), "192.0.2.2:99")
    await trio.sleep(WINDOW_S)
    with pytest.raises(BadToken):
        await logins.judge(make(100), known(), "192.0.2.1:99")


async def test_attempts_that_are_not_decided_count(autojump_clock: trio.testing.MockClock) -> None:
    attempts = Attempts()
    begun = [attempts.begin("192.0.2.1:1") for _ in range(MAX_FAILURES)]
    with pytest.raises(TooManyAttempts):
        attempts.begin("192.0.2.1:1")
    attempts.succeeded("192.0.2.1:1", begun[0])
    attempts.begin("192.0.2.1:1")


async def test_addresses_are_not_remembered_without_end(autojump_clock: trio.testing.MockClock) -> None:
    attempts = Attempts()
    for number in range(30_000):
        attempts.begin(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1")
    assert len(attempts._failures) == 10_000


async def test_only_so_many_wait_for_their_turn(verifier: Verifier) -> None:
    logins = Logins(ManualClock(NOW))
    refused = 0

    async def log_in(number: int) -> None:
        nonlocal refused
        try:
            await logins.judge(guess(number), known(), f"10.0.{number >> 8}.{number & 255}:1")
        except TooManyAttempts:
            refused += 1
        except BadToken:
            pass

    async with trio.open_nursery() as nursery:
        for number in range(MAX_WAITING + 50):
            nursery.start_soon(log_in, number)
    assert 0 < refused <= 50
    assert verifier.calls == MAX_WAITING + 50 - refused


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("192.0.2.7:5", "192.0.2.7"),
        ("::ffff:192.0.2.7:5", "192.0.2.7"),
        ("2001:db8::1:2:3:4:5", "2001:db8::/64"),
        ("fe80::1%eth0:5", "fe80::/64"),
        ("gone", "gone"),
    ],
)
def test_whom_a_failure_is_held_against(peer: str, network: str) -> None:
    assert network_of(peer) == network
