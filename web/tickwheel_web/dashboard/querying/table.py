"""The page of queries, and its downloads."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.querying import query

_LOOK: Final = "query:*"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/query", query.query, "Query", _LOOK, query=query.Asked, shows_all=True),
    Page("GET", "/query/rows", query.download, "Rows of a query", _LOOK, query=query.Wanted, shows_all=True),
)
