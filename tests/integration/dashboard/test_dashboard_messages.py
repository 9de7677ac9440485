"""The dashboard's pages about messages against a real broker: what they show, and what each action answers."""

from __future__ import annotations

import os
import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.filled import HOSTILE, SCRIPT
from tests.support.clients.visiting import Shown, Visitor
from tests.support.processes.daemon_harness import Daemon, RawConnection
from tests.support.processes.guarded import Guarded
from tickwheel import Client
from tickwheel.errors import NotConnected
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import SendColumns, encode_send
from tickwheel_web.dashboard.messages import letters
from tickwheel_web.dashboard.messages.sending import FORM

DAY = timedelta(days=1)


def notice(page: Shown) -> str:
    """What the page says of the action before it, with the command."""
    found = re.search(r'<div class="notice.*?</div>\s*</div>', page.html, re.DOTALL)
    assert found is not None, page.text
    return " ".join(re.sub("<[^>]*>", " ", found[0]).split())


# -- a list ---------------------------------------------------------------------------------------------------------


async def test_a_line_and_fields_mean_the_same(visitor: Visitor, client: Client) -> None:
    soon = await client.send("lines", b"x", delay=timedelta(minutes=10))
    late = await client.send("lines", b"xyz", delay=DAY, key="late one")
    both = [
        ("q=topic:lines+due:<1h", [soon.id]),
        ("q=topic:lines+due:>1h+state:scheduled", [late.id]),
        ("topic=lines&due_from=1h", [late.id]),
        ("topic=lines&state=scheduled,dead", [soon.id, late.id]),
        ("q=topic:lines+key:'late one'", [late.id]),
        ("topic=lines&key=late+one", [late.id]),
        ("topic=lines&state=dead", []),
    ]
    for query, ids in both:
        page = await visitor.get(f"/messages?{query}")
        assert page.status == 200, page.text
        assert re.findall(r'name="message" value="(\d+)"', page.html) == [str(one) for one in ids], query
    assert "No message of lines is like that." in page.text
    page = await visitor.get(f"/messages?q={late.id}")
    assert page.path == f"/messages/{late.id}"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("q=topic:x+state:odd", "'odd' is no state"),
        ("q=topic:x+due:1h", "due: wants < or >"),
        ("topic=x&due_from=tomorrow", "'tomorrow' is no time"),
        ("topic=x&due_from=2031-05-01T09:00", "has no offset from UTC"),
        ("q='x", "a quotation mark is not closed"),
        ("q=topic:x+topic:y", "topic is there twice"),
        ("topic=x&key=k&state=dead", "a key means one message"),
        ("topic=x&after=-1", "after is no whole number"),
        ("topic=x&id=one", "'one' is no id"),
        ("topic=nothing-here", "unknown_topic"),
    ],
)
async def test_what_cannot_be_searched_for(visitor: Visitor, query: str, says: str) -> None:
    page = await visitor.get(f"/messages?{query}")
    assert page.status in (400, 404)
    assert says in page.text


async def test_a_list_has_parts(visitor: Visitor, client: Client) -> None:
    await client.send_many("parts", [b"x"] * 120, delay=DAY)
    found: list[str] = []
    path = "/messages?topic=parts"
    for rows in (50, 50, 20):
        page = await visitor.get(path)
        ids = re.findall(r'name="message" value="(\d+)"', page.html)
        assert len(ids) == rows
        found += ids
        following = re.search(r'href="([^"]*)" rel="next"', page.html)
        path = "" if following is None else following[1].replace("&amp;", "&")
    assert path == ""
    assert len(set(found)) == 120


# -- many at once ---------------------------------------------------------------------------------------------------


async def changed(visitor: Visitor, fields: dict[str, str | list[str]], typed: str = "") -> Shown:
    """After both steps, as a browser without scripts makes them."""
    page = await visitor.post("/messages", fields)
    assert page.status == 200, page.text
    assert "Nothing is changed yet." in page.text
    sent: dict[str, str | list[str]] = {"typed": typed}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', page.html):
        sent[name] = [*sent.get(name, []), value]
    return await visitor.post("/messages", sent)


