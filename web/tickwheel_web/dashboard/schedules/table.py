"""The pages about schedules."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.listing import Asked
from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.schedules import acting, calendar, editing, listing

_ONE: Final = "/schedule/{schedule}"
"""Not below ``/schedules``: a schedule may be named "new" or "calendar"."""
_LIST: Final = "/v1/schedules"
_TWIN: Final = "/v1/schedules/{schedule}"
_SEND: Final = "publish:{topic}"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/schedules", listing.schedules, "Schedules", "any", _LIST, query=Asked),
    Page("GET", "/schedules/calendar", calendar.calendar, "Calendar", "any", _LIST, query=calendar.Asked),
    Page("GET", "/schedules/new", editing.new, "New schedule", "any", _LIST, query=editing.Asked),
    Page("POST", "/schedules/new", editing.create, "New schedule", _SEND, _LIST),
    Page("POST", "/schedules/preview", editing.preview, "Preview", "any"),
    Page("GET", _ONE, listing.schedule, "Schedule", "any on {topic}", _TWIN),
    Page("GET", f"{_ONE}/edit", editing.edit, "Edit schedule", "any on {topic}", _TWIN),
    Page("POST", f"{_ONE}/edit", editing.change, "Edit schedule", _SEND, _TWIN),
    Page("POST", f"{_ONE}/pause", acting.pause, "Pause", _SEND),
    Page("POST", f"{_ONE}/resume", acting.resume, "Resume", _SEND),
    Page("POST", f"{_ONE}/trigger", acting.trigger, "Send now", _SEND),
    Page("POST", f"{_ONE}/delete", acting.delete, "Delete", _SEND),
)
