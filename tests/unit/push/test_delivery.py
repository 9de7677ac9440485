"""What becomes of a message when the process ends: while its request is on its way, and after its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from tests.unit.push.fakes import Group, Servers, clocks, endpoint
from tickwheel import ReceiptResult
from tickwheel_push.delivery import GIVE_BACK_S, Deliveries
from tickwheel_push.gate import Gate
from tickwheel_push.http.addresses import location_of
from tickwheel_push.http.answer import Answer, Result
from tickwheel_push.http.request import Request
from tickwheel_push.outcome import Kind, Outcome
from tickwheel_push.tally import Tally
from tickwheel_push.target import rules_of

REQUEST = Request("POST", location_of("https://hooks.example.com/in"), [], b"")


class Ending:
    """A message is carried, and the process has to end after a second."""

    def __init__(self, takes_s: float, answers_after_s: float = 0.0, status: int = 200) -> None:
        self.group = Group()
        self.group.takes_s = takes_s
        self._tally = Tally()
        self._answers_after_s, self._status = answers_after_s, status
        self.deliveries = Deliveries(self.group, self._tally.of("shop"), clocks(), lambda: None)
        (self.due,) = self.group.put()

    async def _answer(self, _: Request) -> Result:
        await trio.sleep(self._answers_after_s)
        return Answer(self._status)

    def figure(self, name: str) -> bool:
        """Whether that figure of the endpoint is 1."""
        return f'tickwheel_push_{name}{{endpoint="shop"}} 1.0' in self._tally.text()[0].decode()

    async def carry(self, gone: Callable[[], Awaitable[None]] | None = None) -> None:
        gate = Gate(max_in_flight=1)
        gate.began()

        async def told_gone(_: Outcome) -> None:
            if gone is not None:
                await gone()

        with trio.move_on_after(1) as scope:
            rules = rules_of(endpoint())
            async with self.deliveries.last_words.watched():
                await self.deliveries.carry(
                    self.due, REQUEST, Servers(self._answer), 60, rules, gate, gone=told_gone
                )
        assert scope.cancelled_caught


@pytest.mark.promise("when-a-call-is-cancelled")
async def test_what_was_answered_is_acked(autojump_clock: MockClock) -> None:
    ending = Ending(takes_s=1.5)
    await ending.carry()
    assert ending.group.done == [("ack", 1)]
    assert not ending.figure("unsettled_total")


async def test_a_broker_that_says_nothing_for_too_long(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending(takes_s=1 + GIVE_BACK_S + 1)
    await ending.carry()
    assert ending.group.done == []
    assert ending.figure("unsettled_total")
    assert "message 1 of 'orders' was answered (delivered), but the broker did not take that" in caplog.text


async def test_what_was_not_answered_is_given_back(autojump_clock: MockClock) -> None:
    ending = Ending(takes_s=1.5, answers_after_s=60)
    await ending.carry()
    assert ending.group.done == [("give_back", 1)]


async def test_what_waits_and_what_can_never_go(autojump_clock: MockClock) -> None:
    ending = Ending(takes_s=1.5)
    with trio.move_on_after(1):
        async with ending.deliveries.last_words.watched(), trio.open_nursery() as nursery:
            nursery.start_soon(ending.deliveries.postpone, ending.due, 5_000)
            nursery.start_soon(ending.deliveries.settle, ending.due, Outcome(Kind.DEAD, error="no"))
    assert sorted(ending.group.done) == [("give_up", 1, "no"), ("postpone", 1, 5_000)]


async def test_an_endpoint_that_has_gone_while_the_process_ends(autojump_clock: MockClock) -> None:
    """What is told of the endpoint is interrupted, and its message is given back all the same."""
    ending = Ending(takes_s=1.5, status=410)
    await ending.carry(gone=trio.sleep_forever)
    assert ending.group.done == [("postpone", 1, 0)]


async def test_a_message_that_could_not_become_a_dead_letter_is_not_settled(
    autojump_clock: MockClock,
) -> None:
    ending = Ending(takes_s=0)
    ending.group.result = ReceiptResult.NACKED
    await ending.deliveries.settle(ending.due, Outcome(Kind.DEAD, error="no"))
    assert ending.figure("unsettled_total")