async def test_those_that_were_selected(visitor: Visitor, client: Client) -> None:
    async with client.subscribe("selected", "g") as subscription:
        gone = await client.send("selected", b"x")
        await subscription.receive(60)
        kept = [await client.send("selected", b"x", delay=DAY) for _ in range(2)]
        ids = [str(one.id) for one in (gone, *kept)]
        page = await changed(
            visitor, {"topic": "selected", "message": ids, "scope": "selected", "action": "cancel"}
        )
        assert (
            notice(page)
            == f"2 cancelled, 1 already delivered In a terminal: tickwheel cancel {' '.join(ids)}"
        )
        page = await changed(
            visitor, {"topic": "selected", "message": ids[:1], "scope": "selected", "action": "stop"}
        )
        assert notice(page).startswith("1 stopped ")
    page = await visitor.post("/messages", {"topic": "selected", "action": "cancel", "scope": "selected"})
    assert notice(page) == "No message is selected. Nothing was changed."


async def test_all_of_a_filter_and_no_more_than_were_counted(visitor: Visitor, client: Client) -> None:
    await client.send_many("many", [b"x"] * 101, delay=DAY)
    fields: dict[str, str | list[str]] = {"topic": "many", "due_from": "1h", "scope": "filter"}
    page = await changed(visitor, {**fields, "action": "reschedule", "to": "2031-05-01T09:00+02:00"})
    assert page.status == 400
    assert "Type 101 to change so many. Nothing was changed." in page.text
    page = await changed(visitor, {**fields, "action": "reschedule", "to": "2031-05-01T09:00+02:00"}, "101")
    assert re.fullmatch(
        r"101 rescheduled In a terminal: tickwheel reschedule many --due-from \S+ --at 2031-05-01T09:00\+02:00",
        notice(page),
    )
    found = await client.browse("many", limit=1)
    assert found[0].deliver_at == datetime(2031, 5, 1, 7, tzinfo=UTC)
    sent: dict[str, str | list[str]] = {"topic": "many", "scope": "filter", "sure": "1", "count": "3"}
    page = await visitor.post("/messages", {**sent, "action": "cancel"})
    assert notice(page) == "3 cancelled In a terminal: tickwheel cancel many --all"
    page = await changed(visitor, {**fields, "action": "priority", "to": "7"})
    assert notice(page).startswith("98 rescheduled ")
    assert (await client.browse("many", limit=1))[0].priority == 7


async def test_redelivery_of_a_filter(visitor: Visitor, client: Client) -> None:
    async with client.subscribe("again", "g") as subscription:
        await client.send("again", b"x")
        message = await subscription.receive(60)
        await message.nack(give_up=True)
        fields: dict[str, str | list[str]] = {"topic": "again", "state": "dead", "scope": "filter"}
        page = await changed(visitor, {**fields, "action": "redeliver"})
        assert notice(page) == "1 redelivered In a terminal: tickwheel redeliver again --state dead"
        assert (await subscription.receive(60)).id == message.id


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "cancel"},
        {"topic": "many", "action": "explode"},
        {"topic": "many", "action": "priority", "to": "256"},
        {"topic": "many", "action": "reschedule", "to": ""},
        {"topic": "many", "action": "reschedule", "to": "soon"},
        {"topic": "many", "action": "cancel", "scope": "selected", "message": "1;2"},
        {"topic": "many", "action": "cancel", "scope": "filter", "sure": "1", "count": ""},
        {"topic": "many", "action": "cancel", "scope": "filter", "key": "k"},
    ],
)
async def test_forms_that_are_wrong(visitor: Visitor, fields: dict[str, str | list[str]]) -> None:
    page = await visitor.post("/messages", fields)
    assert page.status in (400, 403)
    assert page.html.count("<h1>") == 1


# -- one message ----------------------------------------------------------------------------------------------------


