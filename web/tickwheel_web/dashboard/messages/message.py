"""One message: what it is, how far each group is with it, what has happened to it, and what can be done."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
from starlette.responses import Response

from tickwheel import MessageInfo
from tickwheel.errors import MessageNotFound, TickwheelError
from tickwheel.protocol.headers import readable_headers
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.messages import bodies, timeline
from tickwheel_web.dashboard.messages.calls import Calls, curl, python
from tickwheel_web.dashboard.messages.listing import TONES
from tickwheel_web.dashboard.notices import command
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.paging import MAX_BODY_BYTES
from tickwheel_web.problems import Refused, detail_of

MAX_EVENTS: Final = 200
_TRACE: Final = "traceparent"
_PENDING: Final = ("scheduled",)
_OVER: Final = ("cancelled", "expired", "damaged")
_DONE: Final = ("acked", "dead", "not_its_own")


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How its body is shown, and whether what has happened to it."""

    form: bodies.Form | None = None
    history: str = ""


async def message(viewed: Viewed) -> Response:
    """Its life is read from the broker's log, which takes a while: a script asks for it when the page is there."""
    found = await find(viewed, bodies.MAX_SHOWN_BYTES)
    hiding, may = viewed.site.hiding, viewed.rights.may
    forms = {} if hiding.bodies else bodies.forms(found.body)
    form = viewed.query.form if viewed.query.form in forms else next(iter(forms), None)
    readable = readable_headers(found)
    headers = hiding.shown(readable or {})
    steps, trouble = [], ""
    if viewed.query.history:
        try:
            steps = await timeline.steps(viewed.client, found, MAX_EVENTS)
        except TickwheelError as error:
            trouble = detail_of(error)
    is_pending = found.state in _PENDING
    is_over = found.state in _OVER
    is_left = any(group.state not in _DONE for group in found.groups) or not found.groups
    topic = found.topic.partition("/")[0]
    return viewed.page(
        "messages/message.html",
        one=found,
        topic=topic,
        now=datetime.now(UTC),
        tones=TONES,
        groups=[group for group in found.groups if group.state != "not_its_own"],
        headers=[(name, _text(value)) for name, value in headers.items()],
        has_readable_headers=readable is not None,
        is_header_hidden=len(headers) < len(readable or {}),
        trace=_trace(headers.get(_TRACE)),
        forms=list(forms),
        form=form,
        text=forms.get(form, "") if form else "",
        is_cut=found.body_bytes > len(found.body),
        shown_bytes=bodies.MAX_SHOWN_BYTES,
        steps=steps,
        ahead=timeline.ahead(found),
        trouble=trouble,
        has_history=bool(viewed.query.history),
        may_change=may(f"publish:{topic}") and is_pending,
        may_stop=may(f"publish:{topic}") and not is_pending and not is_over and is_left,
        may_redeliver=may(f"consume:{topic}") and not is_pending and not is_over,
        may_replace=may(f"publish:{topic}")
        and is_pending
        and not hiding.bodies
        and readable is not None
        and "text" in forms
        and b"\r" not in found.body  # which no form gives back as it was
        and found.body_bytes == len(found.body),
        original=forms.get("text", ""),
        calls=Calls(
            command("show", str(found.id)),
            python("message", id=found.id),
            curl("GET", ["messages", str(found.id)]),
        ),
    )


async def download(viewed: Viewed) -> Response:
    """All of the body."""
    need_bodies(viewed)
    found = await find(viewed)
    return viewed.download(found.body, f"message-{found.id}.bin")


def need_bodies(viewed: Viewed) -> None:
    """Raises Refused (403)."""
    if viewed.site.hiding.bodies:
        raise Refused(403, "hidden", "Bodies are hidden here (the setting web_hide_bodies).")


async def find(viewed: Viewed, max_body_bytes: int = MAX_BODY_BYTES) -> MessageInfo:
    """The one of the path. Raises MessageNotFound, BadArgument."""
    number = whole(viewed.path("id"), "The id")
    found = await viewed.client.message(id=number, max_body_bytes=max_body_bytes)
    if found is None:
        raise MessageNotFound
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _trace(value: object) -> str | None:
    """The number of the trace, of a header as W3C has it."""
    parts = value.split("-") if isinstance(value, str) else []
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None
