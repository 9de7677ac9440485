"""All pages: the rooms' tables, one after the other; and the menu, in this order."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tickwheel_web.dashboard.messages.table import PAGES as MESSAGES
from tickwheel_web.dashboard.operations.table import PAGES as OPERATIONS
from tickwheel_web.dashboard.page import Entry, Page
from tickwheel_web.dashboard.pages.table import PAGES as FIGURES
from tickwheel_web.dashboard.push.table import PAGES as PUSH
from tickwheel_web.dashboard.querying.table import PAGES as QUERYING
from tickwheel_web.dashboard.schedules.table import PAGES as SCHEDULES
from tickwheel_web.dashboard.topics.table import PAGES as TOPICS

MENU: Final = {
    "/": Entry("Time", "overview", "o"),
    "/forecast": Entry("Time", "forecast", "f"),
    "/wheel": Entry("Time", "wheel", "w"),
    "/lateness": Entry("Time", "lateness", "l"),
    "/topics": Entry("Messages", "topics", "t"),
    "/messages": Entry("Messages", "messages", "m"),
    "/dead": Entry("Messages", "dead", "d"),
    "/send": Entry("Messages", "send", "n"),
    "/schedules": Entry("Schedules", "schedules", "s"),
    "/schedules/calendar": Entry("Schedules", "calendar", "c"),
    "/query": Entry("Messages", "query", "q"),
    "/endpoints": Entry("Messages", "endpoints", "p"),
    "/clients": Entry("Operation", "clients", "k"),
    "/audit": Entry("Operation", "audit", "a"),
}

PAGES: Final[tuple[Page, ...]] = tuple(
    replace(page, entry=MENU.get(page.path) if page.method == "GET" else None)
    for page in (*FIGURES, *TOPICS, *MESSAGES, *QUERYING, *SCHEDULES, *PUSH, *OPERATIONS)
)
