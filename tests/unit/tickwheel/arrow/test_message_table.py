"""How reading messages is shared out among tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tickwheel.arrow.message_table import MessagesPart, split_messages
from tickwheel.arrow.predicates import Predicate

MILLION = 1_000_000


def directories(*next_ids: int, gaps: tuple[tuple[int, int], ...] = ()) -> list[Any]:
    return [
        SimpleNamespace(description=SimpleNamespace(first_id=1, next_id=one, gaps=[*gaps]))
        for one in next_ids
    ]


@pytest.mark.parametrize(
    ("messages", "cores", "parts"),
    [(10, 8, 1), (MILLION, 8, 1), (10 * MILLION, 2, 2), (10 * MILLION, 4, 4), (10 * MILLION, 64, 10),
     (100 * MILLION, 2, 20)],
)  # fmt: skip
def test_each_core_has_work_worth_a_task(messages: int, cores: int, parts: int) -> None:
    found = split_messages(directories(messages + 1), None, [], cores)
    assert len(found) == parts
    assert (found[0].first_id, found[-1].end_id) == (1, messages + 1)
    assert [one.end_id for one in found[:-1]] == [one.first_id for one in found[1:]]
    assert all(one.end_id - one.first_id <= 5 * MILLION for one in found)


def test_several_directories_share_the_cores() -> None:
    found = split_messages(directories(3 * MILLION + 1, 1, 3 * MILLION + 1), None, [], 2)
    assert found == [MessagesPart(0, 1, 3 * MILLION + 1), MessagesPart(2, 1, 3 * MILLION + 1)]


def test_who_says_how_many_rows_gets_them() -> None:
    found = split_messages(directories(8), 3, [], 64)
    assert found == [MessagesPart(0, 1, 4), MessagesPart(0, 4, 7), MessagesPart(0, 7, 8)]


def test_an_id_spares_the_others() -> None:
    wanted = [Predicate("id", "equal", 5_500_000, negated=False)]
    assert split_messages(directories(9 * MILLION), None, wanted, 2) == [
        MessagesPart(0, 5_500_000, 5_500_001)
    ]
    assert split_messages(directories(10), None, [Predicate("id", "equal", 50, negated=False)], 2) == []


def test_ids_that_no_message_has_are_nobodys_task() -> None:
    """Each restore of a backup leaves millions of them out."""
    gaps = ((11, 3_000 * MILLION), (3_000 * MILLION + 5, 5_000 * MILLION))
    found = directories(5_000 * MILLION + 20, gaps=gaps)
    assert split_messages(found, None, [], 2) == [MessagesPart(0, 1, 5_000 * MILLION + 20)]
    after = [Predicate("id", "greater_equal", 3_000 * MILLION + 2, negated=False)]
    parts = split_messages(found, 10, after, 2)
    assert [(one.first_id, one.end_id) for one in parts] == [
        (3_000 * MILLION + 2, 5_000 * MILLION + 7),
        (5_000 * MILLION + 7, 5_000 * MILLION + 17),
        (5_000 * MILLION + 17, 5_000 * MILLION + 20),
    ]
    inside = [Predicate("id", "equal", 2_000 * MILLION, negated=False)]
    assert split_messages(found, None, inside, 2) == []
