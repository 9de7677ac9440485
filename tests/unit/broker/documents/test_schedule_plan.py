"""Which slots a schedule has, also when clocks change, and what becomes of those that were missed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.protocol.errors import BadSchedule
from tickwheel_broker.documents.schedule_slots import (
    LATE_MS,
    LEAD_MS,
    MOST_CAUGHT_UP,
    MOST_COUNTED,
    MOST_IN_WINDOW,
    STEP,
    WRONG_CLOCK_MS,
    Decision,
    Schedule,
    after_wrong_clock,
    check,
    decide,
    due_ms,
    handover_ms,
    key_of,
    merged,
    repeated,
    skipped_in_steps,
    slots,
    trigger_key,
    upcoming,
    upcoming_in_steps,
    waiting,
    wake_ms,
)

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


def decided(schedule: Schedule, now_ms: int) -> Decision:
    """The decision, without the steps before it."""
    *_, decision = decide(schedule, now_ms)
    assert decision is not None
    return decision


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


@pytest.mark.parametrize(
    ("tz", "start", "expected"),
    [
        ("Europe/Paris", "2026-10-25T02:30+01:00", "2026-10-26T02:45+01:00"),
        ("Europe/Paris", "2026-10-25T02:30+02:00", "2026-10-25T02:45+02:00"),
        ("America/New_York", "2026-11-01T02:30-05:00", "2026-11-01T02:45-05:00"),
    ],
)
def test_a_fixed_time_is_never_before_the_moment_it_is_asked_for(tz: str, start: str, expected: str) -> None:
    assert local(cron("45 2 * * *", tz), start, 1) == [expected]


EXPRESSIONS = [
    "45 2 * * *",
    "30 1 * * *",
    "15,45 1-3 * * *",
    "*/20 * * * *",
    "*/30 2 * * *",
    "0 * * * *",
    "7 0 * * SUN",
]
ZONES = ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Beirut", "UTC"]
HALF_HOURS = st.integers(0, 24 * 365 * 2).map(lambda n: ms("2026-01-01T00:00+00:00") + n * HOUR_MS // 2 + 7)


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), HALF_HOURS)
def test_slots_come_in_order_and_after_the_start(expression: str, tz: str, after_ms: int) -> None:
    found = [after_ms, *upcoming(cron(expression, tz), after_ms, 12)]
    assert all(later > earlier for earlier, later in pairwise(found))


FOLDS = ["2026-03-28T00:00+00:00", "2026-10-24T00:00+00:00"]


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(FOLDS), st.integers(0, 3 * 24 * 60))
def test_the_slots_do_not_depend_on_where_one_starts_to_look(expression: str, day: str, minutes: int) -> None:
    """A restart in the repeated hour neither loses a slot nor doubles one."""
    schedule, begin_ms = cron(expression, "Europe/Paris"), ms(day)
    middle_ms, end_ms = begin_ms + minutes * 60_000, begin_ms + 4 * 24 * HOUR_MS

    def between(after_ms: int) -> list[int]:
        return list(takewhile(lambda slot_ms: slot_ms <= end_ms, slots(schedule, after_ms)))

    assert between(middle_ms) == [slot_ms for slot_ms in between(begin_ms) if slot_ms > middle_ms]


def test_a_wildcard_minute_has_no_slot_in_the_hour_that_is_skipped() -> None:
    """Debian cron's rule: `30 2` is a time of day and comes right after the gap, `*/30 2` is not and is left out."""
    before = "2026-03-28T12:00+01:00"
    assert local(cron("30 2 * * *", "Europe/Paris"), before, 1) == ["2026-03-29T03:00+02:00"]
    assert local(cron("0,30 2 * * *", "Europe/Paris"), before, 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
    ]
    assert local(cron("*/30 2 * * *", "Europe/Paris"), before, 1) == ["2026-03-30T02:00+02:00"]
    assert local(cron("30 */2 * * *", "Europe/Paris"), "2026-03-29T00:45+01:00", 1) == [
        "2026-03-29T04:30+02:00"
    ]
    assert local(cron("0 30 2 * * *", "Europe/Paris"), before, 1) == ["2026-03-30T02:30+02:00"]


