"""The judge of what clients of RocketMQ see there and here: nothing slips through it."""

from __future__ import annotations

import json

import pytest

from tests.interop.rocketmq.known_differences import KNOWN
from tests.support.rocketmq.differences import Between, Known, OneOf, differences, observed


def seen(**fields: object) -> list[str]:
    return [json.dumps({"step": 1, "what": "sent", **fields})]


def compared(there: list[str], here: list[str], *known: Known) -> list[str]:
    return differences(observed(there), observed(here), known)


REFUSED = {"error": "BadRequestException", "code": 40_000}
CHANCE = Known(1, "sent", "count", Between(1, 3), OneOf((7, 8)), "chance")
MEANT = Known(1, "sent", "count", 1, 2, "meant")


def test_the_same_is_no_difference() -> None:
    assert (
        compared(seen(count=1, outcome=REFUSED), seen(count=1, outcome={**REFUSED, "error": "Other"})) == []
    )


@pytest.mark.parametrize(
    "here",
    [
        seen(count=2),
        seen(),
        [],
        seen(count=1) * 2,
        seen(count=1, more=True),
        [json.dumps({"step": 1, "what": "sent", "count": 1, "size": 1})],
    ],
)
def test_another_is_one(here: list[str]) -> None:
    assert compared(seen(count=1), here)
    assert compared(here, seen(count=1))


def test_an_error_is_its_code_or_its_class() -> None:
    assert compared(seen(outcome=REFUSED), seen(outcome={"error": "BadRequestException", "code": 40_001}))
    assert compared(seen(outcome={"error": "A", "code": None}), seen(outcome={"error": "B", "code": None}))


def test_times_may_be_a_little_apart() -> None:
    assert compared(seen(waits_s=[1, 5]), seen(waits_s=[3, 4])) == []
    assert compared(seen(waits_s=[1, 5]), seen(waits_s=[1, 8]))
    assert compared(seen(waits_s=[1, 5]), seen(waits_s=[1]))
    assert compared(seen(late_s={"a": 0}), seen(late_s={"b": 0}))


def test_what_is_known_must_be_so() -> None:
    assert compared(seen(count=1), seen(count=2), MEANT) == []
    assert compared(seen(count=1), seen(count=1), MEANT)
    assert compared(seen(count=2), seen(count=2), MEANT)
    assert compared(seen(other=1), seen(other=1), MEANT)
    assert compared([], [], MEANT)


def test_chance_has_bounds() -> None:
    assert compared(seen(count=3), seen(count=7), CHANCE) == []
    assert compared(seen(count=4), seen(count=7), CHANCE)
    assert compared(seen(count=3), seen(count=9), CHANCE)


def test_a_step_that_fails_on_both_is_a_defect() -> None:
    failed = [json.dumps({"step": 1, "what": "failed", "trace": "the same"})]
    assert compared(failed, failed)


def test_each_is_listed_once() -> None:
    for language in ("go", "java", "node", "python"):
        names = [(one.step, one.what, one.field) for one in KNOWN if language in one.of]
        assert len(names) == len(set(names))
