"""HTTP with tokens: each request has the rights of the token that it brings, and none of the web process's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S
from tests.support.processes.guarded import Guarded, may
from tickwheel.client.calls import Call
from tickwheel.client.session import Session
from tickwheel.protocol.bodies.admin import Drop
from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, ReserveIds
from tickwheel.protocol.bodies.endpoints import TellEndpoints
from tickwheel.protocol.bodies.fetching import EndFetch
from tickwheel.protocol.bodies.requests import (
    FRAME_TYPE_OF_REQUEST,
    Hello,
    Ping,
    SetCredit,
    Subscribe,
    Unsubscribe,
)
from tickwheel.protocol.bodies.settling import Return
from tickwheel.protocol.frames import FrameType
from tickwheel_web.endpoints import Endpoint
from tickwheel_web.shapes import EVENTS
from tickwheel_web.table import ENDPOINTS

HIDDEN = ("not_found", "unknown_schedule", "unknown_endpoint")
LATER = {"text": "x", "deliver_at": "2031-05-01T09:00:00Z"}


@pytest.fixture
async def ask(guarded: Guarded) -> AsyncIterator[Caller]:
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        yield Caller(app)


ROWS = {row.name: row for row in ENDPOINTS}


async def made(ask: Caller, row: Endpoint, who: str) -> dict[str, str]:
    """What the parts of the row's path name, but for what the row is to create."""
    topic = f"orders-{row.name}-{who}"
    parts = {"topic": topic, "key": "k", "schedule": topic, "group": "g", "client": "0"}
    is_new = row.method == "PUT" and row.path.rpartition("/")[2]
    if is_new != "{topic}":
        sent = await ask("POST", f"/v1/topics/{topic}/messages", {**LATER, "key": "k"})
        assert sent.status == 201
        parts["id"] = sent.json["id"]
    if "/prepared/" in row.path:
        parts["id"] = (await ask("POST", "/v1/prepared", {"topic": topic, "text": "x"})).json["id"]
    if "/schedules" in row.path and is_new != "{schedule}":
        await ask("PUT", f"/v1/schedules/{topic}", {"topic": topic, "every": "30d"})
    parts["endpoint"] = topic
    if "/endpoints" in row.path and is_new != "{endpoint}":
        await ask("PUT", f"/v1/endpoints/{topic}", {"topic": topic, "url": "https://a.example"})
    if row.name == "send_http_task":
        await ask("PUT", f"/v1/endpoints/{topic}", {"topic": topic, "allow_urls": ["https://api.example/*"]})
    if "{group}" in row.path and is_new != "{group}":
        await ask("PUT", f"/v1/topics/{topic}/groups/g", {})
    return parts


def target_of(row: Endpoint, parts: dict[str, str]) -> str:
    """Confirmed where it must be."""
    target = row.path.format(**parts)
    if row.name == "list_topics":
        target += "?limit=1000"
    if "topic" in row.query.__struct_fields__:
        target += f"?topic={parts['topic']}"
    if "confirm" in row.query.__struct_fields__:
        last = row.path.rpartition("{")[2].partition("}")[0]
        target += f"?confirm={parts[last]}"
    return target


async def body_of(ask: Caller, row: Endpoint, parts: dict[str, str]) -> Any:
    """The row's example, about the topic that it may be about; of what was received, where it is about that."""
    topic = parts["topic"]
    if row.name == "query" and isinstance(row.example, dict):
        return {**row.example, "timeout": "10m"}  # this test makes hundreds of topics, each of them a table
    if row.name == "receive_messages":
        return {"max": 10}
    if row.name == "settle_deliveries":
        receipts = []
        for _ in range(3):
            await ask("POST", f"/v1/topics/{topic}/messages", {"text": "now"})
            received = await ask(
                "POST", f"/v1/topics/{topic}/groups/{parts['group']}/receive", {"wait": "60s"}
            )
            receipts.append(received.json["items"][0]["receipt"])
        return {
            "ack": receipts[:1],
            "nack": [{"receipt": receipts[1]}],
            "extend": [{"receipt": receipts[2], "by": "1m"}],
        }
    return about(row.example, topic)


def about(example: Any, topic: str) -> Any:
    """With this topic wherever one is named."""
    if isinstance(example, list):
        return [about(one, topic) for one in example]
    if isinstance(example, dict):
        return {name: topic if name == "topic" else about(value, topic) for name, value in example.items()}
    return example


@pytest.mark.parametrize("name", ROWS)
async def test_each_endpoint_with_each_token(ask: Caller, guarded: Guarded, name: str) -> None:
    """What a token may not know of is not found; everything else is forbidden."""
    row = ROWS[name]
    with_all = ask.with_token(guarded.tokens["all"])
    parts: dict[str, str] = {}
    for who, token in guarded.tokens.items():
        parts = parts or await made(with_all, row, who)
        topic = parts["topic"]
        body = await body_of(with_all, row, parts)
        gone = trio.Event()  # from a stream at once: it ends only so
        if row.media_type == EVENTS:
            gone.set()
        answer = await ask.with_token(token)(row.method, target_of(row, parts), body, leaves=gone)
        if may(who, row.right, topic):
            assert answer.status in (404 if "{client}" in row.path else 200, *row.answers), answer.body
        else:
            sees = may(who, "any on {topic}", topic)
            is_kept = "{schedule}" in row.path or "{endpoint}" in row.path
            is_hidden = "{id}" in row.path or (is_kept and row.method != "PUT" and not sees)
            assert answer.status == (404 if is_hidden else 403), answer.body
            assert answer.code in (HIDDEN if is_hidden else ("forbidden", "url_not_allowed"))
            assert (answer.code == "url_not_allowed") is (name == "send_http_task" and not sees)
        if name == "list_topics":
            assert (topic in {one["name"] for one in answer.json["items"]}) is (who != "stranger")
        if may(who, row.right, topic) and row.method != "GET":
            parts = {}  # it changed something: the next one finds all anew
        if name in ("list_schedules", "list_endpoints"):
            assert bool(answer.json["items"]) is (who != "stranger")
        if name == "get_endpoint" and answer.status == 200:
            has_secrets = may(who, "admin:{topic} or push:{topic}", topic)
            assert answer.json["is_shortened"] is not has_secrets
            assert answer.json["secrets"][0].endswith("…") is not has_secrets


