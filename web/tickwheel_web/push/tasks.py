"""HTTP tasks: one request to a URL, now or at its time."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from starlette.responses import Response

from tickwheel_web import reading
from tickwheel_web.bodies import CONTENT_TYPE, FORMS, body_of
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.push.shapes import HttpTask
from tickwheel_web.shapes import Sent, duration_of, moment_of, or_none

_NO_BODY: Final = (b"", "")


async def send_http_task(asked: Asked) -> Response:
    """201: stored; 200: its key was there."""
    given = await reading.decode_large(HttpTask, asked.body)
    has_body = any(getattr(given, form) is not UNSET for form in FORMS)
    body, content_type = body_of(given) if has_body else _NO_BODY
    headers = {} if given.headers is UNSET else dict(given.headers)
    if content_type and CONTENT_TYPE not in {name.lower() for name in headers}:
        headers[CONTENT_TYPE] = content_type
    key = or_none(given.key)
    sent = await asked.client.send_http_task(
        given.url,
        body,
        method=given.method,
        headers=headers,
        topic=given.topic,
        key=reading.idempotency_key(asked.request) if key is None else key,
        priority=or_none(given.priority),
        deliver_at=moment_of(given.deliver_at),
        delay=duration_of(given.delay, "delay"),
    )
    answer = Sent(str(sent.id), sent.duplicate, sent.differs)
    return json(answer, 200 if sent.duplicate else 201, {"Location": f"/v1/messages/{sent.id}"})
