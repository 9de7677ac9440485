"""Times of tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.celery.eta import ETA_HEADER, eta_ms, held_back, put_back
from tickwheel.errors import BadArgument
from tickwheel.protocol.limits import MAX_TIME_MS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Asia/Tokyo"), ZoneInfo("America/New_York")])))
def test_a_time_is_never_earlier_and_within_what_a_broker_takes(moment: datetime) -> None:
    found = eta_ms(moment.isoformat(), None)
    assert 1 <= found <= MAX_TIME_MS
    if 1 < found < MAX_TIME_MS:
        late = EPOCH + timedelta(milliseconds=found) - moment
        assert timedelta() <= late < timedelta(milliseconds=1)


def test_a_time_without_a_zone() -> None:
    tokyo = ZoneInfo("Asia/Tokyo")
    assert eta_ms("2031-05-01T09:00:00", tokyo) == eta_ms("2031-05-01T00:00:00+00:00", None)


@pytest.mark.parametrize("eta", ["2031-04-30T23:59:59.999000001Z", "2031-04-30T23:59:60Z"])
def test_nothing_of_a_time_is_lost(eta: str) -> None:
    assert eta_ms(eta, None) == eta_ms("2031-05-01T00:00:00Z", None)


@pytest.mark.parametrize("eta", ["tomorrow", 17])
def test_what_is_no_time(eta: Any) -> None:
    with pytest.raises(BadArgument, match="eta="):
        eta_ms(eta, None)


def test_headers_of_a_message_that_waits() -> None:
    given = {"task": "report", "eta": "2031-05-01T00:00:00+00:00", ETA_HEADER: "of an earlier one"}
    headers, due_ms = held_back(given, None)
    assert headers == {"task": "report", "eta": None, ETA_HEADER: given["eta"]}
    assert due_ms == 1_935_360_000_000
    assert given["eta"], "the caller's own stay as they are"


@pytest.mark.parametrize("given", [{"task": "report", "eta": None}, {"eta": "2031-05-01T00:00:00Z"}, {}])
def test_what_does_not_wait(given: dict[str, Any]) -> None:
    assert held_back({**given, ETA_HEADER: "of an earlier one"}, None) == (given, None)


def test_a_task_knows_its_eta_and_does_not_pass_it_on() -> None:
    request = SimpleNamespace(eta=None, headers={ETA_HEADER: "then", "trace": "1"}, **{ETA_HEADER: "then"})
    put_back(task=SimpleNamespace(request=request))
    assert (request.eta, request.headers) == ("then", {"trace": "1"})
    put_back(task=SimpleNamespace(request=SimpleNamespace(eta=None, headers=None)))
    put_back()
