"""The dashboard's pages about schedules: forms without scripts, previews across changes of clocks, exact answers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.filled import HOSTILE, SCRIPT
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Guarded
from tickwheel.errors import UnknownSchedule

FORM = {
    "existing": "", "name": "standup", "topic": "chat", "cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "every": "",
    "start": "", "until": "", "body": "stand-up!", "headers": "x-kind: call", "priority": "", "overlap": "skip",
    "catch_up": "none", "window": "",
}  # fmt: skip


@pytest.fixture
async def client(client: tickwheel.Client) -> AsyncIterator[tickwheel.Client]:
    """What a test has made goes with it."""
    yield client
    for one in await client.schedules():
        await client.delete_schedule(one.name)


async def test_from_the_first_form_to_the_last_button(visitor: Visitor, client: tickwheel.Client) -> None:
    assert "There are no schedules" in (await visitor.get("/schedules")).text
    page = await visitor.post("/schedules/new", FORM)
    assert (page.status, page.path.partition("?")[0]) == (200, "/schedule/standup")
    assert "standup is created: at 09:00 on Monday through Friday, Europe/Berlin." in page.text
    assert "tickwheel schedules create standup --topic chat --cron '0 9 * * MON-FRI'" in page.text
    made = await client.schedule("standup")
    assert (made.topic, made.body, made.headers) == ("chat", b"stand-up!", {"x-kind": "call"})
    assert (made.overlap, made.catch_up) == ("skip", "none")
    assert "standup" in (await visitor.get("/schedules?search=chat")).text
    assert "No schedule has this text" in (await visitor.get("/schedules?search=elsewhere")).text

    assert "standup is paused." in (await visitor.post("/schedule/standup/pause", {})).text
    assert (await client.schedule("standup")).paused
    page = await visitor.post("/schedule/standup/resume", {})
    assert "standup goes on." in page.text
    assert "tickwheel schedules resume standup" in page.text

    token = re.findall(r'name="token" value="([^"]+)"', page.html)[0]
    answers = [(await visitor.post("/schedule/standup/trigger", {"token": token})).text for _ in range(2)]
    numbers = {re.findall(r"Sent as message (\d+)", text)[0] for text in answers}
    assert len(numbers) == 1, "pressed twice, sent once"
    assert [str(one.id) for one in await client.browse("chat")] == list(numbers)

    page = await visitor.post("/schedule/standup/delete", {"confirm": "stand"})
    assert (page.status, "Nothing was done." in page.text) == (400, True)
    assert (await client.schedule("standup")).name == "standup"
    page = await visitor.post("/schedule/standup/delete", {"confirm": "standup"})
    assert "standup is deleted." in page.text
    with pytest.raises(UnknownSchedule):
        await client.schedule("standup")
    assert (await visitor.get("/schedule/standup")).status == 404


async def test_only_what_differs_is_changed(visitor: Visitor, client: tickwheel.Client) -> None:
    await client.create_schedule(
        "report",
        "chat",
        cron="0 9 * * *",
        body=b"one\ntwo",
        headers={"n": 7, "x": HOSTILE},
        priority=3,
        window=timedelta(minutes=1),
    )
    page = await visitor.get("/schedule/report/edit")
    assert SCRIPT not in page.html
    form = {**FORM, "existing": "report", "cron": "0 10 * * *", "tz": "UTC", "body": "one\r\ntwo",
            "headers": f"n: 7\r\nx: {HOSTILE}", "overlap": "allow", "catch_up": "last", "priority": "3"}  # fmt: skip
    page = await visitor.post("/schedule/report/edit", form)
    assert "report is changed: at 10:00 every day, UTC." in page.text
    found = await client.schedule("report")
    assert (found.body, found.headers) == (b"one\ntwo", {"n": 7, "x": HOSTILE})
    assert (found.priority, found.window_ms, found.cron) == (3, 0, "0 10 * * *")
    page = await visitor.post("/schedule/report/edit", {**form, "body": "three", "headers": "n: 7\nnew: a:b"})
    found = await client.schedule("report")
    assert (found.body, found.headers) == (b"three", {"n": 7, "new": "a:b"})


async def test_what_is_hidden_stays(daemon: Daemon, client: tickwheel.Client) -> None:
    await client.create_schedule(
        "hidden", "chat", cron="0 9 * * *", body=b"secret", headers={"auth": "secret"}
    )
    app = tickwheel.web.app(daemon.url, hide_bodies=True)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        for path in ("/schedule/hidden", "/schedule/hidden/edit"):
            assert "secret" not in (await visitor.get(path)).html
        form = {**FORM, "existing": "hidden", "body": "", "headers": "", "cron": "0 11 * * *"}
        assert "hidden is changed" in (await visitor.post("/schedule/hidden/edit", form)).text
    found = await client.schedule("hidden")
    assert (found.body, found.headers, found.cron) == (b"secret", {"auth": "secret"}, "0 11 * * *")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"cron": "nonsense"}, "cron"),
        ({"cron": ""}, "either a cron expression or an interval"),
        ({"every": "10m"}, "either a cron expression or an interval"),
        ({"cron": "", "every": "soon"}, "is not a duration"),
        ({"tz": "Mars/Olympus"}, "Mars/Olympus"),
        ({"until": "tomorrow"}, "Not after: This is no time"),
        ({"priority": "high"}, "no whole number"),
        ({"priority": "256"}, "from 0 to 255"),
        ({"overlap": "maybe"}, "overlap"),
        ({"headers": "no colon"}, "as name: value"),
        ({"name": SCRIPT}, "name"),
        ({"topic": "../x"}, "name"),
    ],
)
async def test_what_is_wrong_is_told_and_kept(
    visitor: Visitor, client: tickwheel.Client, fields: dict[str, str], wrong: str
) -> None:
    page = await visitor.post("/schedules/new", {**FORM, **fields, "body": HOSTILE})
    assert page.status == 400
    assert "Nothing was done." in page.text
    assert wrong in page.text
    assert SCRIPT not in page.html
    assert HOSTILE in page.text, "what was typed is still there"
    assert await client.schedules() == []


@pytest.mark.parametrize(
    ("cron", "start", "told"),
    [
        ("30 2 * * *", "2031-03-29T12:00",
         "2031-03-30 02:30:00 does not exist, because clocks are put forward; it runs"),
        ("*/30 2 * * *", "2031-03-29T12:00", "it does not run in the gap."),
        ("30 2 * * *", "2031-10-25T12:00", "the first of two: runs once, at the first of the two"),
        ("*/30 2 * * *", "2031-10-25T12:00", "the second of two: runs twice"),
    ],
)  # fmt: skip
async def test_a_preview_across_a_change_of_clocks(
    visitor: Visitor, cron: str, start: str, told: str
) -> None:
    page = await visitor.post("/schedules/preview", {**FORM, "cron": cron, "start": start})
    assert page.status == 200
    assert told in page.text
    assert 'value="standup"' in page.html


async def test_the_calendar(visitor: Visitor, client: tickwheel.Client) -> None:
    await client.create_schedule("fixed", "chat", cron="30 2 * * *", tz="Europe/Berlin")
    await client.create_schedule("elapsed", "chat", cron="*/30 2 * * SUN", tz="Europe/Berlin")
    await client.create_schedule("minutely", "chat", every=timedelta(minutes=1))
    await client.create_schedule("paused", "chat", cron="0 0 * * *")
    await client.pause_schedule("paused")
    spring = (await visitor.get("/schedules/calendar?day=2031-03-10&zone=Europe/Berlin")).text
    assert "March 2031" in spring
    assert "clocks go forward 1 h" in spring
    assert "fixed skipped at 02:30 in Europe/Berlin, runs right after the gap" in spring
    assert "elapsed skipped at 02:00 in Europe/Berlin, does not run in the gap" in spring
    assert "03:00 fixed" in spring
    assert "minutely every 1 min" in spring
    assert "1 schedule is paused and not shown: the list has them." in spring
    autumn = await visitor.get("/schedules/calendar?view=week&day=2031-10-26&zone=Europe/Berlin")
    assert "Week of 2031-10-20" in autumn.text
    assert autumn.text.count("02:30 fixed") == 7
    assert "second of two, runs twice" in autumn.text
    assert "first of two, runs once, at the first of the two" in autumn.text
    assert "day=2031-11-02" in autumn.html
    for query in ("zone=Mars", "zone=../etc", "day=soon", "day=0001-01-01", "view=year", "after=%25"):
        assert (await visitor.get(f"/schedules/calendar?{query}")).status == 400


async def test_many_schedules_come_in_parts(visitor: Visitor, client: tickwheel.Client) -> None:
    for number in range(130):
        await client.create_schedule(
            f"s{number:03}", "chat", cron=f"{number % 60} 4 * * *", tz="Europe/Paris"
        )
    assert {len(one.next) for one in await client.schedules(count=0)} == {0}
    assert {len(one.next) for one in await client.schedules(count=2)} == {2}
    names = sorted(one.name for one in await client.schedules(count=0))
    for after, limit in (("", 3), (names[2], 120), (names[-2], 5), (names[-1], 1)):
        found = await client.schedules(count=0, after=after, limit=limit)
        assert [one.name for one in found] == [name for name in names if name > after][:limit]
    page = await visitor.get("/schedules?limit=100")
    assert page.html.count('<th scope="row" class="wide">') == 100
    assert page.html.count("<ol") == 100, "each with its next times"
    [following] = re.findall(r'href="([^"]+)">Next</a>', page.html)
    page = await visitor.get(following.replace("&amp;", "&"))
    assert re.findall(r'<th scope="row" class="wide"><a href="/schedule/(\w+)"', page.html) == [
        f"s{n}" for n in range(100, 130)
    ]


async def test_the_calendar_leaves_no_schedule_out(visitor: Visitor, client: tickwheel.Client) -> None:
    """Those of equal times stand together; what has no room is behind a link."""
    start = datetime(2031, 1, 10, tzinfo=UTC)
    for number in range(39):
        await client.create_schedule(f"s{number:02}", "chat", cron="0 9 * * *", start=start)
    for number in range(12):
        await client.create_schedule(f"other-{number:02}", "chat", cron=f"0 {10 + number} * * *", start=start)
    page = await visitor.get("/schedules/calendar?day=2031-05-21&view=week")
    days = page.text.replace(" ,", ",")
    assert days.count("09:00 s00, s01, s02 + 36 more 10:00 other-00 11:00 other-01 ") == 7
    assert days.count("16:00 other-06 + 5 more") == 7
    links = re.findall(r'<a href="(/schedules/calendar[^"]+)">\+ (?:36|5) more</a>', page.html)
    assert len(links) == 14
    day = await visitor.get(links[0].replace("&amp;", "&"))
    assert "Monday, 2031-05-19" in day.text
    named = set(re.findall(r'href="/schedule/([^"]+)"', day.html))
    assert named == {one.name for one in await client.schedules(count=0)}
    for view in ("month", "week", "day"):
        for text in ("by name", "not shown"):
            assert (
                text
                not in (await visitor.get(f"/schedules/calendar?view={view}&day=2031-05-21")).text.partition(
                    "times in UTC"
                )[2]
            )


async def test_days_that_have_passed_have_their_times(visitor: Visitor, client: tickwheel.Client) -> None:
    """Also those before a schedule began, which did not run then."""
    start = datetime(2021, 5, 19, 12, tzinfo=UTC)
    await client.create_schedule("old", "chat", cron="0 9 * * *", start=start)
    await client.create_schedule(
        "future", "chat", cron="0 9 * * *", start=datetime(2031, 5, 19, 12, tzinfo=UTC)
    )
    page = await visitor.get("/schedules/calendar?view=week&day=2021-05-19")
    assert page.text.count("09:00 old") == 7
    assert page.html.count('class="before"') == 3, "Monday to Wednesday"
    assert "it did not run then" in page.text
    assert "future" not in page.text
    page = await visitor.get("/schedules/calendar?view=week&day=2031-05-19")
    assert page.text.replace(" ,", ",").count("09:00 future, old") == 6
    assert page.text.count("09:00 old") == 1
    assert "it did not run then" not in page.text


async def test_who_may_not_sees_no_buttons(guarded: Guarded) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        await client.create_schedule("mine", "orders", cron="0 9 * * *", body=b"secret")
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["monitor"])
        page = await visitor.get("/schedule/mine")
        assert page.status == 200
        main = page.html.partition("<main")[2].partition("</main>")[0]
        assert "<form" not in main
        assert (
            "<form"
            not in (await visitor.get("/schedule/mine/edit"))
            .html.partition("<main")[2]
            .partition("</main>")[0]
        )
        for action in ("pause", "trigger", "delete", "edit"):
            page = await visitor.post(f"/schedule/mine/{action}", {**FORM, "confirm": "mine"})
            assert page.status == 403, action
        await visitor.log_in(guarded.tokens["all"])
        assert "secret" in (await visitor.get("/schedule/mine")).text
    app = tickwheel.web.app(guarded.daemon.url, read_only=True)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["all"])
        for path in ("/schedule/mine", "/schedule/mine/edit", "/schedules/new"):
            assert '<form method="post"' not in (await visitor.get(path)).html.partition("<main")[2], path
        assert (await visitor.post("/schedule/mine/pause", {})).status == 403


async def test_at_the_same_time(visitor: Visitor, client: tickwheel.Client) -> None:
    """Two who press the same button with the same page make one message."""
    await client.create_schedule("twice", "twice", cron="0 9 * * *")
    page = await visitor.get("/schedule/twice")
    [token] = re.findall(r'name="token" value="([^"]+)"', page.html)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(visitor.post, "/schedule/twice/trigger", {"token": token})
    assert len(await client.browse("twice")) == 1
