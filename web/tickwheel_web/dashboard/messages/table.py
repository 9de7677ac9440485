"""The pages about messages."""

from __future__ import annotations

from typing import Final

from tickwheel_web.dashboard.messages import actions, changing, letters, listing, message, replaying, sending
from tickwheel_web.dashboard.messages.search import Asked
from tickwheel_web.dashboard.page import Page

_ONE: Final = "/messages/{id}"
_LOOK: Final = "query:{topic}"

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/messages", listing.messages, "Messages", "any", "/v1/topics", query=Asked),
    Page("POST", "/messages", changing.change, "Messages", "any"),
    Page("GET", _ONE, message.message, "Message", _LOOK, "/v1/messages/{id}", query=message.Asked),
    Page("POST", _ONE, actions.act, "Message", _LOOK),
    Page("GET", f"{_ONE}/body", message.download, "Body", _LOOK),
    Page("GET", "/dead", letters.dead, "Dead letters", "any", "/v1/topics", query=letters.Asked),
    Page("POST", "/dead", replaying.act, "Dead letters", "any"),
    Page("GET", "/dead/export", letters.export, "Dead letters", "any", query=letters.Asked),
    Page("GET", "/send", sending.form, "Send", "any", query=sending.Asked),
    Page("POST", "/send", sending.send, "Send", "any"),
)
