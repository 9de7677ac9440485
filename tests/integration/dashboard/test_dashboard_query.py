"""Asking with SQL in the dashboard."""

from __future__ import annotations

from urllib.parse import urlencode

import pyarrow.ipc
import pytest
import trio
from markupsafe import escape

import tickwheel
import tickwheel.web
from tests.integration.watching.test_query import ENDLESS
from tests.support.clients.asgi import Caller
from tests.support.clients.filled import HOSTILE, SCRIPT
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.guarded import Guarded
from tickwheel_web.dashboard.querying import query
from tickwheel_web.dashboard.querying.query import COLUMNS


def path(sql: str, page: str = "/query", **more: str) -> str:
    run = {"run": "1"} if page == "/query" else {}
    return f"{page}?{urlencode({'sql': sql, **run, **more})}"


@pytest.fixture
async def visitor(stranger: Visitor, guarded: Guarded) -> Visitor:
    """May look at all topics."""
    await stranger.log_in(guarded.tokens["monitor"])
    return stranger


async def test_rows_are_shown_and_downloaded(visitor: Visitor, guarded: Guarded) -> None:
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        await client.send("orders-sql", HOSTILE.encode(), key=HOSTILE, delay_ms=3_600_000)
        await client.send("orders-sql", b"\xff\xfe", key="second", delay_ms=3_600_000)
    sql = 'select key, body, body_bytes, order_key, deliver_at from "orders-sql" order by id'
    page = await visitor.get(path(sql))
    assert page.status == 200, page.text
    assert SCRIPT not in page.html
    assert page.text.count(HOSTILE) == 2  # key and body
    assert "//4= 2 null" in page.text
    assert "TIMESTAMPTZ" in page.text
    assert f"{escape(sql)}</textarea>" in page.html
    assert "2 rows" in page.text
    with trio.fail_after(PATIENCE_S):  # names come with figures, which are used again for a moment
        while "<code>orders-sql</code>" not in (await visitor.get("/query")).html:
            await trio.sleep(0.1)

    answer = await visitor.ask("GET", path(sql, "/query/rows", form="csv"))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="query.csv"'
    assert answer.body.startswith(b"key,body,body_bytes,order_key,deliver_at")
    assert answer.body.count(b"\r\n") == 3
    answer = await visitor.ask("GET", path(sql, "/query/rows", form="arrow"))
    table = pyarrow.ipc.open_stream(answer.body).read_all()
    assert table.column("key").to_pylist() == [HOSTILE, "second"]


async def test_all_columns_are_told(visitor: Visitor) -> None:
    page = await visitor.get("/query")
    assert page.status == 200
    assert [f"<code>{name}</code>" in page.html for name in COLUMNS] == [True] * len(COLUMNS)
    answer = await visitor.ask("GET", path("describe messages", "/query/rows"))
    described = dict(line.split(",")[:2] for line in answer.body.decode().splitlines()[1:])
    assert list(described) == list(COLUMNS)
    assert [query.shown_column("", one).type for one in described.values()] == [
        kind for kind, _ in COLUMNS.values()
    ]


async def test_more_rows_than_are_shown(visitor: Visitor) -> None:
    page = await visitor.get(
        path("select range as n, repeat('x', 1000) as long from range(12000)", rows="10000")
    )
    assert page.status == 200
    assert page.html.count("<tr>") > 10_000
    assert "There are more rows than these 10,000." in page.text
    assert "x" * 60 + "…" in page.html
    assert "x" * 61 not in page.html
    page = await visitor.get(path("select 1 as n where false"))
    assert "No row is like that." in page.text
    assert (await visitor.get(path("select 1", rows="10001"))).status == 400
    assert (await visitor.get(path("select " + "1" * query.MAX_SQL))).status == 400


@pytest.mark.parametrize(
    "sql",
    ["selekt 1", "select nothing from messages", "drop table messages", "select 1; select 2", "select '"],
)
async def test_errors_of_sql_are_shown_beside_it(visitor: Visitor, sql: str) -> None:
    page = await visitor.get(path(sql))
    assert page.status == 400
    assert "bad_query" in page.text
    assert "<textarea" in page.html
    assert (await visitor.ask("GET", path(sql, "/query/rows"))).status == 400


async def test_what_is_not_run_is_only_shown(visitor: Visitor) -> None:
    page = await visitor.get(f"/query?{urlencode({'sql': 'selekt 1'})}")
    assert (page.status, "selekt 1" in page.text, "bad_query" in page.text) == (200, True, False)
    page = await visitor.get("/query?run=1&sql=")
    assert (page.status, "bad_query" in page.text) == (200, False)


async def test_a_query_ends_when_the_browser_goes(
    visitor: Visitor, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them one after the other than the broker runs at a time: each must have ended."""
    began = trio.Event()
    ask = query._rows

    async def asking(asked: query.Asked, client: tickwheel.Client) -> tickwheel.QueryResult:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_when_it_runs, client, began)
            return await ask(asked, client)
        raise AssertionError("it has ended")

    monkeypatch.setattr(query, "_rows", asking)
    call = Caller(visitor.app)
    headers = {
        "host": "127.0.0.1:7413",
        "cookie": "; ".join(f"{name}={value}" for name, value in visitor.cookies.items()),
    }
    with trio.fail_after(PATIENCE_S):
        for _ in range(3):
            began = trio.Event()
            await call("GET", path(ENDLESS), headers=headers, leaves=began)
        monkeypatch.setattr(query, "_rows", ask)
        page = await visitor.get(path("select 42 as answer"))
    assert page.status == 200
    assert "42" in page.text.partition("Rows of the query")[2]


async def _tell_when_it_runs(client: tickwheel.Client, began: trio.Event) -> None:
    await client.stats()  # answered behind the query, which has begun then
    began.set()


async def test_too_many_at_once_are_refused(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go = trio.Event(), trio.Event()
    count = 0

    async def wait(asked: query.Asked, client: tickwheel.Client) -> tickwheel.QueryResult:
        nonlocal count
        count += 1
        if count == 4:
            reached.set()
        await go.wait()
        return tickwheel.QueryResult([], [], truncated=False)

    monkeypatch.setattr(query, "_rows", wait)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(visitor.get, path("select 1"))
            await reached.wait()
            assert (await visitor.get(path("select 1"))).status == 429
            go.set()


@pytest.mark.parametrize("hidden", [{"hide_bodies": True}, {"hide_headers": ["authorization"]}])
async def test_it_is_absent_where_something_is_hidden(guarded: Guarded, hidden: dict[str, object]) -> None:
    app = tickwheel.web.app(guarded.daemon.url, **hidden)  # type: ignore[arg-type]
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        page = await visitor.log_in(guarded.tokens["all"])
        assert 'href="/query"' not in page.html
        assert (await visitor.get("/query")).status == 404
        assert (await visitor.get(path("select 1", "/query/rows"))).status == 404


@pytest.mark.parametrize("who", ["watcher", "operator", "worker"])
async def test_others_are_refused(guarded: Guarded, who: str) -> None:
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        page = await visitor.log_in(guarded.tokens[who])
        assert 'href="/query"' not in page.html
        assert (await visitor.get(path("select 1"))).status == 403
        assert (await visitor.get(path("select 1", "/query/rows"))).status == 403
