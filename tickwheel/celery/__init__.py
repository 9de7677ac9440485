"""Celery, and Kombu below it, with a broker of Tickwheel: ``broker_url = "tickwheel://127.0.0.1:7411"``.

To import this makes the URLs ``tickwheel://``, ``tickwheels://`` (TLS) and ``tickwheel+unix://`` known to Kombu. The
program ``celery`` does it by itself, because of the entry point in the group ``celery.commands``.
"""

from __future__ import annotations

try:
    from tickwheel.celery.registration import TRANSPORT, register
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("amqp", "celery", "kombu"):
        raise
    raise ModuleNotFoundError(
        f"tickwheel.celery needs {error.name}, which is not installed. Use: pip install 'tickwheel[celery]'",
        name=error.name,
    ) from error

__all__ = ["TRANSPORT", "Transport", "register"]

register()


def __getattr__(name: str) -> object:
    """``tickwheel.celery:Transport``, for ``broker_transport``. It is imported when it is asked for."""
    if name != "Transport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tickwheel.celery.transport.transport import Transport

    return Transport
