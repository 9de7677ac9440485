"""The dashboard against a real broker: each page with each token, logging in, and what protects it."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import msgspec
import pytest
import trio
from starlette.applications import Starlette
from starlette.routing import Mount

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.clients.filled import SCRIPT, fill, pages, path_of
from tests.support.clients.visiting import Visitor
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.guarded import Guarded, may
from tickwheel.look import LOOK
from tickwheel_web.dashboard.assets import FOLDER as STATIC
from tickwheel_web.dashboard.assets import Assets
from tickwheel_web.dashboard.figures.recent import Recent
from tickwheel_web.dashboard.guard import CONTENT_POLICY
from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.table import PAGES

MAX_ASSET_BYTES = 150_000
MAX_OVERVIEW_BYTES = 60_000
SHOWN = pages()


def name_of(row: Page) -> str:
    return f"{row.method} {row.path}"


@pytest.fixture(scope="module")
def parts(daemon: Daemon) -> dict[str, str]:
    """What stands for the parts of paths."""
    return trio.run(filled, daemon.url, "")


@pytest.fixture(scope="module")
def guarded_parts(guarded: Guarded) -> dict[str, str]:
    """The same, where tokens are wanted."""
    return trio.run(filled, guarded.daemon.url, guarded.tokens["all"])


async def filled(url: str, token: str) -> dict[str, str]:
    async with tickwheel.Client(url, token=token) as client:
        return await fill(client)


# -- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", SHOWN, ids=name_of)
async def test_each_page_is_whole(visitor: Visitor, parts: dict[str, str], row: Page) -> None:
    page = await visitor.get(path_of(row, parts))
    assert page.status == 200, page.text
    assert page.answer.headers["content-security-policy"] == CONTENT_POLICY
    assert page.answer.headers["cache-control"] == "no-store"
    assert page.answer.headers["x-content-type-options"] == "nosniff"
    assert page.answer.headers["referrer-policy"] == "no-referrer"
    assert page.answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert SCRIPT not in page.html
    assert row.title in page.text
    assert page.html.count("<h1>") == 1
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bstyle=|\bon\w+=|<style|javascript:|hx-on|js:", page.html)
    assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", page.html)
    if row.twin is not None:
        twin = row.twin.format(**parts)
        assert f'href="{twin}"' in page.html
        assert (await visitor.ask("GET", twin)).status == 200


@pytest.mark.parametrize("row", SHOWN, ids=name_of)
async def test_each_page_with_each_token(
    stranger: Visitor, guarded: Guarded, guarded_parts: dict[str, str], row: Page
) -> None:
    for who, token in guarded.tokens.items():
        await stranger.log_in(token)
        page = await stranger.get(path_of(row, guarded_parts))
        assert page.status in ([200] if may(who, row.right, "orders") else [403, 404]), (who, page.text)
        entries = [one for one in PAGES if one.entry is not None]
        links = {one.path for one in entries if f'href="{one.path}"' in page.html.partition("<main")[0]}
        assert links - {"/"} == {one.path for one in entries if may(who, one.right, "orders")} - {"/"}


async def test_sizes(visitor: Visitor, daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for number in range(30):
            await client.send(f"many-{number}", b"x")
            await client.create_group(f"many-{number}", "nobody", start="earliest")
    page = await visitor.get("/")
    assert len(page.answer.body) < MAX_OVERVIEW_BYTES
    assert re.search(r"\+ \d\d more", page.text)
    for number in range(30):
        assert f"many-{number} / nobody" in page.text, "behind it they are all"
    sizes = {}
    assets = Assets()
    for name in assets.names:
        answer = await visitor.ask("GET", assets.path(name))
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        sizes[name] = len(answer.body)
        if name == "app.css":
            assert answer.body == LOOK.read_bytes() + (STATIC / name).read_bytes()
    assert sum(sizes.values()) < MAX_ASSET_BYTES, sizes


async def test_what_is_not_there(visitor: Visitor) -> None:
    page = await visitor.get("/no/such/<b>page</b>")
    assert (page.status, page.html.count("<h1>")) == (404, 1)
    assert (await visitor.get("/static/000000000000/app.css")).status == 404
    assert (await visitor.get("/robots.txt")).html == "User-agent: *\nDisallow: /\n"
    answer = await visitor.ask("GET", "/v1/nothing")
    assert (answer.status, answer.code) == (404, "no_such_path")
    answer = await visitor.ask("GET", "/nothing", accept="application/json")
    assert (answer.status, answer.code) == (404, "no_such_path")


async def test_a_query_that_is_wrong_is_told(visitor: Visitor) -> None:
    page = await visitor.get("/forecast?horizon=%3Cscript%3Ealert(1)%3C/script%3E")
    assert page.status == 400
    assert "<script>alert" not in page.html
    assert "bad_argument" in page.text


@pytest.mark.parametrize("part", ["%FF", "%ED%A0%80"])
@pytest.mark.parametrize(
    "path", ["/topics/{}", "/topics/orders/groups/{}", "/schedule/{}", "/endpoint/{}/edit"]
)
async def test_other_bytes_than_utf_8_in_a_path_are_told(visitor: Visitor, path: str, part: str) -> None:
    page = await visitor.get(path.format(part))
    assert (page.status, page.html.count("<h1>")) == (400, 1)
    assert "is no UTF-8" in page.text


# -- coming in ------------------------------------------------------------------------------------------------------


async def test_logging_in_and_out(stranger: Visitor, guarded: Guarded) -> None:
    page = await stranger.get("/forecast?horizon=day")
    assert page.path == "/login?next=%2Fforecast%3Fhorizon%3Dday"
    token = guarded.tokens["monitor"]
    page = await stranger.post("/login", {"token": f" {token}\n", "next": "/forecast?horizon=day"})
    assert (page.status, page.path) == (200, "/forecast?horizon=day")
    prefix, number, secret = token.split("_", 2)
    assert f"<code>{prefix}_{number}</code>" in page.html
    pieces = {secret[place : place + 6] for place in range(len(secret) - 5)}
    assert [piece for piece in pieces if piece in page.html or piece in str(stranger.cookies)] == []
    kept = dict(stranger.cookies)
    page = await stranger.post("/logout", {})
    assert "You are logged out." in page.text
    assert stranger.cookies == {}
    stranger.cookies = kept  # a copy of the cookie is worth nothing
    assert "Log in" in (await stranger.get("/")).text


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_cookie(guarded: Guarded, scheme: str) -> None:
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app, scheme=scheme)
        answer = await visitor.ask("POST", "/login", f"token={guarded.tokens['all']}".encode())
        assert (answer.status, answer.headers["location"]) == (303, "/")
        name, _, rest = answer.headers["set-cookie"].partition("=")
        attributes = {one.strip().lower() for one in rest.split(";")[1:]}
        assert {"httponly", "path=/", "samesite=strict"} <= attributes
        assert ("secure" in attributes) is (scheme == "https")
        assert name == ("__Host-tw" if scheme == "https" else "tw-7413")


async def test_behind_a_proxy_with_tls(guarded: Guarded) -> None:
    app = tickwheel.web.app(guarded.daemon.url, forwarded_from=["127.0.0.1"])
    async with app.router.lifespan_context(app):
        body = f"token={guarded.tokens['all']}".encode()
        answer = await Visitor(app).ask("POST", "/login", body, x_forwarded_proto="https")
        assert answer.headers["set-cookie"].startswith("__Host-tw=")
        stranger = Visitor(app, address="192.0.2.7")
        answer = await stranger.ask("POST", "/login", body, x_forwarded_proto="https")
        assert answer.headers["set-cookie"].startswith("tw-7413=")


@pytest.mark.parametrize("token", ["", "hunter2", "tw\xe4", "twk_0123456789ab_wrong", "t" * 257], ids=len)
async def test_a_wrong_token(stranger: Visitor, token: str) -> None:
    page = await stranger.post("/login", {"token": token, "next": "//evil.example/"})
    assert page.status in (400, 401)
    assert stranger.cookies == {}
    assert 'name="next" value="/"' in page.html
    assert "hunter2" not in page.html
    assert "HELLO" not in page.text


async def test_many_wrong_tokens_are_stopped(stranger: Visitor, guarded: Guarded) -> None:
    statuses = [(await stranger.log_in(f"twk_0123456789ab_{number}")).status for number in range(6)]
    assert statuses == [401] * 5 + [429]
    assert (await stranger.log_in(guarded.tokens["monitor"])).status == 429


async def test_a_token_that_was_revoked_leads_to_the_door(guarded: Guarded, stranger: Visitor) -> None:
    data = str(guarded.daemon.directory)
    shell = Shell(guarded.daemon.directory.parent)
    made = shell.json("tokens", "create", "short", "--grant", "query:*", "--data", data)
    with trio.fail_after(PATIENCE_S):
        while (await stranger.log_in(str(made["token"]))).status != 200:
            await trio.sleep(0.1)  # until the broker has looked at its file
        shell.run("tokens", "revoke", str(made["token"]).split("_")[1], "--yes", "--data", data)
        while "Log in" not in (await stranger.get("/wheel")).text:
            await trio.sleep(0.1)


async def test_the_api_ignores_cookies(stranger: Visitor, guarded: Guarded) -> None:
    await stranger.log_in(guarded.tokens["all"])
    assert (await stranger.get("/wheel")).status == 200
    answer = await stranger.ask("GET", "/v1/stats")
    assert (answer.status, answer.code) == (401, "login_required")


async def test_from_a_link_elsewhere_one_is_let_in_by_a_second_look(stranger: Visitor) -> None:
    """A browser leaves cookies for this site alone out when it comes from another one."""
    page = await stranger.get("/login?next=/wheel", sec_fetch_site="cross-site")
    assert '<meta http-equiv="refresh" content="0; url=/wheel">' in page.html
    page = await stranger.get("/login?next=/wheel")
    assert "http-equiv" not in page.html


# -- protection -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["shop.example", "127.0.0.1.evil.example:7413", ""])
async def test_other_names_are_refused(visitor: Visitor, host: str) -> None:
    for method, path in (("GET", "/"), ("GET", "/login"), ("POST", "/login"), ("GET", "/nothing")):
        answer = await visitor.ask(method, path, host=host)
        assert answer.status == 421
        assert b"web_hosts" in answer.body


@pytest.mark.parametrize("host", ["shop.example", ""])
async def test_under_other_names_no_api_of_a_broker_that_wants_no_token(
    visitor: Visitor, guarded: Guarded, host: str
) -> None:
    """Where it wants one, a page that was led here by a name of its own has none. A made-up one is no help."""
    for method, path in (("GET", "/v1/stats"), ("POST", "/v1/topics/rebound/messages")):
        for named in ({}, {"authorization": "Bearer twk_0123456789ab_made_up"}):
            answer = await visitor.ask(method, path, b"x", host=host, content_type="text/plain", **named)
            assert (answer.status, answer.code) == (421, "unknown_host")
    assert (await visitor.ask("GET", "/v1/topics/rebound")).code == "unknown_topic"
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        ask = Caller(app, guarded.tokens["all"])
        assert (await ask("GET", "/v1/stats", headers={"host": host})).status == 200
        made_up = Caller(app, "twk_0123456789ab_made_up")
        assert (await made_up("GET", "/v1/stats", headers={"host": host})).code == "bad_token"


async def test_a_form_of_another_site_sends_no_message(daemon: Daemon) -> None:
    """One of text/plain is sent without asking first. Calls of programs have none of these headers."""
    app = tickwheel.web.app(daemon.url, cors_origins=["https://shop.example"])
    async with app.router.lifespan_context(app):
        ask = Caller(app)
        for headers, status in (
            ({"origin": "https://evil.example"}, 403),
            ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403),
            ({"origin": "null", "sec-fetch-site": "same-site"}, 403),
            ({"origin": "https://shop.example", "sec-fetch-site": "cross-site"}, 201),
            ({"origin": "http://127.0.0.1:7413"}, 201),
            ({}, 201),
        ):
            answer = await ask(
                "POST",
                "/v1/topics/forms/messages",
                body=b"x",
                headers={"content-type": "text/plain", **headers},
            )
            assert answer.status == status, headers
            assert status == 201 or answer.code == "foreign_origin"
        picture = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        taken = await ask("GET", "/v1/topics/forms/groups/pictures/stream", headers=picture)
        assert (taken.status, taken.code) == (403, "foreign_origin")
        assert len((await ask("GET", "/v1/topics/forms/messages")).json["items"]) == 3
        assert (await ask("GET", "/v1/topics/forms/groups")).json["items"] == []


async def test_names_that_were_set_are_answered(daemon: Daemon) -> None:
    app = tickwheel.web.app(daemon.url, hosts=["Shop.example"])
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        assert (await visitor.get("/", host="shop.example:8443")).status == 200
        assert (await visitor.get("/v1/stats", host="shop.example:8443")).status == 200


async def test_forms_of_other_sites_are_refused(stranger: Visitor, guarded: Guarded) -> None:
    fields = {"token": guarded.tokens["all"]}
    for headers in (
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "", "origin": "https://evil.example"},
        {"sec_fetch_site": ""},
    ):
        page = await stranger.post("/login", fields, **headers)
        assert (page.status, stranger.cookies) == (403, {})
        assert "foreign_origin" in page.text
    assert (
        await stranger.post("/login", fields, sec_fetch_site="", origin="http://127.0.0.1:7413")
    ).status == 200


async def test_pages_are_not_loaded_by_other_sites(visitor: Visitor) -> None:
    for site, mode, status in (
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ):
        answer = await visitor.ask("GET", "/wheel", sec_fetch_site=site, sec_fetch_mode=mode)
        assert answer.status == status, (site, mode)


async def test_nothing_is_changed_where_all_is_read_only(guarded: Guarded) -> None:
    app = tickwheel.web.app(guarded.daemon.url, read_only=True)
    async with app.router.lifespan_context(app):
        visitor = Visitor(app)
        page = await visitor.log_in(guarded.tokens["all"])
        assert page.status == 200
        assert "read-only" in page.text
        ask = Caller(app, guarded.tokens["all"])
        for method, path in (
            ("POST", "/v1/topics/x/messages"),
            ("DELETE", "/v1/topics/x"),
            ("POST", "/wheel"),
        ):
            answer = await ask(method, path, {"text": "x"})
            assert (answer.status, answer.code) == (403, "read_only")
        assert (await ask("GET", "/v1/topics")).status == 200
        assert "You are logged out." in (await visitor.post("/logout", {})).text


# -- in another application -----------------------------------------------------------------------------------------


async def test_below_a_prefix(guarded: Guarded) -> None:
    """All links lead to where the application is mounted."""
    app = tickwheel.web.app(guarded.daemon.url)
    site = Starlette(routes=[Mount("/of/ours", app)], lifespan=lambda site: app.router.lifespan_context(app))
    async with site.router.lifespan_context(site):
        visitor = Visitor(site)
        page = await visitor.get("/of/ours/forecast?horizon=day")
        assert page.path == "/of/ours/login?next=%2Fforecast%3Fhorizon%3Dday"
        page = await visitor.post(
            "/of/ours/login", {"token": guarded.tokens["monitor"], "next": "/forecast?horizon=day"}
        )
        assert (page.status, page.path) == (200, "/of/ours/forecast?horizon=day")
        targets = set(re.findall(r"""(?:src|href|action)="([^"#]*)""", page.html)) - {""}
        assert [target for target in targets if not target.startswith("/of/ours/")] == []
        for target in sorted(targets - {"/of/ours/logout"}):
            assert (await visitor.get(target)).status == 200, target
        page = await visitor.get("/of/ours/nothing")
        assert (page.status, page.html.count("<h1>")) == (404, 1)
        assert (await visitor.ask("GET", "/of/ours/v1/nothing")).code == "no_such_path"
        assert "You are logged out." in (await visitor.post("/of/ours/logout", {})).text


