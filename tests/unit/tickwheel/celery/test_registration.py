"""What a worker is given at its start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from tickwheel.celery import registration
from tickwheel.celery.request import CELERYS, REQUEST
from tickwheel.celery.transport.message import Check


def test_retries_are_given_back_unless_the_app_has_a_request_of_its_own() -> None:
    plain, own = Celery("plain", set_as_current=False), Celery("own", set_as_current=False)
    assert plain.Task.Request == CELERYS  # so it is still called
    own.Task.Request = "shop.requests:Request"
    for app in (plain, own):
        registration.replace_request(SimpleNamespace(app=app))
    assert (plain.Task.Request, own.Task.Request) == (REQUEST, "shop.requests:Request")


def test_tasks_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Check] = []
    monkeypatch.setattr(registration, "CHECKS", checks)
    for _ in range(2):
        registration.check_tasks()
    assert len(checks) == 1