async def test_to_redeliver_many_takes_another_right_than_to_cancel_them(
    ask: Caller, guarded: Guarded
) -> None:
    """What a row says of an action that is not the one of its example."""
    await ask.with_token(guarded.tokens["all"])("POST", "/v1/topics/orders/messages", LATER)
    for who, token in guarded.tokens.items():
        change = {"action": "redeliver", "filter": {}, "dry_run": True}
        answer = await ask.with_token(token)("POST", "/v1/topics/orders/changes", change)
        assert answer.status == (200 if may(who, "consume:{topic}", "orders") else 403)


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "login_required"),
        ("Basic YTpi", "login_required"),
        ("Bearer", "login_required"),
        ("Bearer \xe4", "login_required"),
        ("Bearer hunter2", "bad_token"),
    ],
)
async def test_no_token_and_a_wrong_one(ask: Caller, authorization: str, code: str) -> None:
    headers = {"authorization": authorization} if authorization else {}
    for _ in range(2):  # the second time a new client is made
        answer = await ask("GET", "/v1/topics", headers=headers)
        assert (answer.status, answer.code) == (401, code)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "hunter2" not in answer.body.decode()


async def test_tokens_of_the_environment_are_not_ours(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(guarded.tokens["all"])
    monkeypatch.setenv("TICKWHEEL_TOKEN", guarded.tokens["all"])
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        assert (await Caller(app)("GET", "/v1/stats")).code == "login_required"
    monkeypatch.delenv("TICKWHEEL_TOKEN")
    monkeypatch.setenv("TICKWHEEL_TOKEN_FILE", str(tmp_path / "token"))
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        assert (await Caller(app)("GET", "/v1/stats")).code == "login_required"


async def test_who_runs_the_broker_lends_nobody_a_right(guarded: Guarded) -> None:
    """On its Unix socket the broker takes this process for its owner, who needs no token."""
    async with tickwheel.Client(guarded.daemon.unix_url, token="") as owner:
        await owner.stats()
    app = tickwheel.web.app(guarded.daemon.unix_url)
    async with app.router.lifespan_context(app):
        ask = Caller(app)
        assert (await ask("GET", "/v1/stats")).code == "login_required"
        monitor, publisher = (ask.with_token(guarded.tokens[name]) for name in ("monitor", "publisher"))
        assert (await monitor("GET", "/v1/stats")).status == 200
        assert (await publisher("GET", "/v1/stats")).code == "forbidden"


async def test_a_token_that_is_revoked(guarded: Guarded, ask: Caller, tmp_path: Path) -> None:
    data = str(guarded.daemon.directory)
    shell = Shell(tmp_path)
    made = shell.json("tokens", "create", "short", "--grant", "query:*", "--data", data)
    short = ask.with_token(made["token"])
    await until_status(short, 200)
    shell.run("tokens", "revoke", made["id"], "--yes", "--data", data)
    assert await until_status(short, 401) in ("token_revoked", "bad_token")


async def until_status(ask: Caller, status: int) -> str:
    """The broker looks at its tokens when their file has changed; the code of the problem, if it is one."""
    with trio.fail_after(PATIENCE_S):
        while (answer := await ask("GET", "/v1/stats")).status != status:
            await trio.sleep(0.02)
    return answer.code if status >= 400 else ""


NOT_OVER_HTTP = {
    Hello: "it opens a connection; each request has its token with it",
    Subscribe: "it gives messages to a connection; receive and stream fetch them",
    Unsubscribe: "as SUBSCRIBE",
    SetCredit: "as SUBSCRIBE",
    Ping: "the client asks it by itself",
    EndFetch: "asked when who receives goes away",
    Return: "as END_FETCH",
    Drop: "a part of archiving by Spark",
    PlanJob: "a part of bulk scheduling by Spark",
    ReserveIds: "as PLAN_JOB",
    AdoptJob: "as PLAN_JOB",
    TellEndpoints: "what `tickwheel push` says of its own work",
}


async def test_all_that_the_broker_is_asked_can_be_asked_over_http(
    ask: Caller, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of the broker's table of rights, but for those that mean nothing there."""
    seen: set[FrameType] = set()
    submit = Session.submit

    def watched(session: Session, call: Call, *, paid: bool = False) -> None:
        seen.add(call.frame_type)
        submit(session, call, paid=paid)

    monkeypatch.setattr(Session, "submit", watched)
    with_all = ask.with_token(guarded.tokens["all"])
    for row in ENDPOINTS:
        parts = await made(with_all, row, "parity")
        body = await body_of(with_all, row, parts)
        gone = trio.Event()
        if row.media_type == EVENTS:
            gone.set()
        await with_all(row.method, target_of(row, parts), body, leaves=gone)
    missing = {kind for kind, frame in FRAME_TYPE_OF_REQUEST.items() if frame not in seen}
    assert missing - set(NOT_OVER_HTTP) == set()
    assert set(NOT_OVER_HTTP) <= set(FRAME_TYPE_OF_REQUEST)
