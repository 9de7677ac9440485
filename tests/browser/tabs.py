"""Tabs of a browser that is watched: policy violations, errors and requests elsewhere are complaints."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

AXE: Final = Path(__file__).parent / "vendor" / "axe-core-4.14.1.min.js"
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PATIENCE_MS: Final = 60_000.0
_LOOKS: Final = [
    (1280, "light"),
    (320, "dark"),
    pytest.param(1280, "dark", marks=pytest.mark.nightly),
    pytest.param(320, "light", marks=pytest.mark.nightly),
]
in_each_look: Final = pytest.mark.parametrize(("width", "theme"), _LOOKS)
"""Gives a test each width and each theme, and all pairs of them in the longer profiles."""

_WATCH: Final = """
addEventListener("securitypolicyviolation", (event) =>
  console.error("policy: " + event.violatedDirective + " " + event.blockedURI + " " + event.sourceFile));
"""
_RUN_AXE: Final = """
async (rules) => (await axe.run(document, { runOnly: { type: "tag", values: rules } })).violations.map(
  (one) => one.id + ": " + one.nodes.map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join("; "))
"""


@cache
def _axe() -> str:
    return AXE.read_text()


class Tabs:
    """Each has a theme, a width, and scripts or none; they share no cookies."""

    def __init__(self, browser: Browser, url: str, token: str) -> None:
        self._browser = browser
        self._token = token
        self._contexts: list[BrowserContext] = []
        self.url = url
        self.complaints: list[str] = []

    def __enter__(self) -> Tabs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for context in self._contexts:
            context.close()
        assert kind is not None or self.complaints == []

    def open(self, path: str = "/", *, width: int = 1280, theme: Any = "light", scripts: bool = True) -> Page:
        """A tab at a path."""
        context = self._browser.new_context(
            base_url=self.url,
            viewport={"width": width, "height": 800},
            color_scheme=theme,
            java_script_enabled=scripts,
            timezone_id="Europe/Berlin",
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(_WATCH)
        self._contexts.append(context)
        if self._token:
            self._log_in(context)
        page = context.new_page()
        page.on("console", lambda one: self._complain(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda one: self._complain(str(one)))
        page.on("request", self._check)
        page.goto(path)
        return page

    def log_in(self, page: Page, token: str) -> None:
        """With the form."""
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()

    def _log_in(self, context: BrowserContext) -> None:
        answer = context.request.post(
            "/login", form={"token": self._token, "next": "/robots.txt"}, headers={"origin": self.url}
        )
        assert answer.ok, answer.text()

    def _complain(self, text: str) -> None:
        self.complaints.append(text)

    def _check(self, request: Request) -> None:
        if not request.url.startswith((self.url + "/", "data:")):
            self._complain(f"a request to {request.url}")


def violations(page: Page) -> list[str]:
    """What axe has against a page."""
    page.evaluate(_axe())
    found: list[str] = page.evaluate(_RUN_AXE, RULES)
    return found


def press(page: Page, *keys: str) -> None:
    """On a page that was come to otherwise than by its address: it takes keys once its script has run. Its button
    for them appears then, for people and for tests alike."""
    from playwright.sync_api import expect

    expect(page.get_by_role("button", name="Keys", exact=True)).to_be_visible()
    for key in keys:
        page.keyboard.press(key)
