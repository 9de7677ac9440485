"""What one does with topics in a real browser, also where no script runs."""

from __future__ import annotations

from typing import Final

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs, violations
from tickwheel import sync

_FOREIGN_TIMES: Final = """
() => new Promise((done) => document.addEventListener("htmx:after:swap", () => requestAnimationFrame(() =>
  done([...document.querySelectorAll("main time")].map((one) => one.textContent).filter((one) => one.includes("UTC")))
), { once: true }))
"""


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


@pytest.mark.parametrize(("width", "theme"), [(1_280, "dark"), (390, "light")])
def test_the_last_hour_of_a_topic(tabs: Tabs, site: Site, width: int, theme: str) -> None:
    """It comes by itself, grows while one looks at it, and a table that was opened stays open."""
    from playwright.sync_api import expect

    topic = f"seen-at-{width}"
    with sync.Client(site.daemon.url, token=site.token) as client:
        client.create_topic(topic)
        client.create_group(topic, "g")
        page = tabs.open(f"/topics/{topic}", width=width, theme=theme)
        hour = page.locator("#hour")
        expect(hour.get_by_role("img")).to_have_count(2)
        hour.get_by_text("Show as table").click()
        client.send_many(topic, [b"x"] * 1_234)
        rows = hour.get_by_role("row")
        expect(rows.filter(has_text="1,234").first).to_be_visible()
    assert page.evaluate(_FOREIGN_TIMES) == [], "what was loaded anew is in the browser's zone at once"
    expect(hour.get_by_role("img", name=f"The backlog of {topic}")).to_be_visible()
    assert hour.locator(".axis").nth(1).locator("span").all_inner_texts() == ["1,500", "1,000", "500", "0"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []
    # What is drawn lies in its frame: the highest point of the backlog below the upper mark and above the lowest.
    plot = hour.get_by_role("img", name="The backlog").bounding_box()
    line = hour.get_by_role("img", name="The backlog").locator(".line").bounding_box()
    assert plot is not None
    assert line is not None
    share = (line["y"] - plot["y"]) / plot["height"]
    assert 1 - 1_234 / 1_500 - 0.03 < share < 1 - 1_234 / 1_500 + 0.03
