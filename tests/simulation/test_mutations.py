"""The oracle is no rubber stamp: with a defect in the broker or the disk some seed fails, and says how to repeat it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.simulation.seeds import in_order
from tickwheel import Subscription
from tickwheel.client.consumer.holding import Holding
from tickwheel_broker.broker import Broker
from tickwheel_broker.delivery.subscriptions import Subscriptions
from tickwheel_broker.net.pulse import Pulse
from tickwheel_native import lib
from tickwheel_simulation import run
from tickwheel_simulation.disk import Inode
from tickwheel_simulation.profile import Profile
from timerlog.commitlog.addresses import END_POSITION
from timerlog.engine.change import Change
from timerlog.engine.deliver import Deliver
from timerlog.engine.look import Look
from timerlog.engine.produce import Produce
from timerlog.layout import DeliveryState
from timerlog.services.dequeue_get import DequeueGet
from timerlog.tables.answers import RememberedAnswers
from timerlog.tables.apply import Applier

HOURS = 0.004
MANY_SEEDS = 60


def found(*signs: str, hours: float = HOURS, first: int = 0) -> bool:
    """Whether one of some seeds finds the defect, which shows in one of these ways. `first`: a seed that did."""
    for seed in in_order(first, MANY_SEEDS):
        report = run.run_seed(seed, hours)
        if report.violation:
            assert report.command == f"tickwheel simulate --seed {seed} --hours {hours:g}"
            assert report.trace_tail
            assert any(sign in report.violation for sign in signs), report.violation
            return True
    return False


def mutate(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, defect: Callable[..., Any], every: int
) -> None:
    """Each so manieth call of a function goes to its defect, which is given the true one first."""
    true, calls = getattr(owner, name), count(1)

    def sometimes(*args: Any, **options: Any) -> Any:
        if next(calls) % every == 0:
            return defect(true, *args, **options)
        return true(*args, **options)

    monkeypatch.setattr(owner, name, sometimes)


def nothing(*_args: object, **_options: object) -> None:
    """What a call does that does nothing."""


@pytest.fixture
def power_fails_often(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Profile.draw

    def drawn(rng: Random) -> Profile:
        return replace(draw(rng), power_losses=1.5, slow_sync=0.3, sync_delay_s=0.05)

    monkeypatch.setattr(Profile, "draw", drawn)


@pytest.mark.usefixtures("power_fails_often")
def test_a_sync_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, Inode, "sync", nothing, every=3)
    assert found(
        "not delivered",
        "stored",
        "comes again",
        "damaged",
        "not that",
        "not_found",
        "broker counts",
        "same id",
        "is stale",
        first=1,
    )


@pytest.mark.promise("what-a-power-loss-can-undo")
@pytest.mark.usefixtures("power_fails_often")
def test_a_delivery_that_leaves_before_its_lease_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(broker: Broker, subscription: Any, frame: bytes) -> None:
        subscription.outgoing.put(frame)
        broker.commit.mark_dirty()
        broker.services.timers_changed()

    monkeypatch.setattr(Broker, "_deliver", at_once)
    assert found(
        "without a higher epoch",
        "was delivered before",
        "comes again",
        "overtakes",
        "is stale in",
        "not delivered",
        first=7,
    )


def test_a_wheel_that_fires_five_milliseconds_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(dequeue: Any, store: Any, now_ms: int, limit: int) -> Any:
        return dequeue(store, now_ms + 5, limit)

    def work(has_work: Any, store: Any, now_ms: int) -> Any:
        return has_work(store, now_ms + 5)

    mutate(monkeypatch, DequeueGet, "has_work", work, every=1)
    monkeypatch.setattr(DequeueGet, "next_wakeup_ms", lambda self: _minus(self._wheel.next_event_ms(), 5))
    mutate(monkeypatch, DequeueGet, "turn", early, every=1)
    assert found("ms early", "has two holders")


@pytest.fixture
def many_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """And little else happens, with short leases: a seed of four finds who is given messages then."""
    draw = Profile.draw

    def drawn(rng: Random) -> Profile:
        return replace(
            draw(rng),
            stills=4.0,
            ack_wait_ms=300,
            max_backoff_ms=2_000,
            pause_s=0.5,
            cuts=0.0,
            kills=0.0,
            kills_in_calls=0.0,
            power_losses=0.0,
            stops=0.0,
            nights=0,
        )

    monkeypatch.setattr(Profile, "draw", drawn)


@pytest.mark.promise("when-a-subscriber-stands-still")
@pytest.mark.usefixtures("many_stand_still")
def test_a_broker_that_does_not_notice_who_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pulse, "stands_still", lambda *_: False)
    monkeypatch.setattr(Pulse, "lapsed", nothing)
    assert found("stands still and is given messages", hours=0.015, first=1)


def _minus(time_ms: int | None, by_ms: int) -> int | None:
    return None if time_ms is None else time_ms - by_ms


def test_an_ack_that_is_confirmed_and_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, Applier, "ack", nothing, every=4)
    assert found("comes again", "has two holders", "not that", "another state", "broker counts", "overtakes")


@pytest.mark.promise("sending-twice")
def test_an_ack_of_an_earlier_delivery_that_is_confirmed_once_another_has_acked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = Deliver._ack_group

    def late(deliver: Deliver, group_id: int, receipts: memoryview, count: int, now_ms: int) -> int:
        ids = np.frombuffer(receipts, "<u8", count)
        accepted = true(deliver, group_id, receipts, count, now_ms)
        for index in np.flatnonzero(deliver._scratch.codes[:count] == lib.TW_STALE_RECEIPT):
            seq = deliver._tables.rows["topic_seq"][int(ids[index])]
            if deliver._tables.deliveries_of(group_id)["state"][seq] == DeliveryState.ACKED:
                deliver._scratch.codes[index] = lib.TW_ALREADY_ACKED
        return accepted

    monkeypatch.setattr(Deliver, "_ack_group", late)
    assert found("counted", first=3)


def test_a_send_that_is_stored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(ingest: Any, *args: Any) -> Any:
        ingest(*args)
        return ingest(*args)

    mutate(monkeypatch, Produce, "ingest", twice, every=1)
    assert found("stored twice", "broker counts", first=5)


@pytest.mark.promise("cancel-and-reschedule-racing-delivery")
def test_a_cancel_that_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(_cancel: Any, _store: Any, ids: Any, _now_ms: int, **_options: object) -> list[str]:
        return ["cancelled"] * len(ids)

    mutate(monkeypatch, Change, "cancel", lie, every=2)
    assert found("was cancelled", "is cancelled, but", "broker counts", first=6)


def test_a_batch_that_gets_lost_between_two_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEAL_S", 120.0)
    mutate(monkeypatch, DequeueGet, "turn", lambda dequeue, *args: dequeue(*args) and None, every=9)
    assert found("not delivered and acked", "broker counts", "of the same ordering key", first=10)


def test_a_counter_that_is_wrong_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(entry: Any, store: Any, topic_id: int) -> dict[str, Any]:
        right: dict[str, Any] = entry(store, topic_id)
        return right | {"cancelled": right["cancelled"] + 1}

    mutate(monkeypatch, Look, "topic_entry", wrong, every=1)
    assert found("broker counts")


@pytest.mark.promise("while-it-is-being-handled")
def test_leases_that_a_client_does_not_renew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holding, "turn", lambda _holding, _now: math.inf)
    assert found("while a client that is connected handles it", first=63)


@pytest.fixture
def stops_often(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Profile.draw

    def drawn(rng: Random) -> Profile:
        return replace(draw(rng), stops=4.0, ack_wait_ms=10_000, max_backoff_ms=10_000)

    monkeypatch.setattr(Profile, "draw", drawn)


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
@pytest.mark.usefixtures("stops_often")
def test_a_broker_that_gives_leases_back_when_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    drain, lose, stopping = Broker.drain, Subscriptions.lose, set()

    def drained(broker: Broker) -> None:
        stopping.add(broker.subscriptions)
        drain(broker)

    def lost(subscriptions: Subscriptions, subscription: Any) -> None:
        (Subscriptions.give_back if subscriptions in stopping else lose)(subscriptions, subscription)

    monkeypatch.setattr(Broker, "drain", drained)
    monkeypatch.setattr(Subscriptions, "lose", lost)
    assert found("has two holders", "is stale in", "overtakes", first=4)


@pytest.mark.promise("when-a-call-is-cancelled")
def test_a_subscription_that_is_cancelled_and_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEAL_S", 300.0)
    monkeypatch.setattr(Subscription, "_leave_at_once", nothing)
    assert found("without a reader", "not delivered and acked", first=1)


def test_a_replay_that_forgets_something(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(apply: Any, applier: Applier, group_id: int, runs: Any) -> None:
        if applier.is_replaying:
            return
        apply(applier, group_id, runs)

    monkeypatch.setattr(Applier, "is_replaying", property(_is_replaying), raising=False)
    mutate(monkeypatch, Applier, "ack", forget, every=1)
    assert found("not that", "another state", "comes again", "broker counts", "has two holders", "overtakes")


def _is_replaying(applier: Applier) -> bool:
    """While a log is replayed, nothing is staged at any place in it."""
    return int(applier.tables.native.staging_position) >= END_POSITION


@pytest.mark.promise("when-an-answer-is-lost")
def test_answers_that_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, RememberedAnswers, "add", nothing, every=1)
    assert found(
        "already", "not_found", "stored twice", "is stale", "prepared once", "only one deletes", first=1
    )
