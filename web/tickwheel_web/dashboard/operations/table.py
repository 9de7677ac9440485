"""The pages for who runs the broker."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.listing import Asked
from tickwheel_web.dashboard.operations import audit, clients
from tickwheel_web.dashboard.page import Page

_ADMIN: Final = "admin:*"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/clients", clients.clients, "Clients", _ADMIN, "/v1/clients", query=Asked),
    Page("POST", "/clients/{client}/disconnect", clients.disconnect, "Disconnect a client", _ADMIN),
    Page("GET", "/audit", audit.audit, "Audit", _ADMIN, "/v1/audit", query=audit.Asked),
    Page("GET", "/audit/lines", audit.download, "Audit log", _ADMIN, query=audit.Asked),
)
