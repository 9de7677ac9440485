"""The page of a report of Spark in a browser, out of a file: whole without a network, scripts and light, and narrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.tabs import Tabs, in_each_look, violations
from tests.unit.tickwheel.spark.report.test_spark_report_page import compared, full
from tickwheel.spark.report.page import render

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a report that has a verdict, all sections and a comparison."""
    folder = tmp_path_factory.mktemp("report")
    page = render(compared(full("orders"), full("mails"), folder))
    (folder / "index.html").write_text(page)
    return folder


@in_each_look
def test_a_report_can_be_read_by_all(browser: Browser, folder: Path, theme: Any, width: int) -> None:
    """Nothing for axe to find, nothing asked of others, and nothing to scroll sideways but charts and tables."""
    with Tabs(browser, folder.as_uri(), "") as tabs:
        page = tabs.open(f"{folder.as_uri()}/index.html", width=width, theme=theme)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("summary").first.click()
        assert page.locator(".chart table").first.is_visible()


def test_a_report_needs_no_script_and_can_be_printed(browser: Browser, folder: Path) -> None:
    with Tabs(browser, folder.as_uri(), "") as tabs:
        page = tabs.open(f"{folder.as_uri()}/index.html", scripts=False, theme="dark")
        assert page.locator("#verdict").inner_text().startswith("Target missed")
        assert page.locator("svg").count() == page.locator("svg:visible").count() > 5
        page.emulate_media(media="print")
        assert page.locator("svg:visible").count() > 5
        assert page.locator("nav").is_hidden()
