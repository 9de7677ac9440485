"""The messages of a job that are rejected: in which order they are known, and which of them are new."""

from __future__ import annotations

import numpy as np

from timerlog.bulk.job import Rejects
from timerlog.bulk.write import Segment
from timerlog.layout import UInt64Array


def ids(*numbers: int) -> UInt64Array:
    return np.array(numbers, np.uint64)


def rejects() -> Rejects:
    segments = [
        Segment(file=f"{first_id}.log", first_id=first_id, messages=10, bytes=0, hours=[])
        for first_id in (10, 30)
    ]
    found = Rejects(segments)
    found.add(ids(35, 12), ids(3, 11))
    found.add(ids(31), ids(4))
    return found


def test_new_rejects_are_those_behind_the_known() -> None:
    found = rejects()
    assert [found.since(count).tolist() for count in range(4)] == [[35, 12, 31], [12, 31], [31], []]
    assert found.add_raced([39, 15], [50, 51])
    assert not found.add_raced([39], [52])
    assert [found.since(count).tolist() for count in (2, 3, 4, 5)] == [[31, 39, 15], [39, 15], [15], []]
    assert len(found) == 5
    assert found.inside == 1


def test_all_rejects_are_sorted_and_have_the_message_with_their_key() -> None:
    found = rejects()
    found.add_raced([39, 15], [50, 51])
    assert found.sorted_ids().tolist() == [12, 15, 31, 35, 39]
    assert dict(found) == {35: 3, 12: 11, 31: 4, 39: 50, 15: 51}
    assert Rejects([]).sorted_ids().tolist() == []
