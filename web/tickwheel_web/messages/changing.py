"""One message: look at it and its history, cancel it, change it, deliver it now or again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import UNSET
from starlette.responses import Response

from tickwheel import MessageInfo
from tickwheel.errors import MessageNotFound, TransactionRefused
from tickwheel_web import reading
from tickwheel_web.bodies import CONTENT_TYPE, FORMS, body_of, headers_of
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.messages.replacing import replace
from tickwheel_web.messages.shapes import Change, Changed, Event, Events, Redelivery, message_of
from tickwheel_web.problems import Refused
from tickwheel_web.shapes import duration_of, moment_of, or_none

_CANCELLED: Final = ("cancelled", "stopped", "already_cancelled")
_RESCHEDULED: Final = ("rescheduled",)
_REDELIVERED: Final = ("redelivered", "waiting")
_TOO_LATE: Final = {
    "already_delivered": "It has been delivered.",
    "already_acked": "It has been delivered and acked.",
    "already_cancelled": "It has been cancelled.",
    "expired": "It has expired.",
}


def _found(found: MessageInfo | None) -> Response:
    if found is None:
        raise MessageNotFound
    return json(message_of(found))


async def get_message(asked: Asked) -> Response:
    """By id."""
    return _found(await asked.client.message(id=asked.id))


async def get_message_by_key(asked: Asked) -> Response:
    """By topic and key."""
    return _found(await asked.client.message(asked.path("topic"), key=asked.path("key")))


async def get_events(asked: Asked) -> Response:
    """What has happened to it, read from the broker's log, in a process of its own."""
    found = await asked.client.history(id=asked.id, limit=asked.query.limit)
    if found is None:
        raise MessageNotFound
    return json(
        Events(str(found.id), found.topic, [Event.of(event) for event in found.events], found.missing)
    )


def _answer(result: str, done: Sequence[str]) -> Response:
    """What became of a change: done, too late, or there is no such message."""
    if result == "not_found":
        raise MessageNotFound
    if result not in done:
        raise Refused(409, result, f"{_TOO_LATE[result]} Nothing was changed.")
    return json(Changed(result))  # type: ignore[arg-type]


async def cancel_message(asked: Asked) -> Response:
    """By id."""
    return _answer(await asked.client.cancel(id=asked.id, stop=bool(asked.query.stop)), _CANCELLED)


async def cancel_message_by_key(asked: Asked) -> Response:
    """By topic and key."""
    stop, topic, key = bool(asked.query.stop), asked.path("topic"), asked.path("key")
    return _answer(await asked.client.cancel(topic, key=key, stop=stop), _CANCELLED)


async def change_message(asked: Asked) -> Response:
    """By id."""
    change = await reading.decode_large(Change, asked.body)
    if _is_other(change):
        return await _replace(asked, await asked.client.message(id=asked.id), change)
    return _answer(await asked.client.reschedule(id=asked.id, **_new(change)), _RESCHEDULED)


async def change_message_by_key(asked: Asked) -> Response:
    """By topic and key."""
    change = await reading.decode_large(Change, asked.body)
    topic, key = asked.path("topic"), asked.path("key")
    if _is_other(change):
        return await _replace(asked, await asked.client.message(topic, key=key), change)
    return _answer(await asked.client.reschedule(topic, key=key, **_new(change)), _RESCHEDULED)


def _new(change: Change) -> dict[str, Any]:
    """Raises BadTime."""
    return {
        "deliver_at": moment_of(change.deliver_at),
        "delay": duration_of(change.delay, "delay"),
        "priority": or_none(change.priority),
    }


async def run_message(asked: Asked) -> Response:
    """By id."""
    return _answer(await asked.client.reschedule(id=asked.id, delay=timedelta(0)), _RESCHEDULED)


async def run_message_by_key(asked: Asked) -> Response:
    """By topic and key."""
    topic, key = asked.path("topic"), asked.path("key")
    return _answer(await asked.client.reschedule(topic, key=key, delay=timedelta(0)), _RESCHEDULED)


async def redeliver_message(asked: Asked) -> Response:
    """By id."""
    (result,) = await asked.client.redeliver(id=asked.id, **_again(asked))
    return _answer(result, _REDELIVERED)


async def redeliver_message_by_key(asked: Asked) -> Response:
    """By topic and key."""
    (result,) = await asked.client.redeliver(asked.path("topic"), key=asked.path("key"), **_again(asked))
    return _answer(result, _REDELIVERED)


def _again(asked: Asked) -> dict[str, Any]:
    """Raises Refused, BadTime."""
    wanted = reading.decode(Redelivery, asked.body)
    return {
        "group": or_none(wanted.group),
        "deliver_at": moment_of(wanted.deliver_at),
        "delay": duration_of(wanted.delay, "delay"),
        "acked": wanted.acked,
        "keep_attempts": wanted.keep_attempts,
    }


# Another body ------------------------------------------------------------------------------------


def _is_other(change: Change) -> bool:
    """Whether it would be another message: what was sent is never written again."""
    return any(getattr(change, name) is not UNSET for name in ("headers", *FORMS))


async def _replace(asked: Asked, found: MessageInfo | None, change: Change) -> Response:
    """Another message takes its place, and its key: both happen, or none. Raises MessageNotFound, Refused."""
    new = _new(change)
    if found is None:
        raise MessageNotFound
    body, headers = _changed(found, change)
    try:
        number = await replace(asked.client, found, body, headers, **new)
    except TransactionRefused as error:
        if error.part != "cancel":
            raise
        return _answer(error.reason, ())
    return json(Changed("replaced", str(number)))


def _changed(found: MessageInfo, change: Change) -> tuple[bytes, dict[str, Any]]:
    """Body and headers, where what is not given stays. The content type is the body's."""
    headers = found.headers if change.headers is UNSET else change.headers
    if all(getattr(change, name) is UNSET for name in FORMS):
        kind = found.headers.get(CONTENT_TYPE)
        return found.body, headers if kind is None else {CONTENT_TYPE: kind, **headers}
    body, kind = body_of(change)
    if change.headers is UNSET:
        headers = {name: value for name, value in headers.items() if name != CONTENT_TYPE}
    return body, headers_of(headers, kind) or {}
