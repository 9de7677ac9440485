"""`tickwheel web` beside the broker."""

from __future__ import annotations

from typing import Final

from tickwheel_broker.children.beside import Beside, check_installed, open_in_time
from tickwheel_broker.config.fields import web_flags
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.net.listeners import open_web_listeners

_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")


async def open_web(settings: Settings) -> Beside:
    """What the settings ask for, if anything. Raises ServerExtraMissing, AddressInUse, CannotListen."""
    listeners = []
    if settings.web:
        check_installed("web", _PACKAGES, "web")
        listeners = await open_in_time(open_web_listeners, settings)
    return Beside("web", web_flags(), settings, listeners)