def test_a_wildcard_minute_comes_in_both_hours_when_one_is_repeated() -> None:
    assert local(cron("*/30 2 * * *", "Europe/Paris"), "2026-10-24T12:00+02:00", 5) == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-26T02:00+01:00",
    ]


def test_with_seconds_a_time_comes_in_both_hours_when_one_is_repeated() -> None:
    assert local(cron("0 30 2 * * *", "Europe/Paris"), "2026-10-24T12:00+02:00", 3) == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:30+01:00",
        "2026-10-26T02:30+01:00",
    ]


def test_the_slots_of_a_schedule_end_with_the_year_9999() -> None:
    late_ms = ms("9999-12-31T22:30+00:00")
    assert len(upcoming(cron("0 * * * *", "Europe/Paris"), late_ms, 5)) <= 1
    assert upcoming(cron("0 * * * *"), late_ms, 5) == [ms("9999-12-31T23:00+00:00")]


@pytest.mark.parametrize("tz", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_preview_ends_with_the_year_9999(tz: str) -> None:
    late_ms = ms("9999-12-31T23:59:59+00:00")
    assert list(skipped_in_steps(cron("0 0 1 1 *", tz), late_ms, late_ms)) == []
    assert list(skipped_in_steps(cron("30 2 * * *", tz), late_ms - 40 * 24 * HOUR_MS, late_ms)) == []
    assert repeated(every(HOUR_MS, tz=tz), late_ms) == ""


@pytest.mark.parametrize(
    ("schedule", "count", "breaks"),
    [
        (lambda: cron("* * * * *", "Europe/Paris"), 300, 300 // STEP),
        (lambda: every(HOUR_MS), 300, 300 // STEP),
        (lambda: cron("0 0 1 1 *"), 60, 60 // 6),
        (lambda: cron("0 0 29 2 */7"), 20, 20),  # each is 28 years after the one before
    ],
)
def test_what_takes_long_is_found_in_steps(schedule: Callable[[], Schedule], count: int, breaks: int) -> None:
    """Whether that is because there are many, or because they are rare."""
    now_ms = ms("2026-01-01T00:00+00:00")
    found = list(upcoming_in_steps(schedule(), now_ms, count))
    assert [one for one in found if one is not None] == upcoming(schedule(), now_ms, count)
    assert breaks - 1 <= found.count(None) <= breaks


def test_times_that_there_are_not_are_found_in_steps() -> None:
    rhythm, begin_ms = cron("30 2 * * *", "Europe/Paris"), ms("2026-01-01T00:00+00:00")
    found = list(skipped_in_steps(rhythm, begin_ms, ms("2028-12-31T00:00+00:00")))
    assert [one.date().isoformat() for one in found if one is not None] == [
        "2026-03-29",
        "2027-03-28",
        "2028-03-26",
    ]
    assert found.count(None) == 1_095 // STEP


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
        {"cron": "9" * 5_000 + " * * * *"},
        {"every_ms": 1_000, "window_ms": (MOST_IN_WINDOW + 1) * 1_000},
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
    assert decided(schedule, 120_000 - LEAD_MS) == Decision([120_000], 0, 120_000)
    careful = every(60_000, last_slot_ms=60_000, overlap="skip")
    assert wake_ms(careful) == 120_000
    assert decided(careful, 119_999) == Decision([], 0, 60_000)


def test_a_paused_schedule_sends_nothing() -> None:
    assert decided(every(60_000, last_slot_ms=60_000, paused=True), 600_000) == Decision([], 0, 60_000)


def test_what_is_not_caught_up_is_not_sent_ahead() -> None:
    """Else a message that lies in the wheel when the broker goes down would be delivered late when it comes back."""
    schedule = every(60_000, last_slot_ms=60_000, catch_up="none")
    assert wake_ms(schedule) == 120_000
    assert decided(schedule, 119_999) == Decision([], 0, 60_000)
    windowed = every(60_000, last_slot_ms=60_000, catch_up="none", window_ms=50_000)
    place_ms = due_ms(windowed, 120_000)
    assert place_ms > 120_000
    assert wake_ms(windowed) == handover_ms(windowed, 120_000) == place_ms
    assert decided(windowed, place_ms - 1) == Decision([], 0, 60_000)
    assert decided(windowed, place_ms) == Decision([120_000], 0, 120_000)
    assert decided(windowed, place_ms + LATE_MS + 1) == Decision([], 1, 120_000)


@pytest.mark.parametrize(
    ("policy", "sent", "missed"),
    [("none", [], 3), ("last", [240_000], 2), ("all", [120_000, 180_000, 240_000], 0)],
)
@pytest.mark.parametrize("make", [lambda **f: every(60_000, **f), lambda **f: cron("* * * * *", **f)])
def test_what_was_missed(make: Callable[..., Schedule], policy: str, sent: list[int], missed: int) -> None:
    schedule = make(last_slot_ms=60_000, catch_up=policy)
    now_ms = 240_000 + LATE_MS + 1
    assert decided(schedule, now_ms) == Decision(sent, missed, 240_000)


def test_a_slot_in_time_takes_the_place_of_the_last_missed_one() -> None:
    assert decided(every(60_000, last_slot_ms=60_000), 240_000) == Decision([240_000], 2, 240_000)


def test_a_slot_whose_place_in_the_window_has_not_come_is_not_late() -> None:
    schedule = every(HOUR_MS, window_ms=HOUR_MS - 1, catch_up="last")
    place_ms = due_ms(schedule, HOUR_MS)
    assert HOUR_MS + LATE_MS < place_ms < 2 * HOUR_MS - LEAD_MS
    assert decided(schedule, place_ms + LATE_MS) == Decision([HOUR_MS], 0, HOUR_MS)
    none_missed = every(HOUR_MS, window_ms=HOUR_MS - 1, catch_up="all")
    assert decided(none_missed, place_ms + LATE_MS + 1) == Decision([HOUR_MS], 0, HOUR_MS)


@pytest.mark.parametrize("schedule", [every(1_000, catch_up="all"), cron("* * * * * *", catch_up="all")])
def test_catching_up_is_bounded(schedule: Schedule) -> None:
    decision = decided(schedule, 10_000_000)
    in_time = (LATE_MS + LEAD_MS) // 1_000 + 1
    assert len(decision.slots) == MOST_CAUGHT_UP + in_time
    assert decision.missed + len(decision.slots) == decision.reached_ms // 1_000
    assert decision.slots[-1] == decision.reached_ms


YEAR_MS = 365 * 24 * HOUR_MS


@pytest.mark.parametrize("policy", ["none", "last", "all"])
def test_a_year_of_seconds_at_an_interval_is_arithmetic(policy: str) -> None:
    schedule = every(1_000, last_slot_ms=0, catch_up=policy)
    now_ms = YEAR_MS + LATE_MS + 1
    decision = decided(schedule, now_ms)
    assert decision.missed + len(decision.slots) == decision.reached_ms // 1_000
    assert len(list(decide(schedule, now_ms))) == 2, "one step, and the decision"


@pytest.mark.parametrize(("policy", "late"), [("none", 0), ("last", 0), ("all", MOST_CAUGHT_UP)])
def test_a_year_of_seconds_by_cron_takes_short_steps_and_not_many(policy: str, late: int) -> None:
    schedule = cron("* * * * * *", last_slot_ms=0, catch_up=policy)
    now_ms = YEAR_MS + 500
    *steps, decision = decide(schedule, now_ms)
    assert decision is not None
    assert len(steps) < 2 * MOST_COUNTED // STEP
    lead_ms = 0 if policy == "none" else LEAD_MS
    last_ms = YEAR_MS + lead_ms
    in_time = range(YEAR_MS - LATE_MS + 1_000, last_ms + 1, 1_000)
    assert decision.slots[-len(in_time) :] == list(in_time)
    assert len(decision.slots) == len(in_time) + late
    assert {later - earlier for earlier, later in pairwise(decision.slots)} == {1_000}
    assert MOST_COUNTED - MOST_CAUGHT_UP <= decision.missed <= MOST_COUNTED, "no more than this are counted"


@pytest.mark.parametrize(
    ("expression", "since"),
    [("* * * 1 *", 1994), ("0 9 * * *", 1986), ("*/7 3 * * SUN", 1986), ("* 9 1 * *", 1986)],
)
def test_the_last_slots_are_found_behind_a_gap(expression: str, since: int) -> None:
    """Beyond what is counted one by one, the last slots are looked for from the end: it must find the same ones."""
    schedule = cron(expression, "Europe/Paris", catch_up="all", last_slot_ms=ms(f"{since}-01-01T00:00+00:00"))
    now_ms = ms("1996-12-01T12:00+00:00")
    every_one = list(takewhile(lambda slot_ms: slot_ms <= now_ms, slots(schedule, schedule.last_slot_ms)))
    assert expression != "* * * 1 *" or len(every_one) > 2 * MOST_COUNTED, (
        "it is a gap behind what is counted"
    )
    assert decided(schedule, now_ms).slots == every_one[-MOST_CAUGHT_UP:]


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.sampled_from(["none", "last", "all"]),
)
def test_arithmetic_and_walking_agree(every_ms: int, start_ms: int, down_ms: int, policy: str) -> None:
    schedule = every(
        every_ms * 1_000, start_ms=start_ms, last_slot_ms=start_ms, catch_up=policy, overlap="skip"
    )
    now_ms = start_ms + down_ms
    come = list(takewhile(lambda slot_ms: slot_ms <= now_ms, slots(schedule, start_ms)))
    late = [slot_ms for slot_ms in come if slot_ms < now_ms - LATE_MS]
    in_time = come[len(late) :]
    kept = {"none": [], "last": [] if in_time else late[-1:], "all": late[-MOST_CAUGHT_UP:]}[policy]
    reached_ms = come[-1] if come else start_ms
    assert decided(schedule, now_ms) == Decision([*kept, *in_time], len(late) - len(kept), reached_ms)


def test_what_waits_can_be_named() -> None:
    schedule = every(1_000, last_slot_ms=105_000)
    assert waiting(schedule, 100_000, in_window=False) == [101_000, 102_000, 103_000, 104_000, 105_000]
    windowed = every(1_000, last_slot_ms=100_000, window_ms=10_000)
    assert waiting(windowed, 100_000, in_window=False) == []
    come = [slot for slot in range(91_000, 100_001, 1_000) if due_ms(windowed, slot) > 100_000]
    assert come
    assert waiting(windowed, 100_000, in_window=True) == come


def test_a_wrong_clock_does_not_silence_a_schedule() -> None:
    schedule = every(60_000, last_slot_ms=10 * WRONG_CLOCK_MS)
    assert after_wrong_clock(schedule, WRONG_CLOCK_MS).last_slot_ms == WRONG_CLOCK_MS
    near = every(60_000, last_slot_ms=WRONG_CLOCK_MS)
    assert after_wrong_clock(near, 0) is near, "a clock that is corrected must not repeat what was sent"


@pytest.mark.parametrize(
    "fields", [{"sent": 5}, {"nothing": 1}, {"start_ms": -1}, {"until_ms": 1 << 62}, {"priority": 256}]
)
def test_fields_that_cannot_be_set(fields: dict[str, object]) -> None:
    with pytest.raises(BadSchedule):
        merged(every(1_000), fields)


@given(st.integers(0, 10**12), st.integers(1, 10**7))
def test_the_place_in_the_window_is_always_the_same(slot_ms: int, window_ms: int) -> None:
    schedule = every(1, window_ms=window_ms)
    assert 0 <= due_ms(schedule, slot_ms) - slot_ms < window_ms
    assert due_ms(schedule, slot_ms) == due_ms(schedule, slot_ms)


def test_the_longest_name_makes_a_key() -> None:
    longest = Schedule(name="n" * 128, topic="t")
    assert len(key_of(longest, 253_402_300_799_999)) <= 255
    assert len(trigger_key(longest, "t" * 64)) <= 255


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cron": "x" * 300}, "cron must have at most 256 characters."),
        ({"priority": "high"}, "priority is a text, and must be a whole number or null."),
        ({"overlap": "never"}, "overlap is 'never'. There is allow, skip."),
    ],
)
def test_what_is_wrong_with_a_field_is_told_in_words(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(BadSchedule) as refused:
        merged(every(1_000), fields)
    assert str(refused.value).startswith(f"The schedule was not understood: {told}")
