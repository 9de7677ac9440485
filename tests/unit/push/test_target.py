"""An endpoint: as many requests at a time as it can bear, and each message settled by what was answered. Nothing waits
in real time here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.push.fakes import ALLOWED, Group, Servers, always, clocks, endpoint
from tickwheel import Endpoint, NotConnected, ReceiptResult
from tickwheel.protocol.breaker import FAILURES, FIRST_STEP_S
from tickwheel_push.delivery import LONGEST_LEASE_S, MARGIN_S
from tickwheel_push.http.answer import Answer, NoAnswer, Result
from tickwheel_push.http.request import Request
from tickwheel_push.taking import LONGEST_RETRY_S, WAIT_S
from tickwheel_push.tally import Tally
from tickwheel_push.target import Target


class Running:
    """A target, and all that it speaks with."""

    def __init__(self, servers: Servers, group: Group | None = None, **fields: object) -> None:
        self.group = group or Group()
        self.servers = servers
        self.disabled: list[tuple[Endpoint, str]] = []
        self.tally = Tally()
        self.endpoint = endpoint(**fields)
        self.target = Target(
            endpoint=self.endpoint,
            queue=self.group,
            exchange=servers,
            allowed=ALLOWED,
            tally=self.tally.of("shop"),
            disable=self.disable,
            clocks=clocks(),
        )

    async def disable(self, endpoint: Endpoint, reason: str) -> None:
        self.disabled.append((endpoint, reason))

    def value(self, name: str, **labels: str) -> float:
        found = self.tally._registry.get_sample_value(
            f"tickwheel_push_{name}", {"endpoint": "shop", **labels}
        )
        return found or 0.0


@asynccontextmanager
async def running(servers: Servers | None = None, **fields: object) -> AsyncIterator[Running]:
    one = Running(servers or Servers(), **fields)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.target.run)
        yield one
        nursery.cancel_scope.cancel()


async def test_2xx_acks_and_the_lateness_is_told(autojump_clock: MockClock) -> None:
    async with running() as one:
        await trio.sleep(2)
        one.group.put(3)
        await wait_all_tasks_blocked()
        assert sorted(one.group.acked()) == [1, 2, 3]
        assert one.value("attempts_total", outcome="delivered") == 3
        assert one.value("answers_total", answer="2xx") == 3
        assert one.value("first_attempt_lateness_seconds_sum") == pytest.approx(6.0)
        assert one.value("delivery_lateness_seconds_count") == 3


@pytest.mark.parametrize(
    ("result", "attempt", "done"),
    [
        (Answer(500, excerpt=b"oops"), 1, ("retry", 1, 5_000, "HTTP 500 oops")),
        (NoAnswer("timeout", "late"), 2, ("retry", 1, 60_000, "timeout: late")),
        (Answer(503), 3, ("give_up", 1, "HTTP 503")),
        (Answer(302), 1, ("retry", 1, 5_000, "HTTP 302")),
        (Answer(422), 1, ("give_up", 1, "HTTP 422")),
        (Answer(202, {"tickwheel-lease": "10m"}), 1, ("hold", 1, 600_000)),
    ],
)
async def test_what_is_answered_settles(
    result: Result, attempt: int, done: tuple[object, ...], autojump_clock: MockClock
) -> None:
    async with running(Servers(always(result)), give_up_on=[422], may_hold=True) as one:
        one.group.put(attempt=attempt)
        await wait_all_tasks_blocked()
        assert one.group.done == [done]


async def test_a_lateness_of_a_first_attempt_is_told_once(autojump_clock: MockClock) -> None:
    async with running() as one:
        one.group.put(attempt=2)
        await wait_all_tasks_blocked()
        assert one.value("first_attempt_lateness_seconds_count") == 0
        assert one.value("delivery_lateness_seconds_count") == 1


async def test_no_more_in_flight_than_allowed_and_the_rest_stays_in_the_broker(
    autojump_clock: MockClock,
) -> None:
    free = trio.Event()

    async def waits(request: Request) -> Result:
        await free.wait()
        return Answer(200)

    async with running(Servers(waits), max_in_flight=3) as one:
        one.group.put(10)
        await wait_all_tasks_blocked()
        assert (one.servers.in_flight, len(one.group.ready)) == (3, 7)
        one.target.tell()
        assert one.value("in_flight") == 3
        free.set()
        await wait_all_tasks_blocked()
        assert (one.servers.most_in_flight, len(one.group.acked())) == (3, 10)


async def test_a_hanging_endpoint_delays_no_other(autojump_clock: MockClock) -> None:
    async def hangs(request: Request) -> Result:
        await trio.sleep(300)
        return NoAnswer("timeout", "")

    async with running(Servers(hangs), max_in_flight=2) as slow, running(max_in_flight=2) as other:
        for _ in range(100):
            slow.group.put()
            other.group.put()
            await trio.sleep(1)
        assert other.servers.times() == [float(second) for second in range(100)]
        assert len(other.group.acked()) == 100
        assert len(slow.servers.seen) == 2


async def test_a_rate_is_kept(autojump_clock: MockClock) -> None:
    async with running(rate_per_s=2.0) as one:
        one.group.put(5)
        await trio.sleep(60)
        assert one.servers.times() == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


async def test_after_many_failures_probes_go_alone_until_one_succeeds(autojump_clock: MockClock) -> None:
    servers = Servers(always(Answer(500)))
    async with running(servers, max_in_flight=10) as one:
        one.group.put(100)
        await trio.sleep(FIRST_STEP_S - 1)
        begun = len(servers.seen)
        assert FAILURES <= begun < FAILURES + 10
        one.target.tell()
        assert one.value("breaker") == 1
        await trio.sleep(32)  # steps of 5, 10 and 20 s
        assert len(servers.seen) == begun + 3
        assert [count for when, count in one.group.asked if when >= FIRST_STEP_S] == [1, 1, 1]
        servers.answer = None
        await trio.sleep(41)
        assert not one.group.ready
        one.target.tell()
        assert one.value("breaker") == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_endpoint_is_left_alone_for_as_long_as_it_says(
    status: int, autojump_clock: MockClock
) -> None:
    servers = Servers(always(Answer(status, {"retry-after": "120"}), Answer(200)))
    async with running(servers, max_in_flight=1) as one:
        one.group.put(3)
        await trio.sleep(119)
        assert one.group.done == [("retry", 1, 120_000, f"HTTP {status}")]
        assert len(one.group.ready) == 2
        await trio.sleep(2)
        assert servers.times() == [0.0, 120.0, 120.0]


async def test_what_is_asked_for_while_a_pause_begins_goes_back(autojump_clock: MockClock) -> None:
    async def busy_later(request: Request) -> Result:
        await trio.sleep(5)
        return Answer(429, {"retry-after": "100"})

    async with running(Servers(busy_later), max_in_flight=2) as one:
        one.group.put()
        await trio.sleep(10)  # meanwhile a second one was waited for
        assert one.group.asked == [(0.0, 2), (0.0, 1)]
        one.group.put()
        await trio.sleep(90)
        assert len(one.group.ready) == 1
        await trio.sleep(10)
        assert not one.group.ready


async def test_gone_disables_and_keeps_the_messages(autojump_clock: MockClock) -> None:
    async with running(Servers(always(Answer(410, excerpt=b"moved out"))), max_in_flight=2) as one:
        one.group.put(5)
        await trio.sleep(1_000)
        assert {reason for _, reason in one.disabled} == {"HTTP 410 moved out"}
        assert sorted(one.group.done) == [("postpone", 1, 0), ("postpone", 2, 0)]
        assert len(one.group.ready) == 3
        assert one.value("attempts_total", outcome="gone") == 2


async def test_what_was_called_before_a_change_says_nothing_of_what_it_is_now(
    autojump_clock: MockClock,
) -> None:
    async def moved(request: Request) -> Result:
        await trio.sleep(3)
        return Answer(410)

    servers = Servers(moved)
    async with running(servers, max_in_flight=1) as one:
        one.group.put(2)
        await trio.sleep(1)
        servers.answer = always(Answer(200))
        one.target.change(endpoint(url="https://other.example.com/in", max_in_flight=1, version=2))
        await trio.sleep(10)
        assert one.disabled == []
        assert one.group.done == [("postpone", 1, 0), ("ack", 2)]


async def test_a_want_of_our_own_is_no_attempt_and_no_failure(autojump_clock: MockClock) -> None:
    wants = NoAnswer("connection", "too many open files", is_ours=True)
    async with running(Servers(always(*[wants] * 30, Answer(200))), max_in_flight=1) as one:
        one.group.put(31)
        await trio.sleep(10)
        assert one.group.done == [*(("postpone", number, 1_000) for number in range(1, 31)), ("ack", 31)]


async def test_an_outcome_that_the_broker_does_not_hear_of_is_no_ack(autojump_clock: MockClock) -> None:
    answered = trio.Event()

    async def answers(request: Request) -> Result:
        await answered.wait()
        return Answer(200)

    async with running(Servers(answers)) as one:
        one.group.put()
        await wait_all_tasks_blocked()
        one.group.error = NotConnected()
        answered.set()
        await wait_all_tasks_blocked()
        assert one.group.done == []
        assert one.value("unsettled_total") == 1
        assert one.value("attempts_total", outcome="delivered") == 0


async def test_an_outcome_that_came_too_late_is_counted(autojump_clock: MockClock) -> None:
    async with running() as one:
        one.group.result = ReceiptResult.STALE_RECEIPT
        one.group.put()
        await wait_all_tasks_blocked()
        assert one.value("unsettled_total") == 1


async def test_without_a_broker_it_asks_now_and_then(autojump_clock: MockClock) -> None:
    async with running() as one:
        one.group.error = NotConnected()
        await trio.sleep(WAIT_S)  # the one that waits already
        one.group.asked.clear()
        await trio.sleep(100)
        assert 15 <= len(one.group.asked) <= 40
        one.group.error = None
        one.group.put()
        await trio.sleep(LONGEST_RETRY_S)
        assert one.group.acked() == [1]


async def test_a_lease_is_longer_than_a_request_may_take(autojump_clock: MockClock) -> None:
    async with running(timeout_ms=20_000) as one:
        await wait_all_tasks_blocked()
        assert one.group.leases_s == [20 + MARGIN_S]


async def test_the_lease_of_a_long_request_is_renewed(autojump_clock: MockClock) -> None:
    async def slow(request: Request) -> Result:
        await trio.sleep(280)
        return Answer(200)

    async with running(Servers(slow), timeout_ms=300_000) as one:
        one.group.put()
        await trio.sleep(281)
        lease_s = LONGEST_LEASE_S + MARGIN_S
        assert one.group.leases_s[0] == lease_s
        held = [what for what in one.group.done if what[0] == "hold"]
        assert len(held) == 280 // (lease_s / 3)
        assert one.group.done[-1] == ("ack", 1)


async def test_stopped_it_ends_what_is_in_flight_and_takes_nothing_more(autojump_clock: MockClock) -> None:
    async def slow(request: Request) -> Result:
        await trio.sleep(10)
        return Answer(200)

    one = Running(Servers(slow))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.target.run)
        one.group.put(2)
        await trio.sleep(1)
        one.target.stop()
        one.group.put(2)
    assert trio.current_time() == 10
    assert sorted(one.group.acked()) == [1, 2]
    assert len(one.group.ready) == 2


async def test_cancelled_it_gives_back_what_was_not_answered(autojump_clock: MockClock) -> None:
    async def hangs(request: Request) -> Result:
        await trio.sleep_forever()
        raise AssertionError

    async with running(Servers(hangs)) as one:
        one.group.put(2)
        await wait_all_tasks_blocked()
    assert sorted(one.group.done) == [("give_back", 1), ("give_back", 2)]


async def test_a_change_counts_from_the_next_message_on(autojump_clock: MockClock) -> None:
    async def slow(request: Request) -> Result:
        await trio.sleep(10)
        return Answer(500)

    servers = Servers(slow)
    async with running(servers, max_in_flight=1) as one:
        one.group.put(2)
        await trio.sleep(1)
        other = endpoint(
            url="https://other.example.com/new", max_in_flight=5, retry_delays_ms=[7_000], timeout_ms=30_000
        )
        one.target.change(other)
        await trio.sleep(1)
        assert [request.location.host for _, request in servers.seen] == [
            "hooks.example.com",
            "other.example.com",
        ]
        assert one.group.leases_s[-1] == 30 + MARGIN_S
        await trio.sleep(20)
        assert [what[2] for what in one.group.done] == [5_000, 7_000]
