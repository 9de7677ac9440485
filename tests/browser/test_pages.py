"""Each page in a real browser: it violates no policy, logs no error, and can be used by everybody."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs, in_each_look, violations
from tests.support.clients.filled import pages, path_of
from tickwheel_web.dashboard.page import Page

WIDTHS = (1280, 320)


@in_each_look
@pytest.mark.parametrize("row", pages(), ids=lambda row: row.path)
def test_each_page_can_be_used_by_everybody(
    tabs: Tabs, site: Site, row: Page, width: int, theme: str
) -> None:
    page = tabs.open(path_of(row, site.parts), width=width, theme=theme)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    for details in page.locator("details").all():
        details.evaluate("(one) => { one.open = true; }")
    assert violations(page) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_forecast_of_one_topic(tabs: Tabs, width: int) -> None:
    page = tabs.open("/forecast?horizon=week&topic=orders", width=width)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_text("Show as table").click()
    assert violations(page) == []


@in_each_look
@pytest.mark.parametrize("path", ["/login", "/login?left=1", "/no/such/page"])
def test_pages_for_strangers(strangers: Tabs, path: str, width: int, theme: str) -> None:
    page = strangers.open("/login", width=width, theme=theme)
    answer = page.goto(path)
    assert answer is not None
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []
    strangers.complaints = [one for one in strangers.complaints if "404" not in one]


@pytest.mark.parametrize("row", pages(), ids=lambda row: row.path)
def test_each_page_can_be_read_without_scripts(tabs: Tabs, site: Site, row: Page) -> None:
    page = tabs.open(path_of(row, site.parts), scripts=False)
    assert page.get_by_role("heading", level=1).is_visible()
    assert page.get_by_role("navigation", name="Pages").is_visible()
