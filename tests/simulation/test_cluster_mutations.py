"""The oracle is no rubber stamp in a cluster either: with a defect in replication some seed fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.simulation.seeds import in_order
from tickwheel_broker.broker import Broker
from tickwheel_broker.sharedlog.node import Node
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_broker.sharedlog.shared_log import AppendFailed
from tickwheel_simulation import run
from tickwheel_simulation.run import run_seed
from timerlog.recovery.opening import Recovery
from timerlog.recovery.replay import Replayer
from timerlog.replication.record import Kind, fence
from timerlog.replication.rule import Confirmations, Reader

HOURS = 0.01
MANY_SEEDS = 30


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEAL_S", 300.0)


def found(*signs: str, first: int = 0) -> bool:
    """Whether one of some seeds finds the defect, which shows in one of these ways. `first`: one that did."""
    for seed in in_order(first, MANY_SEEDS):
        report = run_seed(seed, HOURS, is_cluster=True)
        if report.violation:
            assert report.command == f"tickwheel simulate --seed {seed} --hours {HOURS:g} --cluster"
            assert any(sign in report.violation for sign in signs), report.violation
            return True
    return False


LOST = (
    "not delivered and acked",
    "is delivered to",
    "comes again",
    "given out twice",
    "is stale in",
    "not_found",
    "stored twice",
)
LOST += (
    "a node gives out",
    "was acked",
    "broker counts",
    "have the same id",
    "overtakes",
    "never_delivered",
    "is stored as",
)
LOST += ("was delivered before", "another state", "refused as", "was stored although", "already")
BROKEN = ("DamagedLog", "DamagedSharedLog", "has another state", "has other bytes", "gives another state")


def test_an_answer_across_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared log has the record, but nothing is known of what stands before it."""

    def placed(confirmations: Confirmations, seq: int, offset: int | None) -> int:
        confirmations.seq, confirmations.offset = max(confirmations.seq, seq), offset or 0
        return confirmations.seq

    monkeypatch.setattr(Confirmations, "placed", placed)
    assert found(*LOST, *BROKEN, first=2)


def test_a_beat_that_hides_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append fails, the owner goes on in the same term, and readers take its BEAT for a proof that they have all."""
    is_expected, append = Reader._is_expected, Replicator._append

    def is_about_expected(reader: Reader, head: Any) -> bool:
        state = reader._expected
        if head.kind is Kind.BEAT and (head.term, head.node) == (state.term, state.node) and state.term:
            reader.state = replace(state, seq=head.seq, chain=head.chain)
            return True
        return is_expected(reader, head)

    async def append_and_go_on(replicator: Replicator, records: list[bytes]) -> bool:
        try:
            with trio.move_on_after(0.5):
                return await append(replicator, records)
        finally:
            replicator._is_unsure = False
        return True

    monkeypatch.setattr(Reader, "_is_expected", is_about_expected)
    monkeypatch.setattr(Replicator, "_append", append_and_go_on)
    assert found(*LOST, *BROKEN)


def test_a_delivery_that_leaves_before_its_lease_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(broker: Broker, subscription: Any, frame: bytes) -> None:
        subscription.outgoing.put(frame)
        broker.commit.mark_dirty()
        broker.services.timers_changed()

    monkeypatch.setattr(Broker, "_deliver", at_once)
    assert found(*LOST)


def test_an_owner_that_serves_before_it_has_read_its_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(node: Node, follower: Any) -> bool:
        reader, number = follower.reader, node._number
        term = reader.state.term + 1
        try:
            await node._shared.append([fence(number, term, node._clock.now_ms())])
        except AppendFailed:
            return False
        reader.state = replace(reader.state, term=term, node=number, seq=1)
        return True

    monkeypatch.setattr(Node, "_take_over", at_once)
    assert found("defect", *LOST, *BROKEN)


def test_a_tail_that_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a former owner wrote, and never came to count, stays in its tables."""
    true = Recovery.catch_up

    def all_of_it(recovery: Recovery, _end: int) -> Any:
        return true(recovery, recovery.end)

    monkeypatch.setattr(Recovery, "catch_up", all_of_it)
    # Or it stops at once, or reads what lies behind the end.
    assert found(*LOST, *BROKEN, "in start_at", "is not what its columns say")


def test_a_key_index_that_is_not_kept_while_following(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Replayer.__init__

    def without_keys(replayer: Replayer, *args: Any, keeps_keys: bool = False) -> None:
        true(replayer, *args, keeps_keys=False)

    monkeypatch.setattr(Replayer, "__init__", without_keys)
    assert found(*LOST, *BROKEN, first=2)
