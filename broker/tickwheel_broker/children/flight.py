"""`tickwheel flight` beside the broker. It listens itself: Arrow Flight takes no socket of somebody else."""

from __future__ import annotations

from typing import Final

import msgspec

from tickwheel_broker.children.beside import Beside, check_installed, open_in_time
from tickwheel_broker.config.fields import flight_flags
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.net.listeners import hold_flight_place

_PACKAGES: Final = ("pyarrow",)


async def open_flight(settings: Settings) -> tuple[Beside, Settings]:
    """What the settings ask for, if anything, and the settings with the port that it has. Raises ServerExtraMissing,
    AddressInUse, CannotListen."""
    listeners = []
    if settings.flight:
        check_installed("flight", _PACKAGES, "flight")
        listeners = await open_in_time(hold_flight_place, settings)
        settings = msgspec.structs.replace(settings, flight_listen=listeners[0].url.rpartition("//")[2])
    return Beside("flight", flight_flags(), settings, listeners, gets_sockets=False), settings