# -- live figures ---------------------------------------------------------------------------------------------------


async def test_figures_come_by_themselves(stranger: Visitor, guarded: Guarded) -> None:
    await stranger.log_in(guarded.tokens["monitor"])
    told: dict[str, str] = {}
    first: list[str] = []

    def hears(part: bytes) -> bool:
        told.update(msgspec.json.decode(part.removeprefix(b"data: ")) if part.startswith(b"data: ") else {})
        return bool(first) and told["scheduled"] != first[0]

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stranger.listen, "/events", hears)
            while "scheduled" not in told:
                await trio.sleep(0.01)
            assert "sent_rate" in told
            first.append(told["scheduled"])
            async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
                await client.send("later", b"x", delay=timedelta(days=1))


async def test_the_stream_ends_with_the_login(stranger: Visitor, guarded: Guarded) -> None:
    await stranger.log_in(guarded.tokens["monitor"])
    begun = trio.Event()

    def hears(part: bytes) -> bool:
        begun.set()
        return False

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stranger.listen, "/events", hears)
            await begun.wait()
            await stranger.post("/logout", {})


async def test_samples_are_taken_for_those_who_may_look(stranger: Visitor, guarded: Guarded) -> None:
    for who in ("publisher", "watcher"):
        await stranger.log_in(guarded.tokens[who])
        assert (await stranger.get("/wheel")).status == 403
    async with tickwheel.Client(guarded.daemon.url, token=guarded.tokens["all"]) as client:
        before = (await client.stats()).refusals["forbidden"]
        monitor = Visitor(stranger.app)
        await monitor.log_in(guarded.tokens["monitor"])
        with trio.fail_after(PATIENCE_S):
            while "last minute" not in (await monitor.get("/")).text:
                await trio.sleep(0.5)
        assert (await client.stats()).refusals["forbidden"] == before


