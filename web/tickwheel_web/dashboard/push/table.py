"""The pages about push endpoints."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.listing import Asked
from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.push import acting, editing, listing

_ONE: Final = "/endpoint/{endpoint}"
"""Not below ``/endpoints``: one may be named "new"."""
_LIST: Final = "/v1/endpoints"
_TWIN: Final = "/v1/endpoints/{endpoint}"
_ADMIN: Final = "admin:{topic}"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/endpoints", listing.endpoints, "Endpoints", "any", _LIST, query=Asked),
    Page("GET", "/endpoints/new", editing.new, "New endpoint", "any", _LIST, query=editing.Asked),
    Page("POST", "/endpoints/new", editing.create, "New endpoint", _ADMIN, _LIST),
    Page("GET", _ONE, listing.endpoint, "Endpoint", "any on {topic}", _TWIN, query=listing.AskedOne),
    Page("GET", f"{_ONE}/edit", editing.edit, "Edit endpoint", "any on {topic}", _TWIN),
    Page("POST", f"{_ONE}/edit", editing.change, "Edit endpoint", _ADMIN, _TWIN),
    Page("POST", f"{_ONE}/enable", acting.enable, "Enable", _ADMIN),
    Page("POST", f"{_ONE}/disable", acting.disable, "Disable", "admin:{topic} or push:{topic}"),
    Page("POST", f"{_ONE}/test", acting.send_test, "Send a test", _ADMIN),
    Page("POST", f"{_ONE}/rotate", acting.rotate, "New secret", _ADMIN, _TWIN),
    Page("POST", f"{_ONE}/forget", acting.forget, "Forget older secrets", _ADMIN),
    Page("POST", f"{_ONE}/delete", acting.delete, "Delete", _ADMIN),
)
