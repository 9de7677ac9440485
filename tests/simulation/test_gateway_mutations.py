"""The oracle is no rubber stamp for a gateway either: with a defect in it some seed fails."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio

from tests.simulation.seeds import in_order
from tickwheel import CancelResult, ReceiptResult
from tickwheel.errors import TickwheelError
from tickwheel.sharing.joining import Joined
from tickwheel_gateway.calls import recalling, receiving, sending
from tickwheel_gateway.calls.deciding import Deciding
from tickwheel_gateway.calls.receiving import Receiving
from tickwheel_gateway.delivery import dead_letters
from tickwheel_gateway.delivery.acking import Acking
from tickwheel_gateway.delivery.attempts import Attempts
from tickwheel_gateway.delivery.checks import Checks
from tickwheel_gateway.delivery.renewing import Renewing
from tickwheel_gateway.wire import messages
from tickwheel_gateway.wire.codes import Code
from tickwheel_gateway.wire.many import Sends
from tickwheel_simulation import run
from tickwheel_simulation.profile import Profile as AllOfIt
from tickwheel_simulation.rocketmq.profile import Profile

pytestmark = pytest.mark.ci

HOURS = 0.02
MANY_SEEDS = 20


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEAL_S", 150.0)


def found(*signs: str, first: int = 0) -> bool:
    """Whether one of some seeds finds the defect, which shows in one of these ways. `first`: a seed that did."""
    for seed in in_order(first, MANY_SEEDS):
        report = run.run_seed(seed, HOURS, has_gateway=True)
        if report.violation:
            assert report.command == f"tickwheel simulate --seed {seed} --hours {HOURS:g} --rocketmq"
            assert report.trace_tail
            assert any(sign in report.violation for sign in signs), report.violation
            return True
    return False


@pytest.fixture
def is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little goes wrong beside the defect: each fault ends what a lease is renewed for."""
    draw = AllOfIt.draw

    def calm(rng: Random) -> AllOfIt:
        drawn = draw(rng)
        network = replace(drawn.network, slow_piece=0.0, silent=0.0, cut_after_bytes=0.0, lost_answers=0.0)
        rates = {"kills": 0.0, "kills_in_calls": 0.0, "power_losses": 0.0, "stops": 0.0, "sync_errors": 0.0}
        more = {
            "write_errors": 0.0,
            "disk_full": 0.0,
            "cuts": 0.0,
            "jumps": 0.0,
            "slow_sync": 0.0,
            "stills": 0.0,
        }
        return replace(drawn, network=network, nights=0, **rates, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(AllOfIt, "draw", calm)


def drawn(monkeypatch: pytest.MonkeyPatch, **likely: float) -> None:
    """Makes something more likely than a seed does."""
    draw = Profile.draw

    def more(rng: Random) -> Profile:
        return replace(draw(rng), **likely)  # type: ignore[arg-type]

    monkeypatch.setattr(Profile, "draw", more)


def test_a_send_that_is_answered_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    true, made_up = Joined.results, iter(range(1 << 40, 1 << 41))

    async def hasty(joined: Joined) -> Any:
        with trio.move_on_after(0.05):
            return await true(joined)
        return [next(made_up) for _ in range(joined._count)]

    monkeypatch.setattr(Joined, "results", hasty)
    assert found(
        "not delivered and acked", "stored twice", "broker counts", "never decided", "sent before it"
    )


def test_an_ack_that_is_answered_without_the_brokers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Acking.ack

    async def hasty(acking: Acking, client: Any, group_id: int, receipts: Any) -> list[ReceiptResult]:
        results = [ReceiptResult.ACKED] * len(receipts)
        with trio.move_on_after(0.2):
            try:
                return await true(acking, client, group_id, receipts)
            except TickwheelError:
                return results
        return results

    monkeypatch.setattr(Acking, "ack", hasty)
    assert found("comes again", "broker counts", "lacks the ack", "counted, but")


@pytest.mark.usefixtures("is_quiet")
def test_leases_that_are_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rest(_renewing: Renewing) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Renewing, "_turn", rest)
    drawn(monkeypatch, slow=0.5, kills=0.0, stops=0.0, vanish=0.0)
    assert found("is given to another, while a client has it", first=1)


