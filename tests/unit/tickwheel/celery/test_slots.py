"""Tasks that a schedule sends: one id for each slot, and an end that is counted from it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clients.strange import readable
from tickwheel.celery.slots import BEAT_HEADER, SCHEDULE_HEADER, Mark, Slot, fill_in, mark_of, slot_of
from tickwheel.protocol.limits import MAX_TIME_MS

AT_BROKER: dict[str, Any] = {
    SCHEDULE_HEADER: {"name": "celery.wages", "slot_ms": 1_793_000_000_000},
    BEAT_HEADER: {"app": "billing", "entry": "wages", "expires_ms": 90_000},
}


def test_a_slot_has_one_id_everywhere() -> None:
    slot = Slot("celery.wages", 1_793_000_000_000)
    assert (
        slot.task_id == "9808c508-c871-5116-ab27-212ada7d83e6"
    )  # it may never change: results are stored under it
    assert Slot("celery.wages", 1_793_000_000_001).task_id != slot.task_id
    assert Slot("celery.bonus", 1_793_000_000_000).task_id != slot.task_id


def test_a_message_becomes_the_task_of_its_slot() -> None:
    headers: dict[str, Any] = {"id": "of all", "root_id": "of all", "expires": None, "task": "pay"}
    properties: dict[str, Any] = {"correlation_id": "of all"}
    fill_in(AT_BROKER, headers, properties)
    task_id = Slot("celery.wages", 1_793_000_000_000).task_id
    assert headers["id"] == headers["root_id"] == properties["correlation_id"] == task_id
    assert headers["expires"] == "2026-10-26T07:34:50+00:00"  # 90 s after the slot


def test_without_an_end_the_header_stays() -> None:
    headers: dict[str, Any] = {"expires": "2027-01-01T00:00:00+00:00"}
    fill_in({**AT_BROKER, BEAT_HEADER: {"app": "billing", "entry": "wages"}}, headers, {})
    assert headers["expires"] == "2027-01-01T00:00:00+00:00"


def test_other_messages_stay_as_they_are() -> None:
    for at_broker in (
        {},
        {SCHEDULE_HEADER: AT_BROKER[SCHEDULE_HEADER]},  # somebody's own schedule, with an id that is meant
        {BEAT_HEADER: AT_BROKER[BEAT_HEADER]},
        {**AT_BROKER, SCHEDULE_HEADER: "17"},
        {**AT_BROKER, BEAT_HEADER: {"entry": 3}},
    ):
        headers: dict[str, Any] = {"id": "1"}
        fill_in(at_broker, headers, {})
        assert headers == {"id": "1"}


@pytest.mark.parametrize(
    "at_broker",
    [
        *readable(),
        {**AT_BROKER, SCHEDULE_HEADER: {"name": "x", "slot_ms": 1 << 62}},
        {**AT_BROKER, SCHEDULE_HEADER: {"name": "x", "slot_ms": -1}},
        {**AT_BROKER, BEAT_HEADER: {"app": "x", "entry": "y", "expires_ms": 1 << 62}},
    ],
)
def test_slots_that_others_wrote_are_none(at_broker: dict[str, Any]) -> None:
    headers: dict[str, Any] = {"id": "1"}
    fill_in(at_broker, headers, {})
    assert headers == {"id": "1"}


def test_the_end_of_time_is_the_latest_end() -> None:
    headers: dict[str, Any] = {}
    mark = {"app": "billing", "entry": "wages", "expires_ms": MAX_TIME_MS}
    fill_in({**AT_BROKER, BEAT_HEADER: mark}, headers, {})
    assert headers["expires"].startswith("9999-12-31")


def test_what_is_read_back() -> None:
    assert mark_of(AT_BROKER) == Mark("billing", "wages", 90_000)
    slot = slot_of(AT_BROKER)
    assert slot is not None
    assert slot.time.isoformat() == "2026-10-26T07:33:20+00:00"
