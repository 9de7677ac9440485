"""The form of a push endpoint: a new one or one that there is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.responses import Response

from tickwheel.errors import TickwheelError
from tickwheel_web.dashboard.forms import Filled
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.push.acting import version
from tickwheel_web.dashboard.push.listing import shortened
from tickwheel_web.dashboard.push.settings import FORM, HOW, WHERE, WHERE_NEW, form_texts


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
    return _page(viewed, FORM.filled(form_texts(found)), found.name)


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
    before = form_texts(found)
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
    where = WHERE if existing else WHERE_NEW
    return viewed.page(
        "push/form.html", status=filled.status, form=filled, existing=existing, where=where, how=HOW
    )