async def test_tabs_of_a_token_share_what_is_asked(daemon: Daemon) -> None:
    recent = Recent()
    async with tickwheel.Client(daemon.url) as client:
        first, before = await recent.figures(client, "a", 60)
        assert before is None
        for _ in range(5):
            assert (await recent.figures(client, "a", 60))[0] is first
        assert (await recent.figures(client, "b", 60))[0] is not first


async def test_what_a_tab_loads_by_itself_may_be_some_seconds_old(daemon: Daemon) -> None:
    recent = Recent()
    async with tickwheel.Client(daemon.url) as client:
        first = await recent.stats(client, "a", 60)
        assert await recent.stats(client, "a", 60) is first
        assert await recent.stats(client, "a", 0) is not first
        horizons = [timedelta(minutes=1)]
        wheel = await recent.wheel(client, "a", 60, horizons)
        assert await recent.wheel(client, "a", 60, horizons) is wheel
        assert await recent.wheel(client, "a", 60, [timedelta(hours=1)]) is not wheel


async def test_a_page_is_what_starts_the_samples(visitor: Visitor) -> None:
    assert "Nothing is known yet" in (await visitor.get("/lateness")).text
    with trio.fail_after(PATIENCE_S):
        while "last minute" not in (await visitor.get("/")).text:
            await trio.sleep(0.5)


