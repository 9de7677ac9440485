"""The pages of topics and groups, and what can be done on them."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.listing import Asked
from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.topics import group, holding, listing, topic

_TOPIC: Final = "/topics/{topic}"
_GROUP: Final = "/topics/{topic}/groups/{group}"
_ADMIN: Final = "admin:{topic}"
_LOOK: Final = "any on {topic}"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/topics", listing.topics, "Topics", "any", "/v1/topics", query=Asked),
    Page("POST", "/topics", listing.create, "Create a topic", _ADMIN),
    Page("GET", _TOPIC, topic.topic, "Topic", _LOOK, "/v1/topics/{topic}", query=holding.Asked),
    Page("POST", f"{_TOPIC}/pause", topic.pause, "Pause a topic", _ADMIN),
    Page("POST", f"{_TOPIC}/resume", topic.resume, "Resume a topic", _ADMIN),
    Page("POST", f"{_TOPIC}/settings", topic.change, "Change a topic", _ADMIN),
    Page("POST", f"{_TOPIC}/cancel", topic.cancel, "Cancel all messages of a topic", "publish:{topic}"),
    Page("POST", f"{_TOPIC}/delete", topic.delete, "Delete a topic", _ADMIN),
    Page("POST", f"{_TOPIC}/groups", group.create, "Create a group", "consume:{topic}"),
    Page(
        "GET", _GROUP, group.group, "Group", _LOOK, "/v1/topics/{topic}/groups/{group}", query=holding.Asked
    ),
    Page("POST", f"{_GROUP}/seek", group.seek, "Move a group", "consume:{topic}"),
    Page("POST", f"{_GROUP}/redeliver", group.redeliver, "Deliver again", "consume:{topic}"),
    Page("POST", f"{_GROUP}/delete", group.delete, "Delete a group", _ADMIN),
)
