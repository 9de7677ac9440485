"""The broker's figures, and what is due when."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from tickwheel_web.endpoints import Asked, json
from tickwheel_web.monitoring.shapes import BrokerFigures, BrokerStats, Horizon, Horizons, WheelPicture
from tickwheel_web.shapes import duration_of


async def get_stats(asked: Asked) -> Response:
    """Of the whole broker."""
    return json(BrokerStats.of(await asked.client.stats()))


async def get_figures(asked: Asked) -> Response:
    """All that it counts."""
    return json(BrokerFigures.of(await asked.client.figures()))


async def get_wheel(asked: Asked) -> Response:
    """With what is due when."""
    return json(WheelPicture.of(await asked.client.wheel()))


async def get_forecast(asked: Asked) -> Response:
    """Within each of the durations."""
    found = await asked.client.wheel(horizons=_horizons(asked.query.horizons))
    return json(Horizons(found.now, [Horizon.of(one) for one in found.forecast]))


def _horizons(text: str) -> list[timedelta]:
    """Raises BadTime."""
    found = (duration_of(part.strip(), "horizons") for part in text.split(","))
    return [one for one in found if one is not None]
