"""What one does with messages in a real browser: send, find, change one or many, replay what is dead."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import Site
from tests.browser.tabs import Tabs, violations
from tickwheel import sync


@pytest.mark.parametrize("scripts", [True, False])
def test_a_message_from_its_sending_to_its_end(tabs: Tabs, scripts: bool) -> None:
    from playwright.sync_api import expect

    page = tabs.open("/send", scripts=scripts)
    topic = f"flow-{scripts}".lower()
    page.get_by_label("Topic").fill(topic)
    page.get_by_label("Body", exact=True).fill("hello\nthere")
    page.get_by_label("After").fill("2h")
    page.get_by_role("button", name="Show as a call").click()
    expect(page.get_by_role("heading", name="As a call")).to_be_visible()
    page.get_by_role("button", name="Send", exact=True).click()
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(re.compile(r"Message \d+"))
    status = page.get_by_role("status")
    expect(status).to_contain_text("is sent.")
    if scripts:
        expect(status).to_be_focused()
        expect(page.locator("#life")).to_contain_text("will be due")
        expect(page.locator("#life li").first).to_contain_text("sent")
        assert violations(page) == []
    page.get_by_label("Another time", exact=True).fill("3h")
    page.get_by_role("button", name="Reschedule").click()
    expect(status).to_contain_text("It is due at")
    page.get_by_role("button", name="Run now").click()
    expect(status).to_contain_text("It is due now.")
    page.get_by_role("button", name="Deliver no more").click()
    expect(status).to_contain_text("It is cancelled, and will not be delivered.")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_message_is_seen_coming_and_acked(tabs: Tabs, site: Site, scripts: bool) -> None:
    """Sent for later, found in the forecast, rescheduled, run now, taken by a consumer; its timeline has all of it."""
    from playwright.sync_api import expect

    topic = f"story-{scripts}".lower()
    page = tabs.open("/send", scripts=scripts)
    page.get_by_label("Topic").fill(topic)
    page.get_by_label("Body", exact=True).fill("tea")
    page.get_by_label("After").fill("3d")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("is sent.")
    page.goto("/forecast?horizon=week")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_role("button", name="Scan the topic").click()
    expect(page.get_by_label("Sums")).to_contain_text("messages 1", use_inner_text=True)
    page.locator("figure a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Messages")
    page.locator("main tbody a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"Message \d+"))
    page.get_by_label("Another time", exact=True).fill("5d")
    page.get_by_role("button", name="Reschedule").click()
    expect(page.get_by_role("status")).to_contain_text("It is due at")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status")).to_contain_text("It is due now.")
    with (
        sync.Client(site.daemon.url, token=site.token) as client,
        client.subscribe(topic, "cook") as subscription,
    ):
        subscription.receive(60).ack(confirm=True)
    page.reload()
    if not scripts:
        page.get_by_role("link", name="Show what has happened").click()
    life = page.locator("#life")
    for text in ("sent", "rescheduled", "delivered cook", "acked cook"):
        expect(life).to_contain_text(text)


@pytest.mark.parametrize("scripts", [True, False])
def test_many_by_a_search_are_counted_first(tabs: Tabs, site: Site, scripts: bool) -> None:
    from playwright.sync_api import expect

    topic = f"crowd-{scripts}".lower()
    with sync.Client(site.daemon.url, token=site.token) as client:
        client.send_many(topic, [b"x"] * 120, delay_ms=86_400_000)
    page = tabs.open(f"/messages?topic={topic}", scripts=scripts)
    page.get_by_label("Search", exact=True).fill(f"topic:{topic} due:>1h")
    page.get_by_label("Search", exact=True).press("Enter")
    expect(page.get_by_role("link", name="Next")).to_be_visible()
    page.get_by_label("All that are searched for").check()
    page.get_by_role("button", name="Count them first").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel: 120 messages")
    if scripts:
        assert violations(page) == []
    page.get_by_label("Type 120 to go on").fill("120")
    page.get_by_role("button", name="Cancel: 120 messages").click()
    expect(page.get_by_role("status")).to_contain_text("120 cancelled")
    expect(page.get_by_role("status")).to_contain_text(f"tickwheel cancel {topic} --due-from")


@pytest.mark.parametrize("scripts", [True, False])
def test_dead_letters_are_replayed(tabs: Tabs, site: Site, scripts: bool) -> None:
    from playwright.sync_api import expect

    topic = f"broken-{scripts}".lower()
    with sync.Client(site.daemon.url, token=site.token) as client:
        client.send(topic, b"x")
        with client.subscribe(topic, "g") as subscription:
            subscription.receive(60).nack(error=f"no such address: {scripts}", give_up=True)
    page = tabs.open("/dead", scripts=scripts)
    page.get_by_role("link", name=f"no such address: {scripts}").click()
    if scripts:
        assert violations(page) == []
    page.get_by_role("checkbox", name="Select letter").check()
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status")).to_contain_text("1 replayed.")
