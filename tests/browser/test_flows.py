"""What one does with the dashboard in a real browser."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs, press, violations
from tickwheel import sync


@pytest.mark.quick
def test_coming_in_looking_and_leaving(strangers: Tabs, site: Site) -> None:
    """The one test that runs each time: log-in, live figures, the content policy, and axe."""
    from playwright.sync_api import expect

    page = strangers.open("/forecast?horizon=hour")
    expect(page).to_have_title("Log in · Tickwheel")
    strangers.log_in(page, "twk_0123456789ab_wrong")
    expect(page.get_by_role("alert")).to_contain_text("token")
    strangers.complaints = [one for one in strangers.complaints if "401" not in one]
    strangers.log_in(page, site.token)
    expect(page.get_by_role("heading", level=1)).to_have_text("Forecast")
    assert page.url == f"{site.url}/forecast?horizon=hour"
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert violations(page) == []
    scheduled = page.locator("[data-live=scheduled]")
    before = int(scheduled.inner_text().replace(",", ""))

    with sync.Client(site.daemon.url, token=site.token) as client:
        client.send("orders", b"x", delay=timedelta(days=2))
    expect(scheduled).to_have_text(f"{before + 1:,}")
    expect(page.locator("footer")).to_contain_text("Europe/Berlin")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("status")).to_have_text("You are logged out.")


def test_dark_and_light_are_remembered(tabs: Tabs) -> None:
    page = tabs.open("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name="Dark or light").click()
    after = page.evaluate(ground)
    assert before != after
    page.goto("/wheel")
    assert page.evaluate(ground) == after
    assert violations(page) == []


def test_times_are_local_and_can_be_in_utc(tabs: Tabs) -> None:
    page = tabs.open("/wheel")
    time = page.locator("main time").first
    local = time.inner_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", local)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(time.get_attribute("title")))
    page.get_by_role("button", name="UTC").click()
    assert time.inner_text() != local
    page.goto("/wheel")
    assert "Times are in UTC." in page.locator("footer").inner_text()


def test_live_figures_can_be_paused(tabs: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/")
    with page.expect_request("**/events"):
        page.reload()
    page.keyboard.press(".")
    expect(page.locator("[data-live-state]")).to_have_text("paused")
    page.reload()
    expect(page.locator("[data-live-state]")).to_have_text("paused")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("[data-live-state]")).to_be_hidden()


def test_the_stream_is_opened_again(tabs: Tabs) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/wheel")
    page.route("**/events", lambda route: route.fulfill(status=503))
    page.goto("/")
    expect(page.locator("[data-live-state]")).to_have_text("no connection")
    page.unroute("**/events")
    expect(page.locator("[data-live-state]")).to_be_hidden()
    tabs.complaints = [one for one in tabs.complaints if "503" not in one]


def test_parts_are_loaded_anew_and_keep_the_focus(tabs: Tabs) -> None:
    page = tabs.open("/")
    link = page.get_by_role("link", name="scheduled in all")
    link.focus()
    with page.expect_response(lambda answer: answer.url.rstrip("/") == tabs.url):
        page.evaluate('document.body.dispatchEvent(new CustomEvent("tw:refresh"))')
    page.wait_for_function("document.activeElement?.textContent === 'scheduled in all'")
    assert violations(page) == []


def test_by_keyboard_alone(strangers: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    page = strangers.open("/")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(site.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    press(page, "g", "w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Wheel")
    press(page, "?")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert violations(page) == []
    dialog.get_by_label("Keys do this").uncheck()
    page.keyboard.press("Escape")
    press(page, "g", "o", "?")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("heading", level=1)).to_have_text("Wheel")


def test_the_menu_of_a_narrow_page(tabs: Tabs) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/", width=320)
    menu = page.get_by_role("navigation", name="Pages")
    expect(menu).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    expect(menu).to_be_visible()
    assert violations(page) == []
    menu.get_by_role("link", name="Forecast").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Forecast")


def test_logging_in_without_scripts(strangers: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    page = strangers.open("/wheel", scripts=False)
    strangers.log_in(page, site.token)
    expect(page.get_by_role("heading", level=1)).to_have_text("Wheel")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
