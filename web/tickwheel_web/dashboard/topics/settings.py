"""A topic's settings as fields of a form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from tickwheel.errors import TickwheelError
from tickwheel.protocol.units import format_duration, format_size, parse_size_bytes
from tickwheel.stats import TopicInfo
from tickwheel_web.dashboard.forms import Field, Filled, Form
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.reading import converted
from tickwheel_web.topics.shapes import Settings, settings_of

MEANINGS: Final = {
    "ack_wait": "A message that is not acknowledged for so long is delivered again.",
    "min_backoff": "The n-th redelivery waits so long times 2^(n-1) …",
    "max_backoff": "… but not longer than this. 0: without a limit.",
    "max_attempts": "After so many deliveries it is a dead letter. 0: never.",
    "retention": "Messages that are not acknowledged stay for so long. 0: without a limit.",
    "purge_after": "Acknowledged messages stay for so long.",
    "spread": "A message is due up to so much after its time.",
    "rate": "Deliveries a second to each group. 0: any.",
    "batch_size": "The most messages that are delivered together.",
    "cache_size": "The most un-acked messages with the consumers of a group.",
    "priority": "Of messages that are sent without one. 0 goes first.",
    "max_body_bytes": "The largest body, such as 64KiB.",
}
_SIZES: Final = ("max_body_bytes",)
_WAS: Final = "was-"


class Setting(NamedTuple):
    """One of them."""

    name: str
    label: str
    own: str
    """What was set for the topic; empty: nothing."""
    effective: str
    meaning: str
    typed: str
    """What stands in its field."""
    wrong: str = ""
    """With that."""


def settings(info: TopicInfo) -> list[Setting]:
    """In the order of the form."""
    own, effective = _texts(info.settings), _texts(info.effective)
    return [
        Setting(name, one.label, own.get(name, ""), effective.get(name, ""), one.hint, own.get(name, ""))
        for name, one in FORM.fields.items()
    ]


def refused(viewed: Viewed, info: TopicInfo, error: TickwheelError) -> tuple[Filled, list[Setting]]:
    """The form as it was typed, with what is wrong with it. What it says of before stays."""
    filled = FORM.filled(FORM.given(viewed), error)
    return filled, [
        one._replace(
            own=viewed.field(f"{_WAS}{one.name}"),
            typed=filled.given[one.name],
            wrong=filled.wrong.get(one.name, ""),
        )
        for one in settings(info)
    ]


def told(values: Mapping[str, int | float]) -> str:
    """Those that were set, in one line.

    >>> told({"ack_wait_ms": 10_000, "rate": 500.0})
    'ack_wait 10s, rate 500'
    """
    return ", ".join(f"{name} {text}" for name, text in _texts(values).items())


class Changes(NamedTuple):
    """What a form asks for."""

    values: dict[str, Any]
    unset: list[str]
    words: list[str]
    """The same as options of a command."""


def changes(viewed: Viewed) -> Changes:
    """Those fields that are not as they were when the form was made. Raises Wrong."""
    before = {name: viewed.field(f"{_WAS}{name}") for name in MEANINGS}
    given = {name: viewed.field(name) if name in viewed.form else before[name] for name in MEANINGS}
    changed = [name for name in MEANINGS if given[name] != before[name]]
    values = FORM.read(given, changed)
    return Changes(values, [name for name in changed if not given[name]], FORM.options(given, before))


def _value(name: str, text: str) -> Any:
    """Raises ValueError, BadTime, Refused."""
    found = str(parse_size_bytes(text)) if name in _SIZES else text
    return settings_of(converted(Settings, {name: found}))[0][name]


FORM: Final = Form(
    *(
        Field(name, name.replace("_", " "), partial(_value, name), meaning, may_unset=True)
        for name, meaning in MEANINGS.items()
    )
)


def _texts(values: Mapping[str, int | float]) -> dict[str, str]:
    return {name.removesuffix("_ms"): _text(name, value) for name, value in values.items()}


def _text(name: str, value: float) -> str:
    if name.endswith("_ms"):
        return format_duration(int(value)) if value else "0"
    return (
        format_size(int(value))
        if name in _SIZES
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
