"""Push endpoints and HTTP tasks over HTTP, on a real broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.protocol.targets.target_headers import Task, task_of

SHOP = {"topic": "orders", "url": "https://shop.example/hooks"}
TASKS = {"topic": "jobs", "allow_urls": ["https://*.example/jobs/*"]}


async def test_an_endpoint_from_its_creation_to_its_end(ask: Caller) -> None:
    one = "/v1/endpoints/shop"
    assert (await ask("GET", one)).code == "unknown_endpoint"
    made = await ask("PUT", one, {**SHOP, "timeout": "1m", "give_up_on": [400], "headers": {"X-A": "b"}})
    assert (made.status, made.headers["etag"]) == (201, '"1"')
    secrets = made.json["secrets"]
    assert (made.json["topic"], made.json["url"], made.json["group"]) == ("orders", SHOP["url"], "push.shop")
    assert (made.json["timeout"], made.json["rate"], made.json["retry_delays"][:2]) == (
        "1m",
        None,
        ["5s", "5m"],
    )
    assert (made.json["enabled"], made.json["disabled_at"], made.json["is_shortened"]) == (True, None, False)
    assert (await ask("GET", one)).json == made.json

    replaced = await ask("PUT", one, {**SHOP, "retry_delays": ["PT10S"], "rate": 2.5})
    assert (replaced.status, replaced.headers["etag"]) == (200, '"2"')
    assert (replaced.json["timeout"], replaced.json["give_up_on"], replaced.json["headers"]) == (
        "15s",
        [],
        {},
    )
    assert (replaced.json["retry_delays"], replaced.json["rate"]) == (["10s"], 2.5)
    assert replaced.json["secrets"] == secrets, "they stay"
    changed = await ask("PATCH", one, {"rate": None, "secrets": None, "format": "structured"})
    assert (changed.json["version"], changed.json["rate"], changed.json["format"]) == (3, None, "structured")
    assert changed.json["secrets"] != secrets

    assert changed.json["description"] is None
    told = await ask("PATCH", one, {"description": "Orders of the shop; call Ada."})
    assert told.json["description"] == "Orders of the shop; call Ada."
    assert (await ask("PATCH", one, {"description": "x" * 501})).status == 400
    assert (await ask("PATCH", one, {"description": None})).json["description"] is None

    off = await ask("POST", f"{one}/disable?reason=410")
    assert (off.json["enabled"], off.json["disabled_reason"]) == (False, "410")
    assert off.json["disabled_at"] == off.json["changed_at"]
    on = await ask("POST", f"{one}/enable")
    assert (on.json["enabled"], on.json["disabled_reason"], on.json["disabled_at"]) == (True, None, None)

    assert (await ask("DELETE", one)).code == "bad_argument"
    await ask("POST", "/v1/topics/orders/messages", {"text": "x", "delay": "1h"})
    gone = await ask("DELETE", f"{one}?confirm=shop")
    assert (gone.status, gone.json) == (200, {"name": "shop", "backlog": 0})
    assert (await ask("DELETE", f"{one}?confirm=shop")).code == "unknown_endpoint"
    assert (await ask("GET", "/v1/topics/orders/groups")).json["items"] == []


async def test_conditions(ask: Caller) -> None:
    one = "/v1/endpoints/conditions"
    new, first, second = {"If-None-Match": "*"}, {"If-Match": '"1"'}, {"If-Match": '"2"'}
    assert (await ask("PUT", one, SHOP, headers=first)).status == 412
    assert (await ask("PUT", one, SHOP, headers=new)).status == 201
    refused = await ask("PUT", one, {**SHOP, "rate": 1}, headers=new)
    assert (refused.status, refused.code) == (412, "endpoint_changed")
    assert (await ask("PATCH", one, {"rate": 1}, headers=first)).headers["etag"] == '"2"'
    for method, path in (
        ("PATCH", one), ("POST", f"{one}/disable"), ("POST", f"{one}/enable"), ("DELETE", f"{one}?confirm=conditions"),
    ):  # fmt: skip
        stale = await ask(method, path, {"rate": 2} if method == "PATCH" else None, headers=first)
        assert (stale.status, stale.code) == (412, "endpoint_changed"), method
    for wrong in ({"If-Match": "2"}, {"If-Match": "*"}, {"If-None-Match": '"2"'}, {**new, **second}):
        assert (await ask("PUT", one, SHOP, headers=wrong)).code == "bad_argument"
    assert (await ask("PATCH", one, {"rate": 2}, headers={"If-Match": '"0"'})).status == 412
    assert (await ask("PATCH", one, {"rate": 2}, headers=new)).code == "bad_argument"
    assert (await ask("DELETE", f"{one}?confirm=conditions&keep_group=1", headers=second)).status == 200
    groups = (await ask("GET", "/v1/topics/orders/groups")).json["items"]
    assert [group["name"] for group in groups] == ["push.conditions"]


async def test_the_list_comes_in_parts(ask: Caller) -> None:
    for number in range(3):
        await ask("PUT", f"/v1/endpoints/list-{number}", {**SHOP, "topic": "listed"})
    first = (await ask("GET", "/v1/endpoints?topic=listed&limit=2")).json
    assert [row["name"] for row in first["items"]] == ["list-0", "list-1"]
    rest = (await ask("GET", f"/v1/endpoints?topic=listed&after={first['next']}")).json
    assert ([row["name"] for row in rest["items"]], rest["next"]) == (["list-2"], None)


async def test_an_http_task(ask: Caller, daemon: Daemon) -> None:
    tasks, one = "/v1/http-tasks", {"topic": "jobs", "url": "https://a.example/jobs/x"}
    refused = await ask("POST", tasks, one)
    assert (refused.status, refused.code) == (403, "url_not_allowed")
    assert (await ask("PUT", "/v1/endpoints/jobs", TASKS)).status == 201
    assert (await ask("POST", tasks, {**one, "url": "https://a.example/other"})).code == "url_not_allowed"
    made = await ask("POST", tasks, {**one, "body": {"n": 7}, "method": "PUT", "headers": {"X-A": "b"}})
    assert made.status == 201
    assert made.headers["location"] == f"/v1/messages/{made.json['id']}"
    later = await ask("POST", tasks, {**one, "delay": "30d"}, headers={"Idempotency-Key": "k"})
    again = await ask("POST", tasks, {**one, "delay": "30d", "key": "k"})
    assert (later.status, again.status, again.json["duplicate"]) == (201, 200, True)
    assert again.json["id"] == later.json["id"]
    async with tickwheel.Client(daemon.url) as client:
        sent, waiting = await client.messages(ids=[int(made.json["id"]), int(later.json["id"])])
        assert sent is not None
        assert waiting is not None
        headers = {"x-a": "b", "content-type": "application/json"}
        assert task_of(sent.headers) == Task("https://a.example/jobs/x", "PUT", headers)
        assert sent.body == b'{"n":7}'
        assert (waiting.body, waiting.state, task_of(waiting.headers).method) == (b"", "scheduled", "POST")


@pytest.mark.parametrize(
    ("method", "path", "json", "status", "code"),
    [
        ("PUT", "endpoints/bad", {"topic": "orders"}, 400, "bad_endpoint"),
        ("PUT", "endpoints/bad", {**SHOP, **TASKS}, 400, "bad_endpoint"),
        ("PUT", "endpoints/bad", {**SHOP, "url": "shop.example"}, 400, "bad_argument"),
        ("PUT", "endpoints/bad", {**SHOP, "url": "https://169.254.169.254/"}, 400, "bad_endpoint"),
        ("PUT", "endpoints/bad", {**SHOP, "url": "https://a:b@shop.example/"}, 400, "bad_endpoint"),
        ("PUT", "endpoints/bad", {**SHOP, "secrets": ["x"]}, 400, "bad_argument"),
        ("PUT", "endpoints/bad", {**SHOP, "headers": {"Host": "x"}}, 400, "bad_endpoint"),
        ("PUT", "endpoints/bad", {**SHOP, "timeout": "1h"}, 400, "bad_endpoint"),
        ("PUT", "endpoints/bad", {**SHOP, "timeout": "soon"}, 400, "bad_time"),
        ("PUT", "endpoints/bad", {**SHOP, "start": "latest", "start_at": "2031-01-01T00:00:00Z"}, 400, "bad_argument"),
        ("PUT", "endpoints/bad", {**SHOP, "start_at": "2031-01-01T00:00:00"}, 400, "naive_datetime"),
        ("PUT", "endpoints/bad", {**SHOP, "ulr": "x"}, 400, "unknown_field"),
        ("PUT", "endpoints/-bad", SHOP, 400, "bad_topic_name"),
        ("PUT", "endpoints/bad", None, 415, "unsupported_media_type"),
        ("PATCH", "endpoints/none", {"rate": 1}, 404, "unknown_endpoint"),
        ("POST", "endpoints/none/enable", None, 404, "unknown_endpoint"),
        ("POST", "endpoints/none/disable", None, 404, "unknown_endpoint"),
        ("POST", "http-tasks", {"topic": "t"}, 400, "bad_argument"),
        ("POST", "http-tasks", {"url": "https://a.example", "method": "TRACE"}, 400, "bad_argument"),
        ("POST", "http-tasks", {"url": "https://a.example", "headers": {"Host": "b"}}, 400, "bad_argument"),
        ("POST", "http-tasks", {"url": "https://a.example/../b"}, 400, "bad_argument"),
        ("POST", "http-tasks", {"url": "https://a.example", "topic": "-"}, 400, "bad_topic_name"),
    ],
)  # fmt: skip
async def test_what_is_refused(
    ask: Caller, method: str, path: str, json: Any, status: int, code: str
) -> None:
    answer = await ask(method, f"/v1/{path}", json)
    assert (answer.status, answer.code) == (status, code), answer.body


# Tests and attempts ------------------------------------------------------------------------------


async def test_a_test_and_what_became_of_it(ask: Caller, daemon: Daemon) -> None:
    one = "/v1/endpoints/tested"
    await ask("PUT", one, {"topic": "tested", "url": "https://a.example"})
    assert (await ask("GET", f"{one}/attempts")).json == {"items": [], "next": None, "missing": []}
    sent = await ask("POST", f"{one}/test")
    assert (sent.status, sent.headers["location"]) == (201, f"/v1/messages/{sent.json['id']}")
    assert (await ask("GET", one)).headers["etag"] == '"1"', "a test changes nothing of it"
    message = (await ask("GET", sent.headers["location"])).json
    assert (message["topic"], message["body"]) == ("tested.push-tests", {"test": True})
    assert message["headers"]["tickwheel-endpoint"] == "tested"
    assert (await ask("GET", f"{one}/attempts")).json["items"] == [], "nothing has taken it"

    for text in ("a", "b"):
        await ask("POST", "/v1/topics/tested/messages", {"text": text})
    async with tickwheel.Client(daemon.url) as client:  # as `tickwheel push` does
        for topic, group in (("tested.push-tests", "push"), ("tested", "push.tested")):
            fetched = await client.fetch(topic, group, count=1, wait=timedelta(seconds=PATIENCE_S))
            receipts = [(message.id, message.epoch) for message in fetched]
            await client.nack(fetched.group_id, receipts, delay_ms=60_000, error="HTTP 503 not now")
        fetched = await client.fetch("tested", "push.tested", wait=timedelta(seconds=PATIENCE_S))
        await client.ack(fetched.group_id, [(message.id, message.epoch) for message in fetched])
    found = (await ask("GET", f"{one}/attempts")).json
    assert [item["outcome"] for item in found["items"]] == ["acked", "nacked", "nacked"]
    acked, nacked, tested = found["items"]
    assert (tested["id"], tested["attempt"], tested["status"]) == (sent.json["id"], 1, 503)
    assert (nacked["status"], nacked["error"], nacked["settled_at"]) == (503, "HTTP 503 not now", None)
    assert nacked["next"] > nacked["at"] >= nacked["due_at"]
    assert (acked["status"], acked["error"], acked["next"]) == (None, None, None)
    assert acked["lateness_ms"] >= 0
    first = (await ask("GET", f"{one}/attempts?limit=1")).json
    rest = (await ask("GET", f"{one}/attempts?limit=5&after={first['next']}")).json
    assert [*first["items"], *rest["items"]] == found["items"]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "none/test", 404, "unknown_endpoint"),
        ("GET", "none/attempts", 404, "unknown_endpoint"),
        ("POST", "for-tasks/test", 400, "bad_endpoint"),
        ("GET", "for-tasks/attempts?after=x", 400, "bad_argument"),
        ("GET", "for-tasks/attempts?after=MQ==", 400, "bad_argument"),
        ("GET", "for-tasks/attempts?limit=0", 400, "bad_argument"),
    ],
)
async def test_tests_and_attempts_that_cannot_be(
    ask: Caller, method: str, path: str, status: int, code: str
) -> None:
    await ask("PUT", "/v1/endpoints/for-tasks", {**TASKS, "topic": "for-tasks"})
    answer = await ask(method, f"/v1/endpoints/{path}")
    assert (answer.status, answer.code) == (status, code)
