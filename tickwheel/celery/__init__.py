"""Celery, and Kombu below it, with a broker of Tickwheel: ``broker_url = "tickwheel://127.0.0.1:7411"``.

To import this makes the URLs ``tickwheel://``, ``tickwheels://`` (TLS) and ``tickwheel+unix://`` known to Kombu. The
program ``celery`` does it by itself, because of the entry point in the group ``celery.commands``.
"""

from __future__ import annotations

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