async def test_what_a_message_is(visitor: Visitor, client: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = await client.send(
        "shown", b'{"a":[1,"<b>"]}', key=HOSTILE, headers={"x": HOSTILE, "traceparent": trace}, delay=DAY
    )
    page = await visitor.get(f"/messages/{sent.id}")
    assert SCRIPT not in page.html
    assert "<bdi>" in page.html
    assert "0af7651916cd43dd8448eb211c80319c" in page.text
    assert "[\n    1,\n    &#34;&lt;b&gt;&#34;\n  ]" in page.html
    assert f"tickwheel show {sent.id}" in page.text
    page = await visitor.get(f"/messages/{sent.id}?form=hex")
    assert "000000 7b 22 61 22" in page.text
    answer = await visitor.ask("GET", f"/messages/{sent.id}/body")
    assert answer.body == b'{"a":[1,"<b>"]}'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="message-{sent.id}.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "body", [b"\xff" * 70_000, b"[" * 60_000, b"[" * 30 + b"1," * 30_000, b"", b"1" * 60_000]
)
async def test_bodies_of_any_kind(visitor: Visitor, client: Client, body: bytes) -> None:
    sent = await client.send("bodies", body, delay=DAY)
    for form in ("", "?form=json", "?form=text", "?form=hex"):
        page = await visitor.get(f"/messages/{sent.id}{form}")
        assert page.status == 200
        assert len(page.html) < 1_000_000
    assert ("The first 64.0 KiB of it" in page.text) is (len(body) > 65_536)
    assert (await visitor.ask("GET", f"/messages/{sent.id}/body")).body == body


async def test_the_life_of_a_message(visitor: Visitor, client: Client) -> None:
    async with client.subscribe("lives", "g") as subscription:
        sent = await client.send("lives", b"x", delay=timedelta(milliseconds=20))
        await (await subscription.receive(60)).nack(delay=timedelta(milliseconds=20), error=HOSTILE)
        await (await subscription.receive(60)).ack()
    page = await visitor.get(f"/messages/{sent.id}?history=1")
    assert SCRIPT not in page.html
    life = page.text.partition("Its life")[2]
    places = [
        life.index(f" {word}")
        for word in ("sent", "delivered", "not acked", "delivery 2", "acked g, delivery 2")
    ]
    assert places == sorted(places)
    assert "after it was due" in life
    assert "next try" in life
    scheduled = await client.send("lives", b"x", delay=DAY)
    page = await visitor.get(f"/messages/{scheduled.id}")
    assert "will be due" in page.text
    assert "Show what has happened" in page.text


async def test_what_every_group_is_done_with_is_not_ready(visitor: Visitor, client: Client) -> None:
    await client.create_topic("finished")
    async with client.subscribe("finished", "g") as subscription:
        dead = await client.send("finished", b"x")
        await (await subscription.receive(60)).nack(give_up=True, error="no such order")
        acked = await client.send("finished", b"y")
        await (await subscription.receive(60)).ack(confirm=True)
    for sent, state in ((dead, "dead"), (acked, "acked")):
        page = await visitor.get(f"/messages/{sent.id}?history=1")
        assert f" state {state} due " in page.text
        life = page.text.partition("Its life")[2].partition("Change it")[0]
        assert "next try" not in life
        assert " ready" not in page.text.partition("As a call")[0]
    assert "given up" in (await visitor.get(f"/messages/{dead.id}?history=1")).text


async def test_what_is_done_with_one_message(visitor: Visitor, client: Client) -> None:
    async with client.subscribe("acted", "g") as subscription:
        sent = await client.send("acted", b"x", delay=DAY)
        path = f"/messages/{sent.id}"
        page = await visitor.post(path, {"action": "reschedule", "to": "2031-05-01T09:00+02:00"})
        assert notice(page) == (
            "It is due at 2031-05-01T09:00:00+02:00. In a terminal: "
            f"tickwheel reschedule {sent.id} --at 2031-05-01T09:00+02:00"
        )
        page = await visitor.post(path, {"action": "priority", "to": "3"})
        assert notice(page).startswith("It has another priority.")
        page = await visitor.post(path, {"action": "run"})
        assert notice(page) == f"It is due now. In a terminal: tickwheel reschedule {sent.id} --in 0s"
        message = await subscription.receive(60)
        page = await visitor.post(path, {"action": "cancel"})
        assert notice(page).startswith("It is delivered already. Nothing was changed.")
        page = await visitor.post(path, {"action": "redeliver", "to": ""})
        assert notice(page).startswith("It is delivered again.")
        await (await subscription.receive(60)).ack(confirm=True)
        page = await visitor.post(path, {"action": "stop"})
        assert notice(page).startswith("It is delivered and acked already.")
        page = await visitor.post(path, {"action": "redeliver", "acked": "1"})
        assert notice(page) == f"It is delivered again. In a terminal: tickwheel redeliver {sent.id} --acked"
        assert (await subscription.receive(60)).id == message.id
        page = await visitor.post(path, {"action": "stop"})
        assert notice(page).startswith("It is stopped:")
    other = await client.send("acted", b"x", delay=DAY)
    page = await visitor.post(f"/messages/{other.id}", {"action": "cancel"})
    assert notice(page).startswith("It is cancelled, and will not be delivered.")
    assert 'value="run"' not in page.html
    assert (await visitor.post(path, {"action": "explode"})).status == 400


async def test_another_body(visitor: Visitor, client: Client) -> None:
    sent = await client.send("bodies", b"old", key="k", headers={"a": "b"}, delay=DAY, priority=7)
    before = await client.message(id=sent.id)
    page = await visitor.post(f"/messages/{sent.id}", {"action": "replace", "body": "new\r\nlines"})
    assert notice(page).startswith(f"Message {sent.id} is cancelled, and this one is sent in its place")
    found = await client.message("bodies", key="k")
    assert found is not None
    assert before is not None
    assert page.path.startswith(f"/messages/{found.id}?")
    assert (found.body, found.headers, found.priority) == (b"new\nlines", {"a": "b"}, 7)
    assert found.deliver_at == before.deliver_at
    page = await visitor.post(f"/messages/{sent.id}", {"action": "replace", "body": "again"})
    assert notice(page).startswith("It was cancelled before. Nothing was changed.")


async def test_headers_that_cannot_be_read(visitor: Visitor, client: Client, daemon: Daemon) -> None:
    with RawConnection(daemon.url).greet() as raw:
        for topic in ("odd", "odd.dead"):
            columns = SendColumns([b"{}"], headers=[b"\xc1"], deliver_at_ms=4_000_000_000_000)
            raw.ask(FrameType.SEND, encode_send(raw.open_topic(topic), columns))
    found = await client.browse("odd")
    path = f"/messages/{found[0].id}"
    page = await visitor.get(path)
    assert page.status == 200
    assert "in a way that cannot be read" in page.text
    assert "In an hour" in page.text
    assert "Give it another body" not in page.text, "it would lose its headers"
    page = await visitor.post(path, {"action": "replace", "body": "x"})
    assert (page.status, "Its headers cannot be read" in page.text) == (400, True)
    assert (await visitor.ask("GET", f"{path}/body")).body == b"{}"
    assert (await visitor.get("/dead?topic=odd")).status == 200
    letter = msgspec.json.decode((await visitor.ask("GET", "/dead/export?topic=odd")).body)
    assert (letter["headers"], letter["body_bytes"]) == (None, 2)
    page = await visitor.post(path, {"action": "cancel"})
    assert notice(page).startswith("It is cancelled, and will not be delivered.")


@pytest.mark.parametrize("path", ["/messages/999999", "/messages/0", "/messages/x", "/messages/" + "9" * 30])
async def test_messages_that_are_not_there(visitor: Visitor, path: str) -> None:
    assert (await visitor.get(path)).status in (400, 404)
    assert (await visitor.post(path, {"action": "cancel"})).status in (400, 404)


# -- dead letters ---------------------------------------------------------------------------------------------------


async def given_up(client: Client, topic: str, errors: list[str]) -> list[int]:
    """Ids of the messages."""
    async with client.subscribe(topic, "g") as subscription:
        await client.send_many(topic, [b"<b>"] * len(errors), headers={"x": SCRIPT})
        found = []
        for error in errors:
            message = await subscription.receive(60)
            await message.nack(error=error, give_up=True)
            found.append(message.id)
    return found


def letters_of(page: Shown) -> list[str]:
    return re.findall(r'name="letter" value="(\d+)"', page.html)


async def test_letters_by_topic_and_error(visitor: Visitor, client: Client) -> None:
    originals = await given_up(client, "kinds", [HOSTILE, "refused", "refused", ""])
    page = await visitor.get("/dead")
    assert SCRIPT not in page.html
    assert re.search(r"kinds refused 2 g ", page.text)
    assert re.search(r"kinds without a text 1 g ", page.text)
    address = re.search(r'href="(/dead\?topic=kinds&amp;error=\w+)"><bdi>refused', page.html)
    assert address is not None
    page = await visitor.get(address[1].replace("&amp;", "&"))
    assert len(letters_of(page)) == 2
    assert f'href="/messages/{originals[1]}"' in page.html
    assert 'href="/v1/topics/kinds/dead"' in page.html
    page = await visitor.get("/dead?topic=kinds")
    assert len(letters_of(page)) == 4
    assert SCRIPT not in page.html
    assert (await visitor.get("/dead?topic=no-such-topic")).status == 404
    answer = await visitor.ask("GET", "/dead/export?topic=kinds")
    lines = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    assert [line["original"] for line in lines] == [str(one) for one in originals]
    assert lines[1]["base64"] == "PGI+"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


async def test_letters_are_replayed(visitor: Visitor, client: Client) -> None:
    originals = await given_up(client, "replayed", ["one", "two", "two", "two"])
    found = letters_of(await visitor.get("/dead?topic=replayed"))
    fields: dict[str, str | list[str]] = {"topic": "replayed", "action": "replay"}
    page = await visitor.post("/dead", {**fields, "scope": "selected"})
    assert notice(page).startswith("No letter is selected")
    page = await visitor.post("/dead", {**fields, "scope": "selected", "letter": found[:1]})
    assert notice(page) == f"1 replayed. In a terminal: tickwheel dead replay replayed {found[0]}"
    number = re.search(r"error=(\w+)", (await visitor.get("/dead")).html.partition("topic=replayed&amp;")[2])
    assert number is not None
    page = await visitor.post(
        "/dead", {**fields, "scope": "all", "error": number[1], "delay": "1h", "rate": "2"}
    )
    said = notice(page)
    assert said.startswith("3 redelivered. It took 2 parts; this is the first one: In a terminal: ")
    assert re.search(
        rf"tickwheel redeliver {originals[1]} {originals[2]} --group g --in 1h &amp;&amp; "
        rf"tickwheel cancel {found[1]} {found[2]} --stop$",
        said,
    )
    assert letters_of(page) == []
    states = [one.groups[0] for one in await client.messages(ids=originals) if one is not None]
    assert states[0].state in ("waiting", "ready")  # at once, which takes a moment
    assert [one.state for one in states[1:]] == ["waiting"] * 3
    untils = sorted(one.until_ms for one in states[1:])
    assert untils[0] == untils[1] > states[0].until_ms + 3_000_000
    assert untils[2] - untils[0] >= 1_000
    assert "There are no dead letters of replayed." in (await visitor.get("/dead?topic=replayed")).text


async def test_many_letters_are_counted_first(visitor: Visitor, client: Client) -> None:
    await given_up(client, "crowd", ["x"] * 101)
    fields: dict[str, str | list[str]] = {"topic": "crowd", "action": "replay", "scope": "all"}
    page = await visitor.post("/dead", fields)
    assert "Replay 101 letters" in page.text
    assert "Nothing is changed yet." in page.text
    sent: dict[str, str | list[str]] = {"action": "replay", "typed": "101"}
    sent["letter"] = letters_of(page)
    page = await visitor.post("/dead", {**sent, "topic": "crowd", "scope": "selected", "typed": "100"})
    assert page.status == 400
    page = await visitor.post("/dead", {**sent, "topic": "crowd", "scope": "selected"})
    assert notice(page) == "101 replayed. In a terminal: tickwheel dead replay crowd --limit 101"


async def test_all_letters_are_exported(
    visitor: Visitor, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "PART", 3)
    originals = await given_up(client, "exported", ["x"] * 10)
    answer = await visitor.ask("GET", "/dead/export?topic=exported")
    lines = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    assert [line["original"] for line in lines] == [str(one) for one in originals]


async def test_a_replay_with_a_rate_says_where_it_stopped(
    visitor: Visitor, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_up(client, "stopped", ["x"] * 4)
    redeliver, calls = tickwheel.Client.redeliver, 0

    async def once(self: Client, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise NotConnected
        return await redeliver(self, **options)

    monkeypatch.setattr(tickwheel.Client, "redeliver", once)
    fields = {"topic": "stopped", "action": "replay", "scope": "all", "rate": "2"}
    page = await visitor.post("/dead", fields)
    assert notice(page).startswith("2 redelivered. It stopped there: ")
    assert "Of group g up to 2 letters may be left" in notice(page)
    assert len(letters_of(page)) == 2


async def test_letters_are_dropped_by_name(visitor: Visitor, client: Client) -> None:
    await given_up(client, "dropped", ["x", "y"])
    page = await visitor.post("/dead", {"topic": "dropped", "action": "drop", "confirm": "droped"})
    assert (page.status, "Nothing was done." in page.text) == (400, True)
    assert len(letters_of(await visitor.get("/dead?topic=dropped"))) == 2
    page = await visitor.post("/dead", {"topic": "dropped", "action": "drop", "confirm": "dropped"})
    assert notice(page) == "2 dropped. In a terminal: tickwheel dead purge dropped --yes"
    assert "There are no dead letters of dropped." in page.text


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "replay"},
        {"topic": "x", "action": "explode"},
        {"topic": "x", "action": "replay", "scope": "all", "delay": "soon"},
        {"topic": "x", "action": "replay", "scope": "all", "rate": "0"},
        {"topic": "x", "action": "replay", "scope": "selected", "letter": "-1"},
    ],
)
async def test_replays_that_are_wrong(visitor: Visitor, fields: dict[str, str | list[str]]) -> None:
    page = await visitor.post("/dead", fields)
    assert page.status == 400
    assert page.html.count("<h1>") == 1


# -- sending --------------------------------------------------------------------------------------------------------

EMPTY: dict[str, str] = dict.fromkeys(FORM.fields, "")


async def test_a_message_is_sent(visitor: Visitor, client: Client) -> None:
    given = {
        **EMPTY,
        "topic": "sent",
        "form": "json",
        "body": '{"a":\r\n"é"}',
        "headers": f"x: {SCRIPT}\r\n\r\nother:1",
        "at": "2031-07-01T09:00",
        "zone": "Europe/Berlin",
        "key": HOSTILE,
        "priority": "7",
    }
    page = await visitor.post("/send", given)
    assert SCRIPT not in page.html
    assert notice(page).startswith("Message ")
    found = await client.message("sent", key=HOSTILE)
    assert found is not None
    assert page.path.startswith(f"/messages/{found.id}?")
    assert found.body == '{"a":\n"é"}'.encode()
    assert found.headers == {"x": SCRIPT, "other": "1", "content-type": "application/json"}
    assert found.priority == 7
    assert found.deliver_at == datetime(2031, 7, 1, 7, tzinfo=UTC)
    assert "Its key was there before" in notice(await visitor.post("/send", given))
    page = await visitor.post(
        "/send", {**EMPTY, "topic": "sent", "form": "base64", "body": "/w==", "delay": "1d"}
    )
    assert "000000 ff" in page.text


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("topic", "", "It is needed."),
        ("topic", "<b>", "topic"),
        ("body", "{", "This is no JSON"),
        ("headers", "none", "name: value"),
        ("delay", "soon", "is not a duration"),
        ("at", "2031-13-01T09:00", "This is no time"),
        ("at", "2031-03-30T02:30", "There is no such time in this zone"),
        ("zone", "Mars/Base", "There is no time zone"),
        ("zone", "../x", "There is no time zone"),
        ("key", "k" * 65_536, "key"),
        ("priority", "256", "from 0 to 255"),
        ("headers", "x: " + "y" * 40_000, "eaders"),
    ],
)
async def test_what_is_wrong_stands_beside_its_field(
    visitor: Visitor, field: str, value: str, says: str
) -> None:
    given = {**EMPTY, "topic": "wrong", "form": "json", "body": "1", "zone": "Europe/Berlin"}
    if field == "zone":
        given["at"] = "2031-07-01T09:00"
    page = await visitor.post("/send", {**given, field: value})
    assert page.status in (400, 413)
    beside = re.search(rf'id="field-{field}-hint">([^<]*)', page.html)
    assert beside is not None
    assert says in beside[1].replace("&#39;", "'")
    assert re.search(rf'id="field-{field}"[^>]*aria-invalid="true"', page.html)
    assert "Nothing was done." in page.text
    assert page.html.count("aria-invalid") == 1


