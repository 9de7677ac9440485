"""SQL in a real browser."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import PATIENCE_MS, Tabs, in_each_look, violations
from tests.integration.watching.test_query import ENDLESS


@in_each_look
def test_rows_and_an_error(tabs: Tabs, width: int, theme: str) -> None:
    page = tabs.open("/query", width=width, theme=theme)
    page.get_by_label("SQL").fill("select key, state, body, deliver_at from messages order by id")
    page.get_by_role("button", name="Run the scan").click()
    page.get_by_role("table", name="Rows of the query").wait_for()
    assert parse_qs(urlsplit(page.url).query)["sql"] == [page.get_by_label("SQL").input_value()]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []
    page.get_by_label("SQL").fill("selekt 1")
    page.get_by_role("button", name="Run the scan").click()
    page.get_by_role("alert").wait_for()
    assert "selekt" in page.get_by_role("alert").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []
    tabs.complaints = [one for one in tabs.complaints if "400" not in one]


@pytest.mark.parametrize("scripts", [True, False])
def test_a_query_is_cancelled(tabs: Tabs, scripts: bool) -> None:
    """As many as the broker runs at a time, and one more: each must have ended."""
    from playwright.sync_api import expect

    page = tabs.open("/query", scripts=scripts)
    for number in range(3):
        page.get_by_label("SQL").fill(f"{ENDLESS} -- {number}")
        run = page.get_by_role("button", name="Run the scan")
        with page.expect_request("**/query?**run=1"):
            run.focus()
            page.keyboard.press("Enter")
        for key in ("Tab", "Enter"):  # keys alone: playwright looks at no page that is about to be left
            page.keyboard.press(key)
        # asked again and again: waiting for a navigation fails where the one before it is given up for this one
        expect(page).to_have_url(re.compile(rf"/query\?.*--\+{number}&rows=200$"), timeout=PATIENCE_MS)
        expect(page.get_by_label("SQL")).to_have_value(f"{ENDLESS} -- {number}")
    if scripts:
        expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    page.get_by_label("SQL").fill("select 42 as answer")
    page.get_by_role("button", name="Run the scan").click()
    expect(page.get_by_role("cell", name="42")).to_be_visible()


def test_rows_are_downloaded_without_scripts(tabs: Tabs, site: Site) -> None:
    page = tabs.open("/query", scripts=False)
    page.get_by_label("SQL").fill("select 42 as answer")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download CSV").click()
    assert waiting.value.suggested_filename == "query.csv"
    assert waiting.value.path().read_bytes() == b"answer\r\n42\r\n"
