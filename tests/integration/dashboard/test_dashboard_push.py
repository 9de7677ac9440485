"""The dashboard's pages about push endpoints: forms without scripts, secrets that are shown once, exact answers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.filled import HOSTILE, SCRIPT
from tests.support.clients.visiting import Shown, Visitor
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.guarded import Guarded
from tickwheel.errors import UnknownEndpoint
from tickwheel_web.dashboard.push import acting

SETTINGS = "/endpoint/shop?tab=settings"
FORM = {
    "name": "shop", "topic": "orders", "start": "latest", "url": "https://shop.example/hooks", "allow_urls": "",
    "headers": "authorization: Bearer abc", "format": "structured", "timeout": "20s", "max_in_flight": "4",
    "rate": "2.5", "retry_delays": "5s 1m", "give_up_on": "400 422", "version": "",
    "description": "Call Ada & Bob",
}  # fmt: skip


@pytest.fixture
async def client(client: tickwheel.Client) -> AsyncIterator[tickwheel.Client]:
    """What a test has made goes with it."""
    yield client
    for one in await client.endpoints():
        await client.delete_endpoint(one.name)


async def test_from_the_first_form_to_the_last_button(visitor: Visitor, client: tickwheel.Client) -> None:
    assert "There are no push endpoints" in (await visitor.get("/endpoints")).text
    page = await visitor.post("/endpoints/new", FORM)
    assert page.status == 200
    made = await client.endpoint("shop")
    assert made.secrets[0] in page.text
    assert (made.url, made.format, made.timeout_ms, made.rate_per_s) == (
        FORM["url"],
        "structured",
        20_000,
        2.5,
    )
    assert (made.retry_delays_ms, made.give_up_on, made.max_in_flight) == ([5_000, 60_000], [400, 422], 4)
    assert made.description == FORM["description"]
    await client.send("orders", b"x")
    for path in ("/endpoints", "/endpoint/shop", "/endpoint/shop/edit"):
        page = await visitor.get(path)
        assert page.status == 200
        assert made.secrets[0] not in page.html
        assert "Bearer abc" not in page.html
    page = await visitor.get("/endpoint/shop?tab=settings")
    assert "authorization" in page.text
    assert "Given up on 400 422" in " ".join(page.text.split())
    assert FORM["description"] in page.text
    assert "success rate" not in page.text, "which the other tab has"
    assert made.secrets[0] not in page.html
    assert "Bearer abc" not in page.html

    page = await visitor.post("/endpoint/shop/disable", {"reason": HOSTILE})
    assert "shop is paused" in page.text
    assert SCRIPT not in page.html
    assert (await client.endpoint("shop")).disabled_reason == HOSTILE
    assert "1 endpoint: 1 paused" in (await visitor.get("/endpoints")).text
    page = await visitor.post("/endpoint/shop/enable", {})
    assert "shop goes on with what waits for it. In a terminal: tickwheel endpoints enable shop" in page.text

    page = await visitor.post("/endpoint/shop/delete", {"confirm": "shop.", "keep_group": "1"})
    assert (page.status, "Nothing was done." in page.text) == (400, True)
    page = await visitor.post("/endpoint/shop/delete", {"confirm": "shop"})
    assert re.search(r"shop is deleted; \d messages? will not be sent to it\.", page.text)
    with pytest.raises(UnknownEndpoint):
        await client.endpoint("shop")


async def test_a_new_secret_is_shown_once(visitor: Visitor, client: tickwheel.Client) -> None:
    before = (await client.set_endpoint("shop", topic="orders", url="https://shop.example/")).secrets
    [version, *_] = re.findall(r'name="version" value="(\d+)"', (await visitor.get(SETTINGS)).html)
    page = await visitor.post("/endpoint/shop/rotate", {"version": version})
    after = (await client.endpoint("shop")).secrets
    assert after[1:] == before
    assert after[0] in page.text
    page = await visitor.post("/endpoint/shop/rotate", {"version": version})
    assert page.status == 412, "the form of a page that is out of date does nothing"
    assert (await client.endpoint("shop")).secrets == after
    for _ in range(3):
        await visitor.post("/endpoint/shop/rotate", {})
    five = (await client.endpoint("shop")).secrets
    assert (len(five), five[3:]) == (5, after)
    page = await visitor.post("/endpoint/shop/rotate", {})
    assert "shop has 5 secrets already" in page.text
    assert (await client.endpoint("shop")).secrets == five
    page = await visitor.post("/endpoint/shop/forget", {})
    assert page.path.startswith(SETTINGS), "where it was pressed"
    assert "shop no longer signs with 4 older secrets." in page.text
    assert (await client.endpoint("shop")).secrets == five[:1]


async def test_a_change_keeps_what_is_not_shown(visitor: Visitor, client: tickwheel.Client) -> None:
    await visitor.post("/endpoints/new", FORM)
    before = await client.endpoint("shop")
    change = {
        **FORM,
        "headers": "",
        "rate": "",
        "timeout": "",
        "url": "https://other.example/",
        "may_hold": "yes",
    }
    page = await visitor.post("/endpoint/shop/edit", {**change, "version": str(before.version)})
    assert "shop is changed; it is version 2 now." in page.text
    assert "tickwheel endpoints set shop --to https://other.example/" in page.text
    after = await client.endpoint("shop")
    assert (after.headers, after.secrets) == (before.headers, before.secrets)
    assert (after.url, after.rate_per_s, after.timeout_ms) == ("https://other.example/", None, 15_000)
    assert after.may_hold
    page = await visitor.post("/endpoint/shop/edit", {**change, "version": "1"})
    assert (page.status, "Nothing was done." in page.text) == (412, True)


async def test_a_test_and_the_last_attempts(
    visitor: Visitor, client: tickwheel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "LOOKS_S", (0.01,))
    await client.set_endpoint("shop", topic="tried", url="https://shop.example/")
    page = await visitor.post("/endpoint/shop/test", {})
    assert re.search(
        r"Test \d+ was sent\. Nothing was heard of it yet: .* In a terminal: tickwheel endpoints test shop",
        page.text,
    )
    assert 'hx-get="?attempts=1"' in page.html, "the log is read when the page is there"

    async def answered(error: str) -> Shown:
        """What the page says of a test that is answered meanwhile, as `tickwheel push` does it."""
        async with trio.open_nursery() as nursery:

            async def push() -> None:
                fetched = await client.fetch("tried.push-tests", "push", wait=timedelta(seconds=PATIENCE_S))
                receipts = [(message.id, message.epoch) for message in fetched]
                if error:
                    await client.nack(fetched.group_id, receipts, delay_ms=3_600_000, error=error)
                else:
                    await client.ack(fetched.group_id, receipts)

            nursery.start_soon(push)
            return await visitor.post("/endpoint/shop/test", {})

    monkeypatch.setattr(acting, "LOOKS_S", (0.05,) * int(PATIENCE_S / 0.05))
    await push_away(client)
    assert re.search(r"Test \d+ was taken: the endpoint answered 2xx\.", (await answered("")).text)
    page = await answered(f"HTTP 500 {SCRIPT}")
    assert SCRIPT not in page.html
    assert re.search(r"Test \d+ was not taken \(nacked\): HTTP 500 <script>", page.text)
    page = await visitor.get("/endpoint/shop?attempts=1")
    assert SCRIPT not in page.html
    rows = page.html.partition('id="attempts"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    outcomes = re.findall(r"</svg>(\w+)</span>", rows)
    assert outcomes == ["nacked", "acked", "acked"]
    assert rows.count(">test</span>") == 3
    assert "HTTP 500" not in page.html.partition('id="attempts"')[0], "a test says nothing of the endpoint"
    with pytest.raises(UnknownEndpoint):
        await client.test_endpoint("other")
    assert (await visitor.post("/endpoint/other/test", {})).status == 404


async def push_away(client: tickwheel.Client) -> None:
    """The test that nothing had taken is taken."""
    fetched = await client.fetch("tried.push-tests", "push", wait=timedelta(seconds=PATIENCE_S))
    await client.ack(fetched.group_id, [(message.id, message.epoch) for message in fetched])


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "javascript:alert(1)"}, {"url": ""}, {"rate": "fast"}, {"rate": "-1"}, {"timeout": "soon"},
        {"max_in_flight": "many"}, {"give_up_on": "all"}, {"retry_delays": "later"}, {"headers": SCRIPT},
        {"name": SCRIPT}, {"format": "xml"},
    ],
)  # fmt: skip
async def test_what_is_wrong_is_told_and_kept(
    visitor: Visitor, client: tickwheel.Client, fields: dict[str, str]
) -> None:
    page = await visitor.post("/endpoints/new", {**FORM, **fields})
    assert (page.status, "Nothing was done." in page.text) == (400, True)
    assert SCRIPT not in page.html
    assert 'value="orders"' in page.html
    assert await client.endpoints() == []


async def test_who_may_not_sees_no_buttons(guarded: Guarded) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        made = await client.set_endpoint("mine", topic="orders", url="https://shop.example/secret-path")
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["monitor"])
        for path in ("/endpoint/mine", "/endpoint/mine?tab=settings", "/endpoint/mine/edit"):
            page = await visitor.get(path)
            assert page.status == 200
            assert "secret-path" not in page.html
            assert "<form" not in page.html.partition("<main")[2].partition("</main>")[0]
        for action in ("enable", "disable", "test", "rotate", "forget", "delete", "edit"):
            page = await visitor.post(f"/endpoint/mine/{action}", {**FORM, "confirm": "mine", "version": "1"})
            assert page.status == 403, action
        await visitor.log_in(guarded.tokens["pusher"])
        page = await visitor.get("/endpoint/mine")
        assert 'action="/endpoint/mine/disable"' in page.html
        page = await visitor.get("/endpoint/mine?tab=settings")
        assert page.status == 200
        assert 'action="/endpoint/mine/delete"' not in page.html
    app = tickwheel.web.app(guarded.daemon.url, read_only=True)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["all"])
        for path in (
            "/endpoint/mine",
            "/endpoint/mine?tab=settings",
            "/endpoint/mine/edit",
            "/endpoints/new",
        ):
            assert '<form method="post"' not in (await visitor.get(path)).html.partition("<main")[2], path
        assert (await visitor.post("/endpoint/mine/rotate", {})).status == 403
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        assert (await client.endpoint("mine")).version == made.version


async def test_the_overview_says_of_an_endpoint_what_its_page_says(
    visitor: Visitor, client: tickwheel.Client
) -> None:
    """With times that the browser writes in its zone; `tickwheel top` has them in UTC."""
    await client.set_endpoint("moved", topic="moving", url="https://shop.example/", start="earliest")
    await client.send("moving", b"x")
    await client.disable_endpoint("moved", f"they move {SCRIPT}")
    with trio.fail_after(PATIENCE_S):
        while "1 message waits" not in (page := await visitor.get("/")).text:
            await trio.sleep(0.05)
    found = page.html.partition("moving / push.moved")[2].partition("</li>")[0]
    assert re.search(
        r'paused</span>.*they move .*since\s+<time datetime="[^"]+" data-form="full"', found, re.DOTALL
    )
    assert SCRIPT not in found
    await client.delete_endpoint("moved")
