"""Schedules in a real browser: the preview that follows what is typed, and the same without scripts."""

from __future__ import annotations

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs, violations
from tickwheel import sync


def test_the_preview_follows_what_is_typed(tabs: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/schedules/new")
    page.get_by_label("Name", exact=True).fill("nightly")
    page.get_by_label("Topic", exact=True).fill("nights")
    page.get_by_label("Zone", exact=True).fill("Europe/Berlin")
    page.get_by_label("Not before").fill("2031-03-29T12:00")
    cron = page.get_by_label("Cron expression")
    cron.fill("30 2 * * *")
    preview = page.locator("#preview")
    expect(preview).to_contain_text("2031-03-30 02:30:00 does not exist")
    expect(preview).to_contain_text("it runs right after the gap")
    expect(cron).to_be_focused()
    assert violations(page) == []
    cron.fill("30 2 * *")
    expect(preview).to_contain_text("fields")
    cron.fill("30 2 * * *")
    expect(preview).to_contain_text("at 02:30 every day, Europe/Berlin")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_contain_text(
        "nightly is created: at 02:30 every day, Europe/Berlin."
    )
    page.get_by_role("button", name="Pause", exact=True).last.click()
    expect(page.get_by_role("status")).to_contain_text("nightly is paused.")
    assert violations(page) == []
    page.get_by_label("Type its name").fill("nightly")
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("status")).to_contain_text("nightly is deleted.")


def test_without_scripts(tabs: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/schedules/new", scripts=False)
    page.get_by_label("Name", exact=True).fill("plain")
    page.get_by_label("Topic", exact=True).fill("nights")
    page.get_by_label("Cron expression").fill("30 2 * * *")
    page.get_by_label("Zone", exact=True).fill("Europe/Berlin")
    page.get_by_label("Not before").fill("2031-10-25T12:00")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("the first of two: runs once")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_contain_text("plain is created")
    page.get_by_role("button", name="Send now").click()
    expect(page.get_by_role("status")).to_contain_text("Sent as message")
    with sync.Client(site.daemon.url, token=site.token) as client:
        assert len(client.browse("nights")) == 1
        client.delete_schedule("plain")


def test_a_secret_is_shown_once(tabs: Tabs) -> None:
    page = tabs.open("/endpoint/orders")
    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_role("button", name="Add a new secret").click()
    secret = page.get_by_label("Secret", exact=True).inner_text()
    assert secret.startswith("whsec_")
    assert violations(page) == []
    page.get_by_role("link", name="To the endpoint").click()
    page.get_by_role("button", name="Forget the older ones").wait_for()
    assert secret not in page.content()
