"""What one does with topics in a real browser, also where no script runs."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs
from tickwheel import sync


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_a_topic_from_its_beginning_to_its_end(tabs: Tabs, site: Site, scripts: bool) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/topics", scripts=scripts)
    page.get_by_label("Name", exact=True).fill("short-lived")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_contain_text("The topic short-lived was created.")
    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_label("ack wait").fill("10s")
    page.get_by_role("button", name="Change the settings").click()
    expect(page.get_by_role("status")).to_contain_text("ack_wait is 10s.")
    page.locator("main").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("tickwheel topics pause short-lived")
    with sync.Client(site.daemon.url, token=site.token) as client:
        assert client.topic("short-lived").paused
        assert client.topic("short-lived").settings == {"ack_wait_ms": 10_000}
    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_role("textbox", name="Delete the topic").fill("short-lived")
    page.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_role("status")).to_contain_text("The topic short-lived was deleted, with 0 messages.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