@pytest.mark.usefixtures("is_quiet")
def test_attempts_that_are_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one receive has handed out is given back when another one begins."""
    true = Attempts.handed

    def of_any(attempts: Attempts, caller: Any, _attempt_id: str) -> Any:
        for attempt in attempts._kept.values():
            return dict(attempt.handed)
        return true(attempts, caller, _attempt_id)

    monkeypatch.setattr(Attempts, "handed", of_any)
    assert found("is given to another, while a client has it", "is at attempt", "is stale in", "comes again")


def test_what_was_written_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Receiving._answer

    async def forgetful(answering: Receiving, asked: Any, wish: Any, hand: Any, found: Any) -> Code:
        code = await true(answering, asked, wish, hand, found)
        await receiving._give_back(asked.client, wish.topic, hand)
        return code

    monkeypatch.setattr(Receiving, "_answer", forgetful)
    assert found(
        "is given to another, while a client has it", "is at attempt", "is stale in", "two holders", first=2
    )


def test_a_recall_that_came_too_late_and_is_told_to_be_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    late = (CancelResult.ALREADY_DELIVERED, CancelResult.ALREADY_ACKED)
    monkeypatch.setattr(recalling, "_RECALLED", (*recalling._RECALLED, *late))
    assert found("is cancelled, but was delivered before", "was cancelled, and is delivered", first=5)


def test_what_a_filter_refuses_and_is_not_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Receiving._settle

    async def lazy(settling: Receiving, client: Any, topic: str, hand: Any, found: Any) -> None:
        hand.let_go(found.refused)
        found.refused.clear()
        await true(settling, client, topic, hand, found)

    monkeypatch.setattr(Receiving, "_settle", lazy)
    assert found("not delivered and acked", "has two holders", "overtakes")


def test_what_a_filter_refuses_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_is_wanted", lambda _chosen, _message: True)
    assert found("is not what the filter lets through")


def test_a_retry_that_is_stored_under_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1 << 30))
    monkeypatch.setattr(messages, "key_of", lambda message_id, _client: f"{message_id}.{next(numbers)}")
    drawn(monkeypatch, lost_answers=0.3)
    assert found("stored twice")


def test_a_dead_letter_that_is_acked_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(client: Any, _topic: str, dying: Any) -> ReceiptResult:
        (result,) = await client.ack(dying.group_id, [(dying.held.id, dying.epoch)])
        return ReceiptResult(result)

    monkeypatch.setattr(dead_letters, "_commit", lose)
    drawn(monkeypatch, fails=0.6, max_attempts=2)
    assert found("is no dead letter of it")


def test_a_dead_letter_before_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Receiving._wish

    def impatient(receiving: Receiving, asked: Any, request: Any) -> Any:
        wish = true(receiving, asked, request)
        return replace(wish, attempts=wish.attempts - 1)

    monkeypatch.setattr(Receiving, "_wish", impatient)
    drawn(monkeypatch, fails=0.6, max_attempts=3)
    assert found("attempts", "comes again")


def test_a_check_that_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def swallow(_checks: Checks, _topic: str, _message: Any) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    monkeypatch.setattr(Checks, "_ask", swallow)
    drawn(monkeypatch, undecided=1.0)
    assert found("were never decided")


def test_a_commit_that_rolls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Deciding.end

    async def confused(deciding: Deciding, asked: Any, request: Any) -> Any:
        request.resolution = 3 - request.resolution if request.resolution else 0
        return await true(deciding, asked, request)

    monkeypatch.setattr(Deciding, "end", confused)
    assert found(
        "was refused, and is delivered", "broker counts", "not delivered and acked", "was decided upon"
    )


def test_message_groups_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    true = sending._checked

    def without(*args: Any) -> Any:
        topic, sent = true(*args)
        return topic, [one._replace(order_key=None) for one in sent]

    monkeypatch.setattr(sending, "_checked", without)
    monkeypatch.setattr(Sends, "order_keys", lambda _, start, stop: [b""] * (stop - start))
    assert found("overtakes", "comes before", "comes as")
