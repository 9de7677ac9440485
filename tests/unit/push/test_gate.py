"""How many requests may begin: in flight, rate, pauses, circuit breaker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickwheel.protocol.breaker import FAILURES, FIRST_STEP_S, LONGEST_STEP_S, Breaker
from tickwheel_push.gate import FIRST_PAUSE_S, LONGEST_PAUSE_S, Failing, Gate, Room
from tickwheel_push.outcome import Kind, Outcome

FAILED = Outcome(Kind.RETRY)
DONE = Outcome(Kind.DELIVERED, is_success=True)
BUSY = Outcome(Kind.RETRY, pauses=True)


def busy(pause_ms: int) -> Outcome:
    return Outcome(Kind.RETRY, pauses=True, pause_ms=pause_ms)


def test_no_more_than_may_be_in_flight() -> None:
    gate = Gate(3)
    assert gate.room(0.0) == Room(3)
    gate.began()
    gate.began()
    assert gate.room(0.0) == Room(1)
    gate.began()
    assert gate.room(0.0) == Room(0)
    gate.change(5, None)
    assert gate.room(0.0) == Room(2)
    gate.change(1, None)
    assert gate.room(0.0) == Room(0)
    gate.ended()
    gate.ended()
    gate.ended()
    assert gate.room(0.0) == Room(1)


def test_a_rate_is_kept() -> None:
    gate = Gate(1_000, rate_per_s=10)
    now, begun = 100.0, 0
    while now < 110.0:
        room = gate.room(now)
        for _ in range(room.count):
            gate.began()
            begun += 1
        assert gate.room(now).count == 0
        now = gate.room(now).again_at + 1e-9
    assert 100 <= begun <= 101


@given(st.floats(0.01, 10_000), st.lists(st.floats(0.0, 0.5), max_size=60))
def test_no_rate_is_exceeded(rate: float, steps: list[float]) -> None:
    gate = Gate(100_000, rate)
    now, begun = 0.0, 0
    for step in steps:
        now += step
        for _ in range(gate.room(now).count):
            gate.began()
            begun += 1
        assert begun <= max(1.0, rate * 0.1) + now * rate + 1e-6


def test_the_circuit_opens_after_so_many_failures_in_a_row() -> None:
    gate = Gate(50)
    for _ in range(FAILURES - 1):
        gate.told(FAILED, 0.0)
    gate.told(DONE, 0.0)
    for _ in range(FAILURES - 1):
        gate.told(FAILED, 0.0)
    assert gate.room(0.0) == Room(50)
    assert gate.breaker.state(0.0) == "closed"
    gate.told(FAILED, 0.0)
    assert gate.room(0.0) == Room(0, FIRST_STEP_S)
    assert gate.breaker.state(0.0) == "open"


def test_one_probe_a_step_until_one_succeeds() -> None:
    gate = Gate(50)
    now = 0.0
    for _ in range(FAILURES):
        gate.told(FAILED, now)
    steps = []
    for _ in range(9):
        again_at = gate.room(now).again_at
        steps.append(again_at - now)
        now = again_at
        assert gate.room(now) == Room(1)
        gate.began()
        assert gate.room(now).count == 0
        assert gate.breaker.state(now) == "half_open"
        gate.ended()
        gate.told(FAILED, now)
    assert steps == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, *[LONGEST_STEP_S] * 3]
    gate.told(DONE, now)
    assert gate.room(now) == Room(50)
    for _ in range(FAILURES):
        gate.told(FAILED, now)
    assert gate.room(now).again_at == now + FIRST_STEP_S


def test_failures_that_were_on_their_way_make_one_step() -> None:
    breaker = Breaker()
    for _ in range(FAILURES + 30):
        breaker.failed(10.0)
    assert breaker.probe_at == 10.0 + FIRST_STEP_S
    breaker.failed(12.0)
    assert breaker.probe_at == 10.0 + FIRST_STEP_S


def test_a_pause_lasts_as_long_as_was_asked_for() -> None:
    gate = Gate(5)
    gate.told(busy(60_000), 0.0)
    gate.told(busy(10_000), 1.0)
    assert gate.room(2.0) == Room(0, 60.0)
    assert gate.room(60.0) == Room(5)


def test_pauses_of_unsaid_length_grow_and_one_answer_makes_them_short_again() -> None:
    gate = Gate(5)
    now, pauses = 0.0, []
    for _ in range(8):
        gate.told(BUSY, now)
        gate.told(BUSY, now)  # of the same time: the pause is known already
        again_at = gate.room(now).again_at
        pauses.append(again_at - now)
        now = again_at
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    gate.told(DONE, now)
    gate.told(BUSY, now)
    assert gate.room(now).again_at == now + FIRST_PAUSE_S


def test_a_probe_waits_for_the_end_of_a_pause() -> None:
    gate = Gate(5)
    for _ in range(FAILURES):
        gate.told(busy(60_000), 0.0)
    assert gate.room(FIRST_STEP_S) == Room(0, 60.0)
    assert gate.room(60.0) == Room(1)


def test_what_fails_is_known_with_its_first_failure_and_its_next_try() -> None:
    gate = Gate(50)
    assert gate.failing(0.0) is None
    later = Outcome(Kind.RETRY, delay_ms=300_000, error="HTTP 503 later")
    gate.told(later, 10.0)
    gate.told(Outcome(Kind.RETRY, delay_ms=5_000, error="timeout"), 20.0)
    assert gate.failing(20.0) == Failing("timeout", 10.0, 25.0)
    assert gate.failing(30.0) == Failing("timeout", 10.0, 310.0), "the message that was not taken at 10 s"
    assert gate.failing(400.0) == Failing("timeout", 10.0, None), "none is known that is still to come"
    gate.told(Outcome(Kind.DEAD, error="HTTP 500"), 500.0)
    assert gate.failing(500.0) == Failing("HTTP 500", 10.0, None)
    gate.told(DONE, 600.0)
    assert gate.failing(600.0) is None
    gate.told(later, 700.0)
    assert gate.failing(700.0) == Failing("HTTP 503", 700.0, 1_000.0)


def test_while_the_circuit_is_open_the_next_try_is_the_next_probe() -> None:
    gate = Gate(50)
    for _ in range(FAILURES):
        gate.told(Outcome(Kind.RETRY, delay_ms=300_000, error="HTTP 503"), 10.0)
    assert gate.failing(11.0) == Failing("HTTP 503", 10.0, 10.0 + FIRST_STEP_S)
    gate.told(busy(60_000), 20.0)
    assert gate.failing(21.0) == Failing("", 10.0, 80.0), "as the endpoint asked"
