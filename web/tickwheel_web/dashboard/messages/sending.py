"""A form that sends a message, and shows the same as a call."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response

from tickwheel.errors import TickwheelError
from tickwheel_web.bodies import TEXT, headers_of
from tickwheel_web.dashboard.forms import (
    Field,
    Form,
    Wrong,
    checked,
    duration,
    headers,
    moment_in,
    whole,
    zone,
)
from tickwheel_web.dashboard.messages.calls import Calls, curl, python
from tickwheel_web.dashboard.messages.listing import topics_of
from tickwheel_web.dashboard.notices import Tone, command
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.shapes import JSON, MAX_PRIORITY

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
FORM: Final = Form(
    Field("topic", "Topic", is_required=True, more={"list": "topics"}),
    Field("form", "Body is", choices={"text": "text", "json": "JSON", "base64": "bytes, as base64"}),
    Field("body", "Body", hint="Bodies of JSON and text get a content type.", kind="area", more={"rows": 8}),
    Field("headers", "Headers", headers, "One on a line: name: value", kind="area"),
    Field("delay", "After", duration, "250ms, 30s, 2h30m, 90d", more={"placeholder": "1h"}),
    Field("at", "Or at", hint="on the clock of the zone", kind="datetime-local", more={"step": 1}),
    Field("zone", "Zone", zone, "such as Europe/Berlin"),
    Field("key", "Key", hint="sent again with it, it is stored once"),
    Field("order_key", "Order key", hint="those with the same go in order"),
    Field(
        "priority",
        "Priority",
        partial(whole, most=MAX_PRIORITY),
        "0 goes first; usually 50",
        kind="number",
        more={"min": 0, "max": MAX_PRIORITY},
    ),
    about={
        "bad_topic_name": "topic",
        "too_many_topics": "topic",
        "forbidden": "topic",
        "body_too_large": "body",
        "frame_too_large": "body",
        "bad_time": "delay",
        "key_too_long": "key",
        "order_key_too_long": "order_key",
        "headers_too_large": "headers",
    },
)


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """With which topic the form begins."""

    topic: str = ""


class Ready(NamedTuple):
    """What the form says, as the client takes it."""

    topic: str
    body: bytes
    arguments: dict[str, Any]
    """Without those that were left empty."""


async def form(viewed: Viewed) -> Response:
    """An empty one."""
    return await _page(viewed, {"topic": viewed.query.topic, "form": "text", "zone": "UTC"})


async def send(viewed: Viewed) -> Response:
    """Sends it, or shows it as a call; what is wrong is told beside its field, and nothing is lost."""
    given = FORM.given(viewed)
    try:
        ready = made_ready(given)
        calls = calls_of(ready, given)
        if viewed.field("action") == "show":
            return await _page(viewed, given, calls=calls)
        sent = await viewed.client.send(ready.topic, ready.body, **ready.arguments)
    except TickwheelError as error:
        return await _page(viewed, given, error)
    text = f"Message {sent.id} is sent."
    if sent.duplicate:
        differs = " That one differs." if sent.differs else ""
        text = f"Its key was there before, as message {sent.id}. Nothing was sent.{differs}"
    tone: Tone = "warn" if sent.duplicate else "good"
    if viewed.rights.sees(f"query:{ready.topic}"):
        return viewed.done(f"/messages/{sent.id}", text, calls.command, tone)
    return viewed.done("/send", text, calls.command, tone, topic=ready.topic)


async def _page(
    viewed: Viewed, given: Mapping[str, str], error: TickwheelError | None = None, calls: Calls | None = None
) -> Response:
    may = viewed.rights.may_somewhere("publish")
    filled = FORM.filled(given, error)
    topics, more = await topics_of(viewed, "publish") if may else ([], 0)
    return viewed.page(
        "messages/send.html",
        status=filled.status,
        form=filled,
        calls=calls,
        topics=sorted(name for name, _ in topics),
        more_topics=more,
        may_send=may,
    )


def made_ready(given: Mapping[str, str]) -> Ready:
    """Raises Wrong.

    >>> made_ready(dict.fromkeys(FORM.fields, "") | {"topic": "x", "delay": "1h", "body": "tea"}).body
    b'tea'
    """
    found = FORM.read(given)
    topic, clock, at = found.pop("topic"), found.pop("zone", ZoneInfo("UTC")), found.pop("at", "")
    body, kind = checked("body", _body, found.pop("form", ""), found.pop("body", ""))
    if told := headers_of(found.pop("headers", {}), kind):
        found["headers"] = told
    if at and "delay" in found:
        raise Wrong(delay="Give a delay or a time, not both.")
    if at:
        found["deliver_at"] = checked("at", moment_in, at, clock)
    return Ready(topic, body, found)


def _body(form: str, text: str) -> tuple[bytes, str]:
    """And its content type. Raises ValueError."""
    try:
        if form == "json":
            msgspec.json.decode(text)
            return text.encode(), JSON
        if form == "base64":
            return base64.b64decode("".join(text.split()), validate=True), ""
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"This is no JSON: {error}") from None
    except (binascii.Error, ValueError):
        raise ValueError("This is no base64: use the standard alphabet, with padding") from None
    return text.encode(), TEXT


def calls_of(ready: Ready, given: Mapping[str, str]) -> Calls:
    """The same, to be copied."""
    arguments = dict(ready.arguments)
    headers, delay, moment = (arguments.pop(name, None) for name in ("headers", "delay", "deliver_at"))
    words = [
        word for name, value in arguments.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    words += [word for name, value in (headers or {}).items() for word in ("--header", f"{name}={value}")]
    named, posted = dict(arguments), {}
    if headers:
        named["headers"] = posted["headers"] = headers
    if delay is not None:
        words += ["--in", given["delay"]]
        named["delay_ms"], posted["delay"] = delay // _MS, given["delay"]
    if moment is not None:
        words += ["--at", moment.isoformat()]
        named["deliver_at"], posted["deliver_at"] = -((_EPOCH - moment) // _MS), moment.isoformat()
    if given["form"] == "base64":
        line = f"echo {base64.b64encode(ready.body).decode()} | base64 -d | "
        line += command("send", *words, "--", ready.topic, "-")
        content: dict[str, Any] = {"base64": base64.b64encode(ready.body).decode()}
    else:
        line = command("send", *words, "--", ready.topic, ready.body.decode())
        is_json = given["form"] == "json"
        content = {"body": msgspec.json.decode(ready.body)} if is_json else {"text": ready.body.decode()}
    return Calls(
        line,
        python("send", ready.topic, ready.body, **named),
        curl("POST", ["topics", ready.topic, "messages"], {**content, **arguments, **posted}),
    )
