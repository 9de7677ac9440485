"""The form of a push endpoint: a new one or one that there is."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from tickwheel import Endpoint
from tickwheel.errors import TickwheelError
from tickwheel.protocol.units import format_duration
from tickwheel_web.dashboard.forms import Field, Filled, Form, duration, each, headers, whole
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.push.acting import version
from tickwheel_web.dashboard.push.listing import shortened

FORM: Final = Form(
    Field("name", "Name", is_required=True, option=None, more={"maxlength": 255}),
    Field("topic", "Topic", is_required=True, more={"maxlength": 255}),
    Field(
        "start",
        "It gets",
        choices={"latest": "what becomes due from now on", "earliest": "all that the topic has"},
    ),
    Field(
        "url",
        "URL",
        hint="https://shop.example/hooks",
        kind="url",
        may_unset=True,
        option="--to",
        more={"maxlength": 2048, "size": 48},
    ),
    Field(
        "allow_urls",
        "or allowed URLs, for tasks",
        str.split,
        "https://*.example/in/*, with spaces between",
        may_unset=True,
        is_list=True,
        option="--allow-url",
    ),
    Field("headers", "Headers", headers, "One on a line: name: value", kind="area", option=None),
    Field(
        "format",
        "Format",
        choices={
            "binary": "CloudEvents in headers",
            "structured": "CloudEvents as JSON",
            "plain": "plain",
        },
    ),
    Field("timeout", "Timeout", duration, "1s to 5m; empty: 15s", may_unset=True),
    Field("max_in_flight", "At a time", whole, "empty: 8", may_unset=True),
    Field("rate", "Requests a second", float, "empty: no limit", may_unset=True),
    Field(
        "retry_delays",
        "Tried again after",
        each(duration),
        "5s 5m 30m; empty: as it is",
        is_list=True,
        option="--retry-delay",
        more={"size": 32},
    ),
    Field("give_up_on", "Given up on", each(whole), "400 422", may_unset=True, is_list=True),
    Field(
        "may_hold",
        "It may answer 202 and settle later",
        bool,
        kind="checkbox",
        option="--may-hold/--may-not-hold",
    ),
    Field("version", "", whole, option=None),
)


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What stands in the form already."""

    topic: Annotated[str, msgspec.Meta(max_length=255)] = ""


async def new(viewed: Viewed) -> Response:
    """An empty form."""
    given = {"topic": viewed.query.topic, "format": "binary", "start": "latest"}
    return _page(viewed, FORM.filled(given), "")


async def edit(viewed: Viewed) -> Response:
    """The form of one that there is."""
    found = await viewed.client.endpoint(viewed.path("endpoint"))
    return _page(viewed, FORM.filled(_given(found)), found.name)


async def create(viewed: Viewed) -> Response:
    """One that there is not yet; its secret is shown once."""
    given = FORM.given(viewed)
    try:
        values = FORM.read(given)
        made = await viewed.client.set_endpoint(**{**values, "expected_version": 0})
    except TickwheelError as error:
        return _page(viewed, FORM.filled(given, error), "")
    return viewed.page("push/secret.html", endpoint=made, secret=made.secrets[0], secrets=shortened(made))


async def change(viewed: Viewed) -> Response:
    """All that the form says, if nothing has changed since it was shown. Secrets stay; headers too, where none are
    given: their values are never shown."""
    name = viewed.path("endpoint")
    found = await viewed.client.endpoint(name)
    before = _given(found)
    given = {**FORM.given(viewed), "name": name, "topic": found.topic, "start": ""}
    try:
        values = {"may_hold": False, **FORM.read(given)}
        for one in ("name", "topic", "version"):
            values.pop(one, None)
        expected = version(viewed, found.version)
        changed = await viewed.client.set_endpoint(
            name, unset=FORM.unset(values), expected_version=expected, **values
        )
    except TickwheelError as error:
        return _page(viewed, FORM.filled(given, error), name)
    text = f"{name} is changed; it is version {changed.version} now."
    return viewed.done(f"/endpoint/{name}", text, ["endpoints", "set", name, *FORM.options(given, before)])


def _page(viewed: Viewed, filled: Filled, existing: str) -> Response:
    return viewed.page("push/form.html", status=filled.status, form=filled, existing=existing)


def _given(found: Endpoint) -> dict[str, str]:
    return {
        "name": found.name,
        "topic": found.topic,
        "url": found.url,
        "allow_urls": " ".join(found.allow_urls),
        "format": found.format,
        "timeout": format_duration(found.timeout_ms),
        "max_in_flight": str(found.max_in_flight),
        "rate": f"{found.rate_per_s:g}" if found.rate_per_s else "",
        "retry_delays": " ".join(format_duration(delay_ms) for delay_ms in found.retry_delays_ms),
        "give_up_on": " ".join(map(str, found.give_up_on)),
        "may_hold": "yes" if found.may_hold else "",
        "version": str(found.version),
    }
