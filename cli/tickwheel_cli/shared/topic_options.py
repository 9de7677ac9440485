"""The settings of a topic as options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tickwheel.protocol.units import format_duration, format_size
from tickwheel_cli.shared.options import DURATION, SIZE

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DURATIONS: Final = {
    "ack_wait": "A message not acknowledged for so long is delivered again.",
    "min_backoff": "The n-th redelivery waits so long times 2^(n-1) …",
    "max_backoff": "… but not longer than this. 0: without a limit.",
    "purge_after": "Acknowledged messages stay for so long. 0s: they may be purged at once.",
    "retention": "Messages that nobody acknowledges stay for so long. 0: for ever.",
    "spread": "A message is due up to so much after its time: makes a ramp of a herd.",
}
_NUMBERS: Final[dict[str, tuple[Any, str]]] = {
    "max_attempts": (click.IntRange(0), "After so many deliveries it is a dead letter. 0: never."),
    "batch_size": (click.IntRange(1), "The most messages that are delivered together."),
    "cache_size": (click.IntRange(1), "The most un-acked messages with the subscribers of a group."),
    "priority": (click.IntRange(0, 255), "Of messages that are sent without one. Lower is first."),
    "rate": (click.FloatRange(0), "Deliveries a second to each group. 0: any."),
}
BROKER_SETTINGS: Final = (
    "ack_wait_ms",
    "min_backoff_ms",
    "max_backoff_ms",
    "purge_after_ms",
    "max_body_bytes",
)
"""By wire name: for these the broker's configuration has a value, for topics that do not say otherwise."""
_SIZES: Final = {"max_body_bytes": "The largest body, such as 64KiB."}


def setting_options(command: _Command) -> _Command:
    """An option for each setting; `given` picks those that were used."""
    for name, text in reversed(_SIZES.items()):
        command = click.option(_flag(name), type=SIZE, help=text)(command)
    for name, (kind, text) in reversed(_NUMBERS.items()):
        command = click.option(_flag(name), type=kind, help=text)(command)
    for name, text in reversed(_DURATIONS.items()):
        command = click.option(_flag(name), type=DURATION, help=text)(command)
    return command


def vitess_option(command: _Command) -> _Command:
    """`--vitess`: all settings in one text."""
    text = 'The comment of a Vitess message table: "vitess_message,vt_ack_wait=30,…".'
    return click.option("--vitess", metavar="COMMENT", help=text)(command)


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were named on the command line."""
    return {name: value for name, value in settings.items() if value is not None}


def setting_text(name: str, value: float) -> str:
    """A setting's value as a person writes it; `name` is that of the wire."""
    if name == "purge_after_ms" and not value:
        return "0s"
    if name.endswith("_ms"):
        return format_duration(int(value)) if value else "none"
    if name.endswith("_bytes"):
        return format_size(int(value))
    return f"{value:g}" if value or name == "priority" else "none"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
