"""The settings of a push endpoint, as a form has them and as its page lists them."""

from __future__ import annotations

from typing import Final

from tickwheel import Endpoint
from tickwheel.protocol.units import format_duration
from tickwheel_web.dashboard.forms import Field, Form, duration, each, headers, whole

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
    Field(
        "description",
        "Description",
        hint="Whom to call",
        kind="area",
        may_unset=True,
        more={"maxlength": 500},
    ),
    Field("headers", "Headers", headers, "One on a line: name: value", kind="area", option=None),
    Field(
        "format",
        "Format",
        choices={"binary": "CloudEvents in headers", "structured": "CloudEvents as JSON", "plain": "plain"},
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
WHERE: Final = "url allow_urls description"
"""Where messages go. A new endpoint has a few more, which stay as they are."""
WHERE_NEW: Final = f"name topic start {WHERE}"
HOW: Final = "format timeout max_in_flight rate retry_delays give_up_on"


def form_texts(found: Endpoint) -> dict[str, str]:
    """Texts of the form's fields."""
    return {
        "topic": found.topic,
        "url": found.url,
        "allow_urls": " ".join(found.allow_urls),
        "description": found.description,
        "format": found.format,
        "timeout": format_duration(found.timeout_ms),
        "max_in_flight": str(found.max_in_flight),
        "rate": f"{found.rate_per_s:g}" if found.rate_per_s else "",
        "retry_delays": " ".join(format_duration(delay_ms) for delay_ms in found.retry_delays_ms),
        "give_up_on": " ".join(map(str, found.give_up_on)),
        "may_hold": "yes" if found.may_hold else "",
        "version": str(found.version),
    }


def listed_settings(found: Endpoint) -> dict[str, str]:
    """Texts by their labels, without what is not set. Secrets, headers and the version have elements of their own."""
    texts = form_texts(found)
    return {each.label: texts[name] for name, each in FORM.fields.items() if each.label and texts.get(name)}
