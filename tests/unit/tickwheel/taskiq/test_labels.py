"""What labels say of a message, whatever Taskiq made of them before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tickwheel.errors import BadArgument, BadTime
from tickwheel.taskiq.broker import key_of
from tickwheel.taskiq.labels import Wishes, wishes_of

NINE = datetime(2031, 5, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("labels", "wishes"),
    [
        ({}, Wishes(None, None, None, None, 0)),
        ({"delay": "3"}, Wishes(3_000, None, None, None, 0)),
        ({"delay": 0.0001}, Wishes(1, None, None, None, 0)),  # never early
        ({"delay": 0.07}, Wishes(70, None, None, None, 0)),
        ({"delay": "1.0001"}, Wishes(1_001, None, None, None, 0)),
        ({"deliver_at": str(NINE)}, Wishes(None, NINE, None, None, 0)),
        (
            {"deliver_at": "2031-05-01T08:59:59.999999001Z"},
            Wishes(None, NINE, None, None, 0),
        ),
        ({"deliver_at": "2031-05-01T09:00:00"}, Wishes(None, NINE, None, None, 0)),
        ({"priority": "7", "key": 17}, Wishes(None, None, 7, "17", 0)),
        ({"_retries": "2", "X-Taskiq-requeue": "1"}, Wishes(None, None, None, None, 3)),
        # What a retry's middleware says is newer than the time of the first attempt.
        ({"delay": "5.0", "deliver_at": str(NINE), "_retries": 1}, Wishes(5_000, None, None, None, 1)),
        ({"deliver_at": str(NINE), "_retries": 1}, Wishes(None, NINE, None, None, 1)),
    ],
)
def test_labels_as_taskiq_hands_them_over(labels: dict[str, Any], wishes: Wishes) -> None:
    assert wishes_of(labels) == wishes


def test_a_moment_keeps_its_zone() -> None:
    at = datetime(2031, 5, 1, 9, tzinfo=timezone(timedelta(hours=2)))
    assert wishes_of({"deliver_at": at}).deliver_at == at


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ({"delay": "-1"}, BadTime),
        ({"delay": "inf"}, BadTime),
        ({"delay": "x"}, BadTime),
        ({"deliver_at": "noon"}, BadTime),
        ({"priority": "-1"}, BadArgument),
        ({"priority": "1.5"}, BadArgument),
        ({"_retries": "many"}, BadArgument),
    ],
)
def test_what_cannot_be_is_named(labels: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"The label {next(iter(labels))} is"):
        wishes_of(labels)


def test_a_retry_has_another_key() -> None:
    assert key_of("id", wishes_of({})) == "id"
    assert key_of("id", wishes_of({"_retries": 2})) == "id:2"
    assert key_of("id", wishes_of({"key": "mine", "_retries": 2})) == "mine:2"
