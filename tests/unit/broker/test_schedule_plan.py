"""Which slots a schedule has, also when clocks change, and what becomes of those that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.schedule_plan import (
    LATE_MS,
    LEAD_MS,
    MOST_CAUGHT_UP,
    Schedule,
    check,
    due_ms,
    due_slots,
    key_of,
    slots,
    upcoming,
    wake_ms,
)
from tickwheel.protocol.errors import BadSchedule

HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def local(schedule: Schedule, after: str, count: int) -> list[str]:
    """The next slots as local times with their offsets."""
    zone = ZoneInfo(schedule.tz)
    found = upcoming(schedule, ms(after), count)
    return [
        datetime.fromtimestamp(slot / 1000, UTC).astimezone(zone).isoformat(timespec="minutes")
        for slot in found
    ]


def cron(expression: str, tz: str = "UTC", **fields: object) -> Schedule:
    return Schedule(name="s", topic="t", cron=expression, tz=tz, **fields)  # type: ignore[arg-type]


def every(interval_ms: int, **fields: object) -> Schedule:
    return Schedule(name="s", topic="t", every_ms=interval_ms, **fields)  # type: ignore[arg-type]


def test_working_days() -> None:
    assert local(cron("0 9 * * MON-FRI", "Europe/Paris"), "2026-11-20T12:00+01:00", 3) == [
        "2026-11-23T09:00+01:00",
        "2026-11-24T09:00+01:00",
        "2026-11-25T09:00+01:00",
    ]


def test_leap_days_and_the_end_of_a_year() -> None:
    assert local(cron("0 0 29 2 *"), "2026-01-01T00:00+00:00", 2) == [
        "2028-02-29T00:00+00:00",
        "2032-02-29T00:00+00:00",
    ]
    assert local(cron("59 23 31 12 *"), "2026-12-31T23:59+00:00", 1) == ["2027-12-31T23:59+00:00"]


@pytest.mark.parametrize(
    ("tz", "day", "offset", "expected"),
    [
        ("Europe/Paris", "2026-03-28", "+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("America/New_York", "2026-03-07", "-05:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
    ],
)
def test_a_time_in_the_hour_that_is_skipped_comes_right_after_it(
    tz: str, day: str, offset: str, expected: list[str]
) -> None:
    assert local(cron("30 2 * * *", tz), f"{day}T12:00{offset}", 2) == expected


@pytest.mark.parametrize(
    ("tz", "before", "expected"),
    [
        ("Europe/Paris", "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("America/New_York", "2026-10-31T12:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
    ],
)
def test_a_time_in_the_hour_that_is_repeated_comes_once(tz: str, before: str, expected: list[str]) -> None:
    minute_hour = "30 2" if tz == "Europe/Paris" else "30 1"
    assert local(cron(f"{minute_hour} * * *", tz), before, 2) == expected


def test_steps_go_on_by_elapsed_time_when_clocks_change() -> None:
    for day in ("2026-03-29T00:00+01:00", "2026-10-25T00:00+02:00"):
        found = upcoming(cron("*/30 * * * *", "Europe/Paris"), ms(day), 12)
        assert {later - earlier for earlier, later in pairwise(found)} == {HOUR_MS // 2}


@pytest.mark.parametrize(
    "bad",
    [
        {"cron": "every day"},
        {"cron": "0 25 * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 9 * * *", "tz": "Mars/Olympus"},
        {"cron": "0 9 * * *", "tz": "../etc"},
        {"cron": "0 9 * * *", "every_ms": 5},
        {},
    ],
)
def test_what_cannot_be_a_schedule(bad: dict[str, object]) -> None:
    with pytest.raises(BadSchedule):
        check(Schedule(name="s", topic="t", **bad))  # type: ignore[arg-type]


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 10**12))
def test_intervals_are_anchored(interval_ms: int, start_ms: int, after_ms: int) -> None:
    found = list(islice(slots(every(interval_ms, start_ms=start_ms), after_ms), 3))
    assert found[0] > after_ms or found[0] == start_ms
    assert found[0] - interval_ms <= max(after_ms, start_ms - 1)
    assert [(slot - start_ms) % interval_ms for slot in found] == [0, 0, 0]


def test_it_ends() -> None:
    assert upcoming(every(10, until_ms=25), 0, 9) == [10, 20]
    assert wake_ms(every(10, until_ms=25, last_slot_ms=20)) is None
    assert wake_ms(every(10, paused=True)) is None


def test_a_message_is_sent_ahead_unless_the_one_before_decides() -> None:
    schedule = every(60_000, last_slot_ms=60_000)
    assert wake_ms(schedule) == 120_000 - LEAD_MS
    assert due_slots(schedule, 120_000 - LEAD_MS) == ([120_000], 0, 120_000)
    careful = every(60_000, last_slot_ms=60_000, overlap="skip")
    assert wake_ms(careful) == 120_000
    assert due_slots(careful, 119_999) == ([], 0, 60_000)


@pytest.mark.parametrize(
    ("policy", "sent", "missed"),
    [("none", [], 3), ("last", [240_000], 2), ("all", [120_000, 180_000, 240_000], 0)],
)
def test_what_was_missed(policy: str, sent: list[int], missed: int) -> None:
    schedule = every(60_000, last_slot_ms=60_000, catch_up=policy)
    now_ms = 240_000 + LATE_MS + 1
    assert due_slots(schedule, now_ms) == (sent, missed, 240_000)


def test_a_slot_in_time_takes_the_place_of_the_last_missed_one() -> None:
    assert due_slots(every(60_000, last_slot_ms=60_000), 240_000) == ([240_000], 2, 240_000)


def test_catching_up_is_bounded() -> None:
    found, missed, reached_ms = due_slots(every(1_000, catch_up="all"), 10_000_000)
    assert len(found) == MOST_CAUGHT_UP
    assert missed + len(found) == len(range(0, reached_ms, 1_000))
    assert found[-1] == reached_ms


@given(st.integers(0, 10**12), st.integers(1, 10**7))
def test_the_place_in_the_window_is_always_the_same(slot_ms: int, window_ms: int) -> None:
    schedule = every(1, window_ms=window_ms)
    assert 0 <= due_ms(schedule, slot_ms) - slot_ms < window_ms
    assert due_ms(schedule, slot_ms) == due_ms(schedule, slot_ms)


def test_the_longest_name_makes_a_key() -> None:
    assert len(key_of(Schedule(name="n" * 128, topic="t"), 253_402_300_799_999)) <= 255
