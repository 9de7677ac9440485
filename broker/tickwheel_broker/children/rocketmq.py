"""`tickwheel gateway` beside the broker."""

from __future__ import annotations

from typing import Final

from tickwheel_broker.children.beside import Beside, check_installed, open_in_time
from tickwheel_broker.config.fields import rocketmq_flags
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.net.listeners import open_rocketmq_listeners

_PACKAGES: Final = ("google.protobuf", "h11", "h2", "prometheus_client")


async def open_rocketmq(settings: Settings) -> Beside:
    """What the settings ask for, if anything. Raises ServerExtraMissing, AddressInUse, CannotListen."""
    listeners = []
    if settings.rocketmq:
        check_installed("rocketmq", _PACKAGES, "rocketmq")
        listeners = await open_in_time(open_rocketmq_listeners, settings)
    return Beside("gateway", rocketmq_flags(), settings, listeners)
