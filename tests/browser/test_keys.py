"""What keys do: on each page, on rows, on a message; and nothing at all once they are switched off."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs, press
from tickwheel import sync
from tickwheel_web.dashboard.table import PAGES

MENU = [page for page in PAGES if page.entry is not None and page.entry.key]


def test_g_and_another_key_lead_to_each_page_of_the_menu(tabs: Tabs) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/clients")
    for row in MENU:
        assert row.entry is not None
        press(page, "g", row.entry.key)
        expect(page.get_by_role("heading", level=1)).to_have_text(row.title)
        expect(page.locator("nav [aria-current=page]")).to_have_text(row.title)


def test_a_search_is_typed_and_its_letters_do_nothing(tabs: Tabs) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/messages?topic=orders")
    page.keyboard.press("/")
    search = page.get_by_label("Search", exact=True)
    expect(search).to_be_focused()
    search.fill("")
    page.keyboard.type("topic:orders state:dead gt?.")
    expect(search).to_have_value("topic:orders state:dead gt?.")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_rows_are_selected_and_changed(tabs: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    with sync.Client(site.daemon.url, token=site.token) as client:
        found = [client.send("keyed", b"x", delay_ms=86_400_000) for _ in range(3)]
    page = tabs.open("/messages?topic=keyed")
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.get_by_label(f"Select {found[0].id}")).to_be_checked()
    expect(page.get_by_label(f"Select {found[1].id}")).to_be_checked()
    expect(page.get_by_label(f"Select {found[2].id}")).not_to_be_checked()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Message {found[0].id}")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Messages")
    for number in (0, 1):
        page.get_by_label(f"Select {found[number].id}").check()
    page.locator("main h1").click()
    page.keyboard.press("c")
    page.get_by_role("button", name="Cancel: 2 messages").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("2 cancelled")


def test_a_message_is_rescheduled_and_cancelled(tabs: Tabs, site: Site) -> None:
    from playwright.sync_api import expect

    with sync.Client(site.daemon.url, token=site.token) as client:
        sent = client.send("keyed", b"x", delay_ms=86_400_000)
    page = tabs.open(f"/messages/{sent.id}")
    page.keyboard.press("r")
    expect(page.get_by_label("Another time", exact=True)).to_be_focused()
    page.keyboard.type("3h")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("It is due at")
    press(page, "c")
    expect(page.get_by_role("status")).to_contain_text("It is cancelled")


def test_dark_and_light_and_pause(tabs: Tabs) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/")
    root, state = page.locator("html"), page.locator("[data-live-state]")
    page.keyboard.press("t")
    expect(root).to_have_attribute("data-theme", "dark")
    page.keyboard.press("t")
    expect(root).to_have_attribute("data-theme", "light")
    page.keyboard.press(".")
    expect(state).to_have_text("paused")
    page.keyboard.press(".")
    expect(state).to_be_hidden()


def test_the_list_of_keys_names_all_of_them(tabs: Tabs) -> None:
    page = tabs.open("/")
    page.keyboard.press("?")
    named = page.get_by_role("dialog").locator("dt").all_inner_texts()
    keys = {key for text in named for key in re.split(r"\s+", text)}
    wanted = {row.entry.key for row in MENU if row.entry is not None}
    assert keys == wanted | {"g", "/", "j", "k", "Enter", "x", "r", "c", "t", ".", "?"}


@pytest.mark.parametrize("path", ["/messages?topic=orders", "/"])
def test_switched_off_they_do_nothing(tabs: Tabs, path: str) -> None:
    from playwright.sync_api import expect

    page = tabs.open(path)
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Keys do this").uncheck()
    dialog.get_by_role("button", name="Close").click()
    page.reload()
    url, theme = page.url, page.locator("html").get_attribute("data-theme")
    for key in ("g", "t", "j", "x", "c", "r", "/", ".", "t", "?"):
        page.keyboard.press(key)
    assert (page.url, page.locator("html").get_attribute("data-theme")) == (url, theme)
    assert page.evaluate("document.activeElement === document.body")
    assert page.locator("main input[type=checkbox]:checked").count() == 0
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Keys").click()
    dialog.get_by_label("Keys do this").check()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
