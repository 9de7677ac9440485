"""A cron expression of the broker has the times of Celery's crontab, and is written as that is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.celery.beat.cron import cron_expression
from tickwheel.celery.beat.errors import NotOnBroker

APP = Celery("of-cron", set_as_current=False)
BEGIN = datetime.fromisoformat("2026-11-21T08:07:00+00:00")


@table(
    ("schedule", "expression"),
    [
        (crontab(), "* * * * *"),
        (
            crontab(minute="*/15", hour="2"),
            "*/15 2 * * *",
        ),  # the star decides what clocks that change do to it
        (crontab(minute="0,30", hour="2"), "0,30 2 * * *"),
        (crontab(minute="0-59", hour="0-23"), "0-59 0-23 * * *"),
        (crontab(minute=30, hour=7, day_of_week="monday"), "30 7 * * MON"),
        (crontab("0, 30", 0, day_of_week="tue,thu"), "0,30 0 * * TUE,THU"),
        (crontab(0, 0, day_of_week="fri-mon"), "0 0 * * 0,1,5,6"),
        (crontab(0, 0, day_of_week="mon-sun"), "0 0 * * *"),
        (crontab(0, "22-6/2"), "0 0,2,4,6,22 * * *"),
        (crontab(minute=[30, 0], hour=range(8, 18)), "0,30 8-17 * * *"),
        (crontab(minute=set(range(60))), "* * * * *"),
        (crontab(0, 0, day_of_month="2", month_of_year="january-march"), "0 0 2 JAN-MAR *"),
        (crontab(0, 0, day_of_month="1-31", day_of_week="tue"), "0 0 * * TUE"),
        (crontab(0, 9, day_of_month="*/2", day_of_week="mon"), "0 9 */2 * MON"),  # cron wants both then, too
    ],
)
def test_it_is_written_as_it_was(schedule: crontab, expression: str) -> None:
    assert cron_expression(schedule) == expression


def test_both_kinds_of_days_are_not_for_the_broker() -> None:
    with pytest.raises(NotOnBroker, match="both day_of_month and day_of_week"):
        cron_expression(crontab(0, 9, day_of_month="1-7", day_of_week="mon"))


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map("{0[0]}-{0[1]}".format)
    step = st.tuples(st.one_of(st.just("*"), span), st.integers(1, high)).map("{0[0]}/{0[1]}".format)
    return st.lists(st.one_of(one, span, step), min_size=1, max_size=3).map(",".join) | st.just("*")


@st.composite
def crontabs(draw: Callable[..., Any]) -> crontab:
    minute, hour, month = (draw(numbers(low, high)) for low, high in ((0, 59), (0, 23), (1, 12)))
    day, weekday = draw(
        st.one_of(st.tuples(numbers(1, 28), st.just("*")), st.tuples(st.just("*"), numbers(0, 6)))
    )
    return crontab(minute, hour, weekday, day, month, app=APP)


@given(crontabs())
def test_the_times_are_the_same(schedule: crontab) -> None:
    wanted, moment = [], BEGIN
    for _ in range(4):
        last, delta, _ = schedule.remaining_delta(moment)
        moment = last + delta
        wanted.append(moment.astimezone(BEGIN.tzinfo))
    assert list(islice(CronSim(cron_expression(schedule), BEGIN), 4)) == wanted


def test_the_longest_expression_fits() -> None:
    odd = [range(1, 60, 2), range(1, 24, 2), range(1, 32, 2), range(1, 13, 2)]
    expression = cron_expression(
        crontab(minute=odd[0], hour=odd[1], day_of_month=odd[2], month_of_year=odd[3])
    )
    assert len(expression) <= 256
    assert timedelta(0) < next(CronSim(expression, BEGIN)) - BEGIN