async def test_the_same_as_a_call(visitor: Visitor, client: Client, daemon: Daemon) -> None:
    given = {
        **EMPTY,
        "topic": "calls",
        "form": "text",
        "body": "it's <b>",
        "key": "-k",
        "delay": "1d",
        "action": "show",
    }
    page = await visitor.post("/send", {**given, "headers": "a: b c"})
    assert "calls" not in [one.name for one in await client.topics()]
    command, python, _ = [
        unescape(one) for one in re.findall(r"<pre[^>]*><code>(.*?)</code>", page.html, re.DOTALL)
    ]
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "TICKWHEEL_URL": daemon.url, "PATH": programs}
    done = await trio.run_process(command, shell=True, env=environment, capture_stdout=True)
    found = await client.message("calls", key="-k")
    assert done.returncode == 0
    assert found is not None
    assert (found.body, found.headers["a"]) == (b"it's <b>", "b c")
    done = await trio.run_process([sys.executable, "-c", python], env=environment, capture_stdout=True)
    assert b"duplicate=True" in done.stdout


async def test_curl_sends_the_same(visitor: Visitor, client: Client) -> None:
    given = {
        **EMPTY,
        "topic": "curled",
        "form": "json",
        "body": "[1]",
        "key": "k",
        "delay": "1d",
        "action": "show",
    }
    page = await visitor.post("/send", given)
    curl = unescape(re.findall(r"<pre[^>]*><code>(.*?)</code>", page.html, re.DOTALL)[2])
    words = shlex.split(curl)
    body, target = words[words.index("-d") + 1], words[-1]
    answer = await visitor.ask(
        "POST", target.removeprefix("http://127.0.0.1:7413"), body.encode(), content_type="application/json"
    )
    assert answer.status == 201
    found = await client.message("curled", key="k")
    assert found is not None
    assert found.body == b"[1]"


