"""Times of tasks."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import _state
from celery.utils.time import maybe_make_aware
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frameworks.celery_apps import app_of
from tickwheel import sync
from tickwheel.celery.eta import ETA_HEADER, eta_ms, held_back, put_back
from tickwheel.errors import BadArgument
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.testing import TestBroker

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


@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC", None])
def test_a_time_without_a_zone_is_what_a_worker_of_celery_takes_it_for(
    shared: TestBroker, client: sync.Client, zone: str | None, enable_utc: bool
) -> None:
    """Whichever app and thread it is sent by."""
    eta = datetime(2031, 5, 1, 9, 30, 0, 1)
    queue = f"{str(zone).replace('/', '-')}-{enable_utc}"
    first, second = (
        app_of(f"{queue}-{number}", shared.url, timezone=zone, enable_utc=enable_utc) for number in range(2)
    )
    other = app_of(f"{queue}-other", shared.url, timezone="Australia/Sydney")

    def send_all() -> None:
        for app in (first, second):
            app.send_task("report", eta=eta, queue=queue)
            app.send_task("report", eta=eta.isoformat(), queue=queue)

    for current in (first, second, other):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_state._tls, "current_app", current)
            patched.setattr(_state, "default_app", current)  # that of other threads
            send_all()
            thread = threading.Thread(target=send_all)
            thread.start()
            thread.join()
    as_celery = maybe_make_aware(eta, first.timezone, naive_as_utc=True)
    assert as_celery == eta.replace(tzinfo=UTC)
    due = [one.deliver_at for one in client.browse(queue)]
    assert due == [as_celery.astimezone(UTC).replace(microsecond=1_000)] * 24  # never earlier


@pytest.mark.parametrize("eta", ["2031-04-30T23:59:59.999000001Z", "2031-04-30T23:59:60Z"])
def test_nothing_of_a_time_is_lost(eta: str) -> None:
    assert eta_ms(eta, None) == eta_ms("2031-05-01T00:00:00Z", None)


@pytest.mark.parametrize("eta", ["tomorrow", 17])
def test_what_is_no_time(eta: Any) -> None:
    with pytest.raises(BadArgument, match="eta="):
        eta_ms(eta, None)


@pytest.mark.parametrize("name", ["deliver_at", "delay", "delay_ms", "run_after"])
def test_a_time_under_a_name_that_celery_passes_over(
    shared: TestBroker, client: sync.Client, name: str
) -> None:
    queue = f"other-{name}"
    app = app_of(queue, shared.url)
    app.send_task("report", queue=queue)
    with pytest.raises(BadArgument, match=f"{name} is no option"):
        app.send_task("report", queue=queue, **{name: 60})
    assert len(list(client.browse(queue))) == 1


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
