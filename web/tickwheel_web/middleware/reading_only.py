"""Nothing is changed: whatever is no question is refused, of pages and API alike."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from tickwheel_web.problems import Refused, answer_to

_QUESTIONS: Final = ("GET", "HEAD", "OPTIONS")
_ABOUT_ITSELF: Final = ("/login", "/logout")
"""They change who is logged in, and nothing at the broker."""


class ReadingOnly:
    """For a process that only shows."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and scope["method"] not in _QUESTIONS and path not in _ABOUT_ITSELF:
            refused = Refused(
                403, "read_only", "This web process only shows: web_read_only is set. Nothing was done."
            )
            await answer_to(refused, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)
