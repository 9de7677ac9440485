"""Who is connected, and who did what, in the dashboard."""

from __future__ import annotations

import msgspec
import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.filled import SCRIPT
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.guarded import Guarded
from tickwheel.errors import Forbidden
from tickwheel_web.dashboard.operations import audit


@pytest.fixture
async def visitor(stranger: Visitor, guarded: Guarded) -> Visitor:
    """Runs the broker."""
    await stranger.log_in(guarded.tokens["operator"])
    return stranger


async def test_clients_are_shown_and_disconnected(visitor: Visitor, guarded: Guarded) -> None:
    token = guarded.tokens["all"]
    async with tickwheel.Client(guarded.daemon.url, token=token, name=f"mine {SCRIPT}") as client:
        async with client.subscribe("orders", "billing", credit=9):
            page = await visitor.get("/clients?search=MINE")
            assert SCRIPT not in page.html
            assert SCRIPT in page.text
            assert 'href="/topics/orders/groups/billing"' in page.html
            assert page.html.count("/disconnect") == 1
            assert "all" in page.text.partition("Reads")[2]
            assert 'action="/clients/' in (await visitor.get("/clients?search=orders")).html
        number = page.html.partition('action="/clients/')[2].partition("/")[0]
        page = await visitor.post(f"/clients/{number}/disconnect", {})
        assert page.path.startswith("/clients?")
        assert f"Connection {number} was closed." in page.text
        assert f"In a terminal: tickwheel clients disconnect {number}" in page.text
        page = await visitor.post(f"/clients/{number}/disconnect", {})
        assert f"There is no connection {number}, or none any more. Nothing was done." in page.text
    assert "No client has “zzz”" in (await visitor.get("/clients?search=zzz")).text
    for wrong in ("x", "-1", "9" * 30, "%3Cb%3E"):
        assert (await visitor.post(f"/clients/{wrong}/disconnect", {})).status == 400


async def test_clients_come_in_parts(visitor: Visitor, guarded: Guarded) -> None:
    async with trio.open_nursery() as nursery:
        are_there = [trio.Event() for _ in range(5)]

        async def stay(number: int) -> None:
            token = guarded.tokens["all"]
            async with tickwheel.Client(guarded.daemon.url, token=token, name=f"part-{number}"):
                are_there[number].set()
                await trio.sleep_forever()

        for number, is_there in enumerate(are_there):
            nursery.start_soon(stay, number)
            await is_there.wait()
        first = await visitor.get("/clients?search=part-&limit=3")
        address = first.html.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        second = await visitor.get(address)
        found = [[f"part-{number}" in page.text for number in range(5)] for page in (first, second)]
        assert found == [[True, True, True, False, False], [False, False, False, True, True]]
        nursery.cancel_scope.cancel()


async def test_the_audit_log_is_searched(visitor: Visitor, guarded: Guarded) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        await client.create_topic("orders-audited")
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["publisher"]) as client:
        with pytest.raises(Forbidden):
            await client.delete_topic("orders-audited")
    page = await visitor.get("/audit?search=ORDERS-AUDITED")
    rows = page.html.partition("<tbody>")[2].partition("</tbody>")[0].split("<tr>")[1:]
    assert len(rows) == 2
    assert [word in rows[0] for word in ("refused", "publisher", "forbidden", "127.0.0.1")] == [True] * 4
    assert [word in rows[1] for word in ("done", "SetTopic", "127.0.0.1")] == [True] * 3
    page = await visitor.get("/audit?search=orders-audited&outcome=ok")
    assert ("SetTopic" in page.text, "forbidden" in page.text) == (True, False)
    assert "No line matches." in (await visitor.get("/audit?search=%3Cscript%3Ezzz")).text
    for wrong in ("outcome=x", "before=0", "before=x", "limit=5"):
        assert (await visitor.get(f"/audit?{wrong}")).status == 400

    answer = await visitor.ask("GET", "/audit/lines?search=orders-audited")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="audit.ndjson"'
    lines = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    assert [(line["event"], line["outcome"]) for line in lines] == [
        ("SetTopic", "ok"),
        ("request", "refused"),
    ]


async def test_the_audit_log_comes_in_parts(
    visitor: Visitor, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE", 2)
    monkeypatch.setattr(audit, "_AT_ONCE", 3)
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        for number in range(5):
            await client.create_topic(f"orders-part-{number}")
    path, seen = "/audit?search=orders-part-", []
    with trio.fail_after(PATIENCE_S):
        while path:
            page = await visitor.get(path)
            seen.append([number for number in range(5) if f"orders-part-{number}" in page.text])
            path = page.html.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert seen == [[3, 4], [1, 2], [0]]
    page = await visitor.get("/audit")
    assert page.html.count("<tr>") == 3
    assert 'rel="next"' in page.html


async def test_what_is_read_only_has_no_button(guarded: Guarded) -> None:
    app = tickwheel.web.app(guarded.daemon.url, read_only=True)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens["operator"])
        page = await visitor.get("/clients")
        assert (page.status, "/disconnect" in page.html) == (200, False)
        assert (await visitor.post("/clients/1/disconnect", {})).status == 403
        assert (await visitor.ask("GET", "/audit/lines")).status == 200


@pytest.mark.parametrize("who", ["owner", "monitor", "publisher"])
async def test_others_are_refused(guarded: Guarded, who: str) -> None:
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        await visitor.log_in(guarded.tokens[who])
        for path in ("/clients", "/audit", "/audit/lines"):
            assert (await visitor.get(path)).status == 403
        assert (await visitor.post("/clients/1/disconnect", {})).status == 403
