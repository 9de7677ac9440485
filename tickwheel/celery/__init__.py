"""Celery, and Kombu below it, with a broker of Tickwheel: ``broker_url = "tickwheel://127.0.0.1:7411"``.

To import this makes the URLs ``tickwheel://``, ``tickwheels://`` (TLS) and ``tickwheel+unix://`` known to Kombu. The
program ``celery`` does it by itself, because of the entry point in the group ``celery.commands``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tickwheel.errors import CeleryMissing

try:
    from tickwheel.celery.registration import TRANSPORT, register
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("amqp", "celery", "kombu"):
        raise
    raise CeleryMissing from error

if TYPE_CHECKING:
    from tickwheel.celery.control import Control, cancel, reschedule, scheduled
    from tickwheel.celery.transport.transport import Transport
    from tickwheel.celery.waiting import Outcome, WaitingTask

__all__ = [
    "TRANSPORT",
    "Control",
    "Outcome",
    "Transport",
    "WaitingTask",
    "cancel",
    "register",
    "reschedule",
    "scheduled",
]

_HOMES: Final = {
    "Control": "control",
    "Outcome": "waiting",
    "Transport": "transport.transport",  # for broker_transport
    "WaitingTask": "waiting",
    "cancel": "control",
    "reschedule": "control",
    "scheduled": "control",
}
"""What is imported when it is asked for."""

register()


if not TYPE_CHECKING:  # else type checkers would take any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
