"""Backups are restored in simulated time while clients live on; what goes wrong without a new timeline is found."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulation.seeds import in_order
from tests.support.run.profile import amount
from tickwheel_simulation.restores.run import Histories, run_restores
from timerlog.recovery import timeline
from timerlog.tables.tables import Tables

MANY_SEEDS = 30


def found(*signs: str, first: int = 0) -> bool:
    """Whether one of some seeds finds the defect, which shows in one of these ways. `first`: a seed that did."""
    for seed in in_order(first, MANY_SEEDS):
        if violation := run_restores(seed):
            assert any(sign in violation for sign in signs), violation
            return True
    return False


@pytest.mark.promise("when-the-log-has-another-past")
def test_nobody_settles_what_is_another_ones() -> None:
    seen: list[Histories] = []
    for seed in range(amount("restore_seeds")):
        assert run_restores(seed, seen.append) == "", f"seed {seed}"
    assert all(histories.now and histories.acks for histories in seen)
    assert any(histories.refused for histories in seen), "acks of what was received before a restore"


def test_a_restored_log_that_goes_on_as_if_nothing_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault as it was: the log has its old next id, and no client learns of it."""

    def goes_on(mark: timeline.Mark, tables: Tables, *_: object, **__: object) -> bool:
        tables.timeline = mark.timeline
        return False

    monkeypatch.setattr(timeline, "begin", goes_on)
    assert found("was given to", "an ack of", "has cancelled another message", "never handled")


def test_a_restored_log_without_a_gap_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    record = timeline._record

    def without(*args: Any) -> Any:
        whole = record(*args)
        return replace(whole, next_id=whole.gap_start)

    monkeypatch.setattr(timeline, "_record", without)
    assert found("was given to", "has cancelled another message")