# -- rights, and what is hidden -------------------------------------------------------------------------------------


async def test_buttons_are_there_for_who_may_press_them(guarded: Guarded) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        sent = await client.send("orders", b"x", delay=DAY)
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        for who, sees, has_buttons in (
            ("all", True, True),
            ("watcher", True, False),
            ("publisher", False, False),
        ):
            await visitor.log_in(guarded.tokens[who])
            page = await visitor.get("/messages?topic=orders")
            assert (page.status == 200) is sees
            assert ('name="message"' in page.html) is has_buttons
            page = await visitor.get(f"/messages/{sent.id}")
            assert (page.status == 200) is sees
            assert ('value="cancel"' in page.html) is has_buttons
            page = await visitor.post("/messages", {"topic": "orders", "action": "redeliver"})
            assert (page.status == 403) is not has_buttons
        page = await visitor.post(f"/messages/{sent.id}", {"action": "cancel"})
        assert page.status in (403, 404)
        page = await visitor.post("/send", {**EMPTY, "topic": "orders", "body": "x"})
        assert notice(page).startswith("Message ")
        assert page.path.startswith("/send?")
        page = await visitor.post("/send", {**EMPTY, "topic": "mails", "body": "x"})
        assert page.status == 403
        await visitor.log_in(guarded.tokens["watcher"])
        assert "Nothing can be sent from here." in (await visitor.get("/send")).text
        for fields in ({"action": "replay", "scope": "all"}, {"action": "drop", "confirm": "orders"}):
            page = await visitor.post("/dead", {**fields, "topic": "orders"})
            assert page.status == 403 or "0 dropped" in page.text or "none is left" in page.text
    app = tickwheel.web.app(guarded.daemon.url, read_only=True)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["all"])
        assert 'value="cancel"' not in (await visitor.get(f"/messages/{sent.id}")).html
        assert 'name="message"' not in (await visitor.get("/messages?topic=orders")).html
        assert (await visitor.post(f"/messages/{sent.id}", {"action": "cancel"})).status == 403


async def test_what_is_hidden(daemon: Daemon, client: Client) -> None:
    sent = await client.send("hidden", b"geheim", headers={"Secret": "leise", "open": "laut"}, delay=DAY)
    app = tickwheel.web.app(daemon.url, hide_bodies=True, hide_headers=["secret"])
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        page = await visitor.get(f"/messages/{sent.id}")
        assert "Bodies are hidden here." in page.text
        assert "laut" in page.text
        assert "geheim" not in page.html
        assert "leise" not in page.html
        assert (await visitor.get(f"/messages/{sent.id}/body")).status == 403
        await given_up(client, "hidden-letters", ["x"])
        answer = await visitor.ask("GET", "/dead/export?topic=hidden-letters")
        assert msgspec.json.decode(answer.body)["body_bytes"] == 3
        assert b"PGI+" not in answer.body
        page = await visitor.post(f"/messages/{sent.id}", {"action": "replace", "body": "x"})
        assert page.status == 403
