"""The pages about figures."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.pages import forecast, lateness, live, overview, wheel

_LOOK: Final = "query:*"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/", overview.overview, "Overview", _LOOK, "/v1/figures"),
    Page("GET", "/forecast", forecast.forecast, "Forecast", _LOOK, "/v1/forecast", query=forecast.Asked),
    Page("GET", "/wheel", wheel.wheel, "Wheel", _LOOK, "/v1/wheel"),
    Page("GET", "/lateness", lateness.lateness, "Lateness", _LOOK, "/v1/figures", query=lateness.Asked),
    Page("GET", "/events", live.live, "Live figures", _LOOK, "/v1/events"),
)
