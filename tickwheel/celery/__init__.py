"""Celery, and Kombu below it, with a broker of Tickwheel: ``broker_url = "tickwheel://127.0.0.1:7411"``.

To import this makes the URLs ``tickwheel://``, ``tickwheels://`` (TLS) and ``tickwheel+unix://`` known to Kombu. The
program ``celery`` does it by itself, because of the entry point in the group ``celery.commands``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from kombu.transport import TRANSPORT_ALIASES
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"tickwheel.celery needs {error.name}, which is not installed. Use: pip install 'tickwheel[celery]'",
        name=error.name,
    ) from error

TRANSPORT = "tickwheel.celery.transport.transport:Transport"
"""Where Kombu finds it; also for ``broker_transport``."""

for _scheme in ("tickwheel", "tickwheels"):
    TRANSPORT_ALIASES[_scheme] = TRANSPORT


def _fill_in_slots() -> None:
    from tickwheel.celery.slots import fill_in
    from tickwheel.celery.transport.envelope import ARRIVALS

    if fill_in not in ARRIVALS:
        ARRIVALS.append(fill_in)


_fill_in_slots()

if TYPE_CHECKING:
    from tickwheel.celery.control import Control as Control
    from tickwheel.celery.control import cancel as cancel
    from tickwheel.celery.control import reschedule as reschedule
    from tickwheel.celery.control import scheduled as scheduled
    from tickwheel.celery.waiting import Outcome as Outcome
    from tickwheel.celery.waiting import WaitingTask as WaitingTask

_LAZY = {
    "Control": "control",
    "Outcome": "waiting",
    "WaitingTask": "waiting",
    "cancel": "control",
    "reschedule": "control",
    "scheduled": "control",
}
"""What needs Celery, where Kombu alone needs nothing of it."""


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
