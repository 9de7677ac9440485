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
        method="GET",
        path="/v1/schedules",
        answering=schedules.list_schedules,
        summary="List the schedules of topics that the token sees",
        right="any",
        answers={200: Schedules},
        problems=(),
        query=PageQuery,
    ),
    Endpoint(
        method="POST",
        path="/v1/schedules/preview",
        answering=schedules.preview_schedule,
        summary="Which times a schedule would have, and which clocks that change skip or repeat; it is not created",
        right="any",
        answers={200: Preview},
        problems=(408, 413, 415),
        requests={JSON: Rhythm},
        example={"cron": "30 2 * * *", "tz": "Europe/Paris", "count": 3, "from": "2031-03-28T00:00:00Z"},
    ),
    Endpoint(
        method="GET",
        path=_ONE,
        answering=schedules.get_schedule,
        summary="Look at a schedule",
        right=_LOOK,
        answers={200: Schedule},
        problems=(404,),
    ),
    Endpoint(
        method="PUT",
        path=_ONE,
        answering=schedules.put_schedule,
        summary="Create a schedule, or replace all that it says; how far it is stays",
        right=_SEND,
        answers={200: Schedule, 201: Schedule},
        problems=(404, 408, 409, 413, 415),
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
        method="DELETE",
        path=_ONE,
        answering=schedules.delete_schedule,
        summary="End a schedule; what waits for its time is cancelled",
        right=_SEND,
        answers={200: DeletedSchedule},
        problems=(404,),
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/trigger",
        answering=schedules.trigger_schedule,
        summary="Send the message of a schedule now, beside the rhythm",
        right=_SEND,
        answers={200: Triggered},
        problems=(404, 413),
        headers={"Idempotency-Key": "Up to 64 characters. With the same one it is sent once."},
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/pause",
        answering=schedules.pause_schedule,
        summary="Send nothing until it is resumed",
        right=_SEND,
        answers={200: Schedule},
        problems=(404,),
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/resume",
        answering=schedules.resume_schedule,
        summary="Go on with the next time",
        right=_SEND,
        answers={200: Schedule},
        problems=(404,),
    ),
    Endpoint(
        method="GET",
        path=f"{_ONE}/next",
        answering=schedules.get_next_times,
        summary="The next times of a schedule",
        right=_LOOK,
        answers={200: Times},
        problems=(404,),
        query=NextQuery,
    ),
)
