"""Topics and groups in the dashboard: what is shown, what each action answers, and who may do it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pytest
import trio
from markupsafe import escape

import tickwheel
import tickwheel.web
from tests.support.clients.filled import SCRIPT
from tests.support.clients.visiting import Shown, Visitor
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.guarded import Guarded
from tickwheel_web.dashboard.topics import holding

LATER = timedelta(days=1)


def said(page: Shown) -> str:
    """The result of an action, and its command."""
    assert page.status == 200, page.text
    return page.text.partition("Times are in")[0].partition(" ")[2]


# -- the list -------------------------------------------------------------------------------------------------------


async def test_topics_are_listed_in_parts(visitor: Visitor, client: tickwheel.Client) -> None:
    for number in range(7):
        await client.create_topic(f"part-{number}", ack_wait=timedelta(seconds=10 + number))
    await client.send("part-3", b"x", delay=LATER)
    page = await visitor.get("/topics?search=PART-&limit=4")
    assert [f"part-{number}" in page.html for number in range(7)] == [True] * 4 + [False] * 3
    assert "ack_wait 13s" in page.text
    following = page.html.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    page = await visitor.get(following)
    assert [f"part-{number}" in page.html for number in range(7)] == [False] * 4 + [True] * 3
    assert 'rel="next"' not in page.html
    assert "There is no topic whose name contains “zzz”." in (await visitor.get("/topics?search=zzz")).text
    assert (await visitor.get("/topics?limit=201")).status == 400
    page = await visitor.get("/topics?search=%3Cscript%3Ealert(1)%3C/script%3E")
    assert SCRIPT not in page.html
    assert "alert(1)" in page.text


async def test_two_hundred_topics_take_a_bounded_number_of_requests(
    visitor: Visitor, client: tickwheel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        await client.create_topic(f"many-{number:03}")
    asked: list[str] = []
    topic = tickwheel.Client.topic

    async def counted(self: tickwheel.Client, name: str) -> object:
        asked.append(name)
        return await topic(self, name)

    monkeypatch.setattr(tickwheel.Client, "topic", counted)
    page = await visitor.get("/topics?search=many-")
    assert page.text.count("many-0") >= 50
    assert len(asked) == 50
    for number in range(200):
        await client.delete_topic(f"many-{number:03}")


async def test_dead_letters_stand_beside_their_topic(visitor: Visitor, client: tickwheel.Client) -> None:
    async with client.subscribe("mortal", "g") as subscription:
        await client.send("mortal", b"x")
        message = await subscription.receive(60)
        assert message is not None
        await message.nack(error="no", give_up=True)
        with trio.fail_after(PATIENCE_S):
            while not any(one.name == "mortal.dead" and one.ready for one in await client.topics()):
                await trio.sleep(0.01)
    page = await visitor.get("/topics?limit=200")
    assert 'href="/topics/mortal"' in page.html
    assert 'href="/topics/mortal.dead"' not in page.html
    assert 'href="/topics/mortal.dead"' in (await visitor.get("/topics?search=mortal.d")).html
    assert "dead letters 1" in (await visitor.get("/topics/mortal")).text


# -- what can be done with a topic ----------------------------------------------------------------------------------


async def test_making_pausing_and_deleting_a_topic(visitor: Visitor, client: tickwheel.Client) -> None:
    page = await visitor.post("/topics", {"name": "made", "shards": ""})
    assert page.path.startswith("/topics/made?")
    assert "The topic made was created. In a terminal: tickwheel topics create made" in said(page)
    assert "was there already. Nothing was changed." in said(await visitor.post("/topics", {"name": "made"}))
    page = await visitor.post("/topics", {"name": "parted", "shards": "2"})
    assert "tickwheel topics create parted --shards 2" in said(page)
    assert "Shards of parted" in page.text

    page = await visitor.post("/topics/made/pause", {"back": "topics"})
    assert page.path.startswith("/topics?")
    assert "made is paused" in said(page)
    assert "tickwheel topics pause made" in said(page)
    assert (await client.topic("made")).paused
    page = await visitor.post("/topics/made/resume", {})
    assert page.path.startswith("/topics/made?")
    assert "made is delivered again." in said(page)
    assert not (await client.topic("made")).paused

    await client.send("made", b"x", delay=LATER)
    for typed in ("", "mad", "made.dead"):
        page = await visitor.post("/topics/made/delete", {"confirm": typed})
        assert page.status == 400
        assert "Nothing was done." in page.text
    page = await visitor.post("/topics/made/delete", {"confirm": "made"})
    assert page.path.startswith("/topics?")
    assert "The topic made was deleted, with 1 message. In a terminal: tickwheel topics delete made" in said(
        page
    )
    assert (await visitor.get("/topics/made")).status == 404


async def test_a_topic_that_is_read_is_not_deleted(visitor: Visitor, client: tickwheel.Client) -> None:
    async with client.subscribe("read", "g"):
        page = await visitor.post("/topics/read/delete", {"confirm": "read"})
    assert (page.status, "topic_in_use" in page.text) == (409, True)


async def test_columns_order_the_list(visitor: Visitor, client: tickwheel.Client) -> None:
    """Also over several parts of it, each with the order in its links."""
    for number in range(5):
        await client.create_topic(f"ordered-{number}")
        await client.create_group(f"ordered-{number}", "g", start="earliest")
        await client.send_many(f"ordered-{number}", [b"x"] * (number * 3 % 5 + 1))
    wanted = ["ordered-3", "ordered-1", "ordered-4", "ordered-2", "ordered-0"]
    seen: list[str] = []
    address = "/topics?search=ordered-&order=backlog&limit=2"
    with trio.fail_after(60):
        while not all([(await client.group(name, "g")).backlog for name in wanted]):
            await trio.sleep(0.01)
    while address:
        page = await visitor.get(address)
        seen += re.findall(r'href="/topics/(ordered-\d)">', page.html)
        following = re.findall(r'rel="next" href="([^"]+)"', page.html)
        address = following[0].replace("&amp;", "&") if following else ""
    assert seen == wanted
    page = await visitor.get("/topics?search=ordered-")
    for name in ("scheduled", "backlog", "in+flight", "dead+letters", "groups", "sent", "delivered"):
        assert f"order={name}" in page.html, "each column that has numbers"
    assert (await visitor.get("/topics?order=colour")).status == 400


async def test_settings_are_changed_by_the_fields_that_differ(
    visitor: Visitor, client: tickwheel.Client
) -> None:
    await client.create_topic("set", ack_wait=timedelta(seconds=10), rate=500)
    page = await visitor.get("/topics/set?tab=settings")
    assert 'name="ack_wait" type="text" value="10s"' in page.html
    form = {"ack_wait": "10s", "was-ack_wait": "10s", "rate": "", "was-rate": "500"}
    form |= {"max_attempts": "7", "was-max_attempts": "", "max_body_bytes": "64KiB", "was-max_body_bytes": ""}
    await client.set_topic("set", ack_wait=timedelta(seconds=20))  # somebody else, meanwhile
    page = await visitor.post("/topics/set/settings", form)
    assert "max_attempts is 7, max_body_bytes is 64KiB, rate is 0 again, as the broker says." in said(page)
    command = "tickwheel topics set set --max-attempts 7 --max-body-bytes 64KiB --unset rate"
    assert command in said(page)
    info = await client.topic("set")
    assert info.settings == {"ack_wait_ms": 20_000, "max_attempts": 7, "max_body_bytes": 65_536}
    page = await visitor.post("/topics/set/settings", {"ack_wait": "20s", "was-ack_wait": "20s"})
    assert "No setting was changed" in said(page)
    for name, text in (
        ("ack_wait", SCRIPT),
        ("rate", "fast"),
        ("max_body_bytes", "huge"),
        ("priority", "256"),
    ):
        page = await visitor.post("/topics/set/settings", {name: text, "max_attempts": "9"})
        assert page.status == 400, (name, page.text)
        assert SCRIPT not in page.html
        assert f'id="setting-{name}" name="{name}" type="text" value="{escape(text)}"' in page.html
        assert page.html.count('aria-invalid="true"') == 1
        assert 'id="setting-max_attempts" name="max_attempts" type="text" value="9"' in page.html
    assert (await client.topic("set")).settings == info.settings


async def test_settings_that_do_not_fit_together_are_said_above_the_form(
    visitor: Visitor, client: tickwheel.Client
) -> None:
    await client.create_topic("unfit")
    form = {"min_backoff": "2m", "was-min_backoff": "", "max_backoff": "1m", "was-max_backoff": ""}
    page = await visitor.post("/topics/unfit/settings", form)
    assert page.status == 400
    assert "Nothing was done." in page.text
    assert 'value="2m"' in page.html
    assert (await client.topic("unfit")).settings == {}
    assert (await visitor.post("/topics/no-such-topic/settings", form)).status == 404


async def test_cancelling_all_tells_what_became_of_them(visitor: Visitor, client: tickwheel.Client) -> None:
    for _ in range(3):
        await client.send("drained", b"x", delay=LATER)
    assert (await visitor.post("/topics/drained/cancel", {"confirm": "x"})).status == 400
    page = await visitor.post("/topics/drained/cancel", {"confirm": "drained"})
    assert "3 cancelled In a terminal: tickwheel cancel drained --all --stop" in said(page)
    page = await visitor.post("/topics/drained/cancel", {"confirm": "drained"})
    assert "There was none. Nothing was changed." in said(page)


# -- groups ---------------------------------------------------------------------------------------------------------


async def test_a_group_in_the_middle_of_its_work(visitor: Visitor, client: tickwheel.Client) -> None:
    await client.create_topic("work", min_backoff=timedelta(hours=1), ack_wait=timedelta(minutes=5))
    async with client.subscribe("work", "g", credit=7) as subscription:
        for key in ("k-<b>", "later", "third"):
            await client.send("work", b"x", key=key)
        for number in range(3):
            message = await subscription.receive(60)
            assert message is not None
            if number == 1:
                await message.nack(error="no")
        page = await visitor.get("/topics/work/groups/g")
        assert "k-<b>" not in page.html
        assert "k-<b>" in page.text
        leased = page.text.partition("Lease ends")[2].partition("Next try")[0]
        waiting = page.text.partition("Next try")[2].partition("Consumers")[0]
        assert ("third" in leased, "later" in leased, "later" in waiting) == (True, False, True)
        assert "Oldest that is not done: " in page.text
        assert "Credit" in page.text
        assert "Oldest was due" in (await visitor.get("/topics/work")).text

        fields = {"state": "waiting", "confirm": "g"}
        page = await visitor.post("/topics/work/groups/g/redeliver", fields)
        assert "1 redelivered In a terminal: tickwheel redeliver work --state waiting --group g" in said(page)
        again = await subscription.receive(60)
        assert again is not None
        assert again.key == "later"
        page = await visitor.post("/topics/work/groups/g/redeliver", fields)
        assert "There was none. Nothing was changed." in said(page)
        assert (await visitor.post("/topics/work/groups/g/redeliver", {**fields, "state": "x"})).status == 400
        assert (await visitor.post("/topics/work/groups/g/redeliver", {"state": "waiting"})).status == 400
        page = await visitor.post("/topics/work/groups/g/delete", {"confirm": "g"})
        assert (page.status, "group_in_use" in page.text) == (409, True)


async def test_where_there_are_many_messages_one_is_asked_before_a_scan(
    visitor: Visitor, client: tickwheel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "MAX_UNASKED", 0)
    await client.send("vast", b"x")
    await client.create_group("vast", "g")
    with trio.fail_after(PATIENCE_S):
        while not (await client.group("vast", "g")).backlog:
            await trio.sleep(0.01)
    browsed: list[str] = []
    browse = tickwheel.Client.browse

    async def counted(self: tickwheel.Client, topic: str, **options: Any) -> Any:
        browsed.append(topic)
        return await browse(self, topic, **options)

    monkeypatch.setattr(tickwheel.Client, "browse", counted)
    for path, word in (
        ("/topics/vast", "Oldest was due"),
        ("/topics/vast/groups/g", "Oldest that is not done"),
    ):
        page = await visitor.get(path)
        assert (word in page.text, browsed) == (False, [])
        assert 'id="fresh" hx-get' in page.html
        assert f'href="{path}?scan=1">Scan for' in page.html
        page = await visitor.get(f"{path}?scan=1")
        assert word in page.text
        assert 'id="fresh">' in page.html  # it is not done again by itself
        assert browsed
        browsed.clear()


async def test_making_moving_and_deleting_a_group(visitor: Visitor, client: tickwheel.Client) -> None:
    await client.send("moved", b"x")
    page = await visitor.post("/topics/moved/groups", {"name": "late", "start": "latest"})
    assert page.path.startswith("/topics/moved/groups/late?")
    assert "tickwheel groups create moved late --start latest" in said(page)
    page = await visitor.post("/topics/moved/groups", {"name": "late"})
    assert "The group late was there already. Nothing was changed." in said(page)
    assert (await visitor.post("/topics/moved/groups", {"name": "x", "start": "y"})).status == 400
    with trio.fail_after(PATIENCE_S):
        while not (await client.topic("moved")).ready:
            await trio.sleep(0.01)

    seek = "/topics/moved/groups/late/seek"
    assert (await visitor.post(seek, {"to": "earliest"})).status == 400
    page = await visitor.post(seek, {"to": "earliest", "confirm": "late"})
    assert "late goes on at earliest: 1 message before it." in said(page)
    assert "tickwheel groups seek moved late --to earliest" in said(page)
    fields = {"to": "time", "confirm": "late"}
    page = await visitor.post(seek, {**fields, "time": "2031-05-01T09:00+02:00"})
    assert "late goes on at 2031-05-01T09:00+02:00: 0 messages before it." in said(page)
    for text in ("", "tomorrow", "2031-05-01T09:00", SCRIPT):
        page = await visitor.post(seek, {**fields, "time": text})
        assert page.status == 400, (text, page.text)
        assert SCRIPT not in page.html

    page = await visitor.post("/topics/moved/groups/late/delete", {"confirm": "late"})
    assert page.path.startswith("/topics/moved?")
    assert "The group late was deleted; it was not done with 0 messages." in said(page)
    assert (await visitor.get("/topics/moved/groups/late")).status == 404


@pytest.mark.parametrize(
    "part", ["a%2Fb", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "%E2%80%AEevil", "%00", "x" * 300]
)
async def test_names_that_cannot_be(visitor: Visitor, part: str) -> None:
    """They name nothing, and stand on the page as text."""
    topic, group = f"/topics/{part}", f"/topics/{part}/groups/{part}"
    for path, action in ((topic, "pause"), (topic, "delete"), (group, "seek"), (group, "delete")):
        for page in (
            await visitor.get(path),
            await visitor.post(f"{path}/{action}", {"confirm": unquote(part), "to": "latest"}),
        ):
            assert page.status in (400, 404), page.text
            assert SCRIPT not in page.html
    assert (await visitor.post("/topics", {"name": SCRIPT})).status == 400


# -- who may what ---------------------------------------------------------------------------------------------------

ACTIONS = {  # the buttons of each page that a token sees
    "all": "Pause Send Create-group Settings Cancel Delete Redeliver Seek Delete-group",
    "publisher": "Send Cancel",
    "worker": "Create-group Redeliver Seek",
    "owner": "Pause Settings Delete Delete-group",
    "watcher": "",
    "pusher": "Create-group Redeliver Seek",
}
GROUP_ACTIONS = ("Redeliver", "Seek", "Delete-group")
SETTINGS = "?tab=settings"
FORMS = {
    "Pause": "/topics/orders/pause",
    "Create-group": "/topics/orders/groups",
    "Settings": "/topics/orders/settings",
    "Cancel": "/topics/orders/cancel",
    "Delete": "/topics/orders/delete",
    "Redeliver": "/topics/orders/groups/g/redeliver",
    "Seek": "/topics/orders/groups/g/seek",
    "Delete-group": "/topics/orders/groups/g/delete",
}


@pytest.mark.parametrize("who", ACTIONS)
@pytest.mark.parametrize("is_read_only", [False, True])
async def test_buttons_that_would_be_refused_are_absent(
    guarded: Guarded, who: str, is_read_only: bool
) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        await client.create_topic("orders")
        await client.create_group("orders", "g")
    app = tickwheel.web.app(guarded.daemon.url, read_only=is_read_only)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens[who])
        pages = [
            f"{path}{tab}" for path in ("/topics/orders", "/topics/orders/groups/g") for tab in ("", SETTINGS)
        ]
        shown = [(await visitor.get(path)).html for path in pages]
        html = "".join(shown)
        assert not any(f'action="{FORMS[name]}"' in shown[2] for name in GROUP_ACTIONS), "behind a tab"
        there = {name for name, path in FORMS.items() if f'action="{path}"' in html}
        assert there == (set() if is_read_only else set(ACTIONS[who].split()) - {"Send"})
        for name, path in FORMS.items():
            if name not in there:  # who makes the request by hand is refused
                fields = {"name": "new", "confirm": "orders" if name in ("Cancel", "Delete") else "g"}
                page = await visitor.post(path, {**fields, "state": "waiting", "to": "latest", "rate": "5"})
                assert page.status == 403, (name, page.text)


async def test_the_list_has_what_the_token_sees(guarded: Guarded) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        await client.create_topic("orders")
        await client.create_topic("secret")
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["watcher"])
        page = await visitor.get("/topics")
        assert ('href="/topics/orders"' in page.html, "secret" in page.text) == (True, False)
        assert (await visitor.get("/topics/secret")).status == 403
        await visitor.log_in(guarded.tokens["stranger"])
        assert (
            "There is no topic yet, or none that your token may see." in (await visitor.get("/topics")).text
        )
