"""Receive: a request that waits for messages."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tickwheel import Fetched
from tickwheel.sharing.returns import give_back
from tickwheel_web import reading
from tickwheel_web.consuming.presence import Handed
from tickwheel_web.consuming.shapes import MAX_WAIT, Receive, Received, encoded_deliveries
from tickwheel_web.ending import while_there
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.large.aside import aside
from tickwheel_web.problems import Refused
from tickwheel_web.shapes import JSON, duration_of

_log = logging.getLogger("tickwheel.web")


async def receive_messages(asked: Asked) -> Response:
    """What is ready, or gets ready in time. When the client has gone, nothing stays leased."""
    wanted = reading.decode(Receive, asked.body)
    wait, lease = duration_of(wanted.wait, "wait"), duration_of(wanted.lease, "lease")
    if wait is not None and wait > MAX_WAIT:
        raise Refused(400, "bad_argument", "The longest wait is 60s; then ask again.", pointer="/wait")
    with asked.shared.limits.polls.hold(asked.caller) if wait else nullcontext():
        fetched = await _fetch(asked, wanted.max, wait, lease)
    if fetched is None:
        return json(Received([]))
    try:
        data = await aside(_encoded, fetched, asked.path("group"))
    except BaseException:
        await _give_back(fetched)
        raise
    return Handed(data, JSON, partial(_give_back, fetched))


def _encoded(fetched: Fetched, group: str) -> bytes:
    return b'{"items":[' + b",".join(encoded_deliveries(fetched, group)) + b"]}\n"


async def _fetch(asked: Asked, count: int, wait: timedelta | None, lease: timedelta | None) -> Fetched | None:
    """None: the server ended meanwhile. Raises Refused when the client has gone."""
    topic, group = asked.path("topic"), asked.path("group")
    fetched = None
    try:
        async with while_there(asked.request.receive):
            with asked.shared.ending.ends():
                fetched = await asked.client.fetch(topic, group, count=count, wait=wait, lease=lease)
    except ClientDisconnect:
        if fetched is not None:
            await _give_back(fetched)
        raise Refused(400, "incomplete_request", "The client has gone.") from None
    return fetched


async def _give_back(fetched: Fetched) -> None:
    """As not looked at."""
    if fetched:
        await give_back(_log, len(fetched), fetched.topic, fetched.give_back)