async def test_a_part_that_cannot_be_loaded_anew_stays(stranger: Visitor, guarded: Guarded) -> None:
    answer = await stranger.ask("GET", "/wheel", hx_request="true")
    assert (answer.status, answer.headers["hx-redirect"]) == (200, "/login?next=%2Fwheel")
    await stranger.log_in(guarded.tokens["publisher"])
    answer = await stranger.ask("GET", "/wheel", hx_request="true")
    assert (answer.status, answer.headers["hx-trigger"], answer.body) == (204, "tw:stale", b"")


# -- what pages count -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", ["year", "all"])
async def test_what_comes_due_of_one_topic(daemon: Daemon, visitor: Visitor, horizon: str) -> None:
    topic = f"forecast-{horizon}"
    async with tickwheel.Client(daemon.url) as client:
        await client.send(topic, b"x", delay=timedelta(seconds=50))
        for _ in range(2):
            await client.send(topic, b"x", delay=timedelta(days=100))
        await client.send(topic, b"x", delay=timedelta(days=500 * 365))
        await client.send(topic, b"now")
        for group in ("a", "b"):
            await client.create_group(topic, group, start="earliest")
    page = await visitor.get(f"/forecast?horizon={horizon}&topic={topic}")
    expected = {"year": "messages 3 ", "all": "messages 4 "}
    assert expected[horizon] in page.text
    links = sorted(
        {unescape(one) for one in re.findall(r'href="(/messages\?[^"]*due_from[^"]*)"', page.html)}
    )
    assert len(links) == (2 if horizon == "year" else 3)
    listed = [len(re.findall(r'href="/messages/\d+"', (await visitor.get(link)).html)) for link in links]
    assert sum(listed) == (3 if horizon == "year" else 4)
    page = await visitor.get(f"/forecast?horizon={horizon}&topic=none-of-this-name")
    assert "due within" in page.text or "Nothing is scheduled." in page.text


async def test_the_forecast_counts_whole_messages_at_its_axis(
    visitor: Visitor, client: tickwheel.Client
) -> None:
    """Of 5 messages the middle of the axis said 2.5."""
    await client.send_many("axis", [b"x"] * 5, delay=timedelta(hours=2))
    page = await visitor.get("/forecast?horizon=day&topic=axis")
    axis = page.html.partition('class="axis"')[2].partition("</div>")[0]
    assert re.findall(r"<span>([^<]*)</span>", axis) == ["6", "4", "2", "0"]
    assert re.findall(r'class="grid" d="([^"]*)"', page.html) == ["M0 0H48M0 33.3333H48M0 66.6667H48"]
    bars = re.findall(r'class="bar( peak)?"[^>]* y="([\d.]+)"[^>]* height="([\d.]+)"', page.html)
    assert [bar for bar in bars if float(bar[2])] == [(" peak", "16.67", "83.33")]
