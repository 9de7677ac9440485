"""The endpoints of recurring schedules."""

from __future__ import annotations

from typing import Final

from tickwheel_web.endpoints import Endpoint
from tickwheel_web.schedules import schedules
from tickwheel_web.schedules.shapes import (
    DeletedSchedule,
    NewSchedule,
    NextQuery,
    Preview,
    Rhythm,
    Schedule,
    Schedules,
    Times,
    Triggered,
)
from tickwheel_web.shapes import JSON, PageQuery

_ONE: Final = "/v1/schedules/{schedule}"
_SEND: Final = "publish:{topic}"
_LOOK: Final = "any on {topic}"

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET",
        "/v1/schedules",
        schedules.list_schedules,
        "List the schedules of topics that the token sees",
        "any",
        {200: Schedules},
        (),
        query=PageQuery,
    ),
    Endpoint(
        "POST",
        "/v1/schedules/preview",
        schedules.preview_schedule,
        "Which times a schedule would have, and which clocks that change skip or repeat; it is not created",
        "any",
        {200: Preview},
        (408, 413, 415),
        requests={JSON: Rhythm},
        example={"cron": "30 2 * * *", "tz": "Europe/Paris", "count": 3, "from": "2031-03-28T00:00:00Z"},
    ),
    Endpoint("GET", _ONE, schedules.get_schedule, "Look at a schedule", _LOOK, {200: Schedule}, (404,)),
    Endpoint(
        "PUT",
        _ONE,
        schedules.put_schedule,
        "Create a schedule, or replace all that it says; how far it is stays",
        _SEND,
        {200: Schedule, 201: Schedule},
        (404, 408, 409, 413, 415),
        requests={JSON: NewSchedule},
        leads_to=(
            schedules.get_schedule,
            schedules.get_next_times,
            schedules.pause_schedule,
            schedules.resume_schedule,
            schedules.trigger_schedule,
            schedules.delete_schedule,
        ),
        example={"topic": "chat", "cron": "0 9 * * MON-FRI", "tz": "Europe/Paris", "text": "stand-up!"},
    ),
    Endpoint(
        "DELETE",
        _ONE,
        schedules.delete_schedule,
        "End a schedule; what waits for its time is cancelled",
        _SEND,
        {200: DeletedSchedule},
        (404,),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/trigger",
        schedules.trigger_schedule,
        "Send the message of a schedule now, beside the rhythm",
        _SEND,
        {200: Triggered},
        (404, 413),
        headers={"Idempotency-Key": "Up to 64 characters. With the same one it is sent once."},
    ),
    Endpoint(
        "POST",
        f"{_ONE}/pause",
        schedules.pause_schedule,
        "Send nothing until it is resumed",
        _SEND,
        {200: Schedule},
        (404,),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/resume",
        schedules.resume_schedule,
        "Go on with the next time",
        _SEND,
        {200: Schedule},
        (404,),
    ),
    Endpoint(
        "GET",
        f"{_ONE}/next",
        schedules.get_next_times,
        "The next times of a schedule",
        _LOOK,
        {200: Times},
        (404,),
        query=NextQuery,
    ),
)
