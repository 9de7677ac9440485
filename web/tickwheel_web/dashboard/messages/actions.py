"""What can be done with one message. Each answer is exact."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.responses import Response

from tickwheel.errors import BadArgument, TransactionRefused
from tickwheel.protocol.headers import readable_headers
from tickwheel_web.dashboard.acting import DONE
from tickwheel_web.dashboard.messages.changing import change_of, changed
from tickwheel_web.dashboard.messages.message import find, need_bodies
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.messages.replacing import replace

_TEXTS: Final = {
    "cancelled": "It is cancelled, and will not be delivered.",
    "stopped": "It is stopped: it will not be delivered again.",
    "already_cancelled": "It was cancelled before. Nothing was changed.",
    "already_delivered": "It is delivered already. Nothing was changed.",
    "already_acked": "It is delivered and acked already. Nothing was changed.",
    "expired": "It has expired. Nothing was changed.",
    "not_found": "There is no such message any more.",
    "redelivered": "It is delivered again.",
    "waiting": "It is to be delivered anyway. Nothing was changed.",
}


async def act(viewed: Viewed) -> Response:
    """The field ``action`` says what. Raises BadArgument."""
    action = viewed.field("action")
    if action == "replace":
        return await _replace(viewed)
    found = await find(viewed, 0)
    if action == "run":
        result = str(await viewed.client.reschedule(id=found.id, delay=timedelta(0)))
        done, does_same = "It is due now.", ["reschedule", str(found.id), "--in", "0s"]
    else:
        planned = change_of(action, viewed.field("to"), datetime.now(UTC), acked=bool(viewed.field("acked")))
        (result,) = await changed(viewed.client, planned, [found.id])
        moment = planned.arguments.get("deliver_at")
        done = "It has another priority." if moment is None else f"It is due at {moment.isoformat()}."
        does_same = [planned.command, str(found.id), *planned.options]
    text = done if result == "rescheduled" else _TEXTS.get(result, result)
    return viewed.done(f"/messages/{found.id}", text, does_same, "good" if result in DONE else "warn")


async def _replace(viewed: Viewed) -> Response:
    """By another message: what was sent is never written again."""
    need_bodies(viewed)
    found = await find(viewed)
    headers = readable_headers(found)
    if headers is None:
        raise BadArgument(
            "Its headers cannot be read, and the new message would lose them. Nothing was changed.",
            advice="Cancel it, and send another one.",
        )
    # A browser sends each end of a line as two characters.
    body = viewed.form.get("body", [""])[-1].replace("\r\n", "\n").encode()
    try:
        number = await replace(viewed.client, found, body, headers)
    except TransactionRefused as error:
        if error.part != "cancel":
            raise
        return viewed.done(f"/messages/{found.id}", _TEXTS.get(error.reason, error.reason), tone="warn")
    text = (
        f"Message {found.id} is cancelled, and this one is sent in its place, with its key, time and headers: "
        "both happened at once."
    )
    return viewed.done(f"/messages/{number}", text, ["help", "transaction"])
