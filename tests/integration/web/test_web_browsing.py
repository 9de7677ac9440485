"""Looking at many messages, and changing many at once, over HTTP, on a real broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon


async def send(ask: Caller, topic: str, count: int) -> list[str]:
    """Messages with keys k0, k1 …, one a day from 2031 on; their ids."""
    batch = [
        {"text": f"m{n}", "key": f"k{n}", "priority": n, "deliver_at": f"2031-05-{n + 1:02}T00:00:00Z"}
        for n in range(count)
    ]
    sent = await ask("POST", f"/v1/topics/{topic}/messages/batch", batch)
    return [item["id"] for item in sent.json["items"]]


async def test_messages_come_in_parts(ask: Caller) -> None:
    ids = await send(ask, "parts", 5)
    seen: list[dict[str, Any]] = []
    target = "/v1/topics/parts/messages?limit=2"
    while target:
        part = (await ask("GET", target)).json
        assert 1 <= len(part["items"]) <= 2
        seen += part["items"]
        target = f"/v1/topics/parts/messages?limit=2&after={part['next']}" if part["next"] else ""
    assert [one["id"] for one in seen] == ids
    assert (seen[1]["key"], seen[1]["priority"], seen[1]["deliver_at"]) == ("k1", 1, "2031-05-02T00:00:00Z")
    assert not {"body", "text", "base64"} & seen[1].keys()
    with_bodies = (await ask("GET", "/v1/topics/parts/messages?bodies=1")).json
    assert ([one["text"] for one in with_bodies["items"]], with_bodies["next"]) == (
        ["m0", "m1", "m2", "m3", "m4"],
        None,
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("due_from=2031-05-03T00:00:00Z&due_until=2031-05-05T00:00:00Z", ["k2", "k3"]),
        (f"due_from={quote('2031-05-05T02:00:00+02:00')}", ["k4"]),
        ("state=scheduled&priority_max=1", ["k0", "k1"]),
        ("state=dead,leased", []),
        ("key=k3", ["k3"]),
        ("key=none", []),
    ],
)
async def test_a_filter(ask: Caller, query: str, expected: list[str]) -> None:
    await send(ask, "filtered", 5)
    found = (await ask("GET", f"/v1/topics/filtered/messages?{query}")).json
    assert ([one["key"] for one in found["items"]], found["next"]) == (expected, None)


async def test_how_far_groups_are(ask: Caller, daemon: Daemon) -> None:
    await ask("POST", "/v1/topics/read/messages", {"text": "x", "key": "k"})
    async with tickwheel.Client(daemon.url) as client, client.subscribe("read") as subscription:
        await anext(aiter(subscription))
        for target in ("state=leased", "key=k"):
            (row,) = (await ask("GET", f"/v1/topics/read/messages?{target}")).json["items"]
            assert row["groups"] == [{"group": "default", "state": "leased", "epoch": 1}]


async def test_what_has_happened_to_a_message(ask: Caller, daemon: Daemon) -> None:
    sent = await ask("POST", "/v1/topics/lived/messages", {"text": "x"})
    async with tickwheel.Client(daemon.url) as client, client.subscribe("lived") as subscription:
        message = await anext(aiter(subscription))
        await message.nack(timedelta(hours=1), "no ink")
        await client.stats()  # behind the nack
    target = f"/v1/messages/{sent.json['id']}/events"
    with trio.fail_after(PATIENCE_S):  # the log is read as far as it is on disk
        while len((found := (await ask("GET", target)).json)["items"]) < 4:
            await trio.sleep(0.01)
    assert (found["id"], found["topic"], found["missing"]) == (sent.json["id"], "lived", [])
    events = found["items"]
    assert [one["event"] for one in events if not one["computed"]] == ["sent", "due", "delivered", "nacked"]
    assert (events[-1]["group"], events[-1]["error"], events[-1]["epoch"]) == ("default", "no ink", 1)
    assert events[-1]["next"] > (events[-1]["at"] or events[-1]["after"])
    cut = (await ask("GET", f"{target}?limit=1")).json
    assert (len(cut["items"]), cut["missing"]) == (1, ["limit"])
    missing = await ask("GET", "/v1/messages/17000000/events")
    assert (missing.status, missing.code) == (404, "not_found")


async def test_many_are_changed_by_a_filter(ask: Caller) -> None:
    await send(ask, "bulk", 5)
    changes = "/v1/topics/bulk/changes"
    late = {"due_from": "2031-05-03T00:00:00Z"}
    counted = await ask("POST", changes, {"action": "cancel", "filter": late, "dry_run": True})
    assert (counted.status, counted.json) == (200, {"matched": 3, "results": {}})
    moved = await ask(
        "POST", changes, {"action": "reschedule", "filter": late, "limit": 2, "delay": "1h", "priority": 9}
    )
    assert moved.json == {"matched": 2, "results": {"rescheduled": 2}}
    gone = await ask("POST", changes, {"action": "cancel", "filter": {"state": ["scheduled"]}, "stop": True})
    assert gone.json == {"matched": 5, "results": {"cancelled": 5}}
    assert (await ask("GET", "/v1/topics/bulk/messages")).json["items"] == []


async def test_many_are_redelivered(ask: Caller, daemon: Daemon) -> None:
    await ask("POST", "/v1/topics/again/messages", {"text": "x"})
    async with tickwheel.Client(daemon.url) as client, client.subscribe("again") as subscription:
        message = await anext(aiter(subscription))
        await message.ack()
    again = {"action": "redeliver", "filter": {"group": "default", "state": ["acked"]}, "acked": True}
    assert (await ask("POST", "/v1/topics/again/changes", again)).json == {
        "matched": 1,
        "results": {"redelivered": 1},
    }


@pytest.mark.parametrize(
    ("method", "path", "json", "status", "code"),
    [
        ("GET", "none/messages", None, 404, "unknown_topic"),
        ("GET", "none/messages?state=lost", None, 400, "bad_argument"),
        ("GET", "none/messages?due_from=2031-05-01T00:00:00", None, 400, "naive_datetime"),
        ("GET", "none/messages?due_from=soon", None, 400, "bad_argument"),
        ("GET", "none/messages?due_from=20310501", None, 400, "bad_argument"),  # no seconds since 1970
        ("GET", "none/messages?stat=dead", None, 400, "unknown_field"),
        ("GET", "none/messages?key=k&state=dead", None, 400, "bad_argument"),
        ("GET", "none/messages?key=", None, 400, "bad_argument"),
        ("GET", "none/messages?after=eA==", None, 400, "bad_argument"),
        ("GET", "none/messages?after=%21", None, 400, "bad_argument"),
        ("POST", "none/changes", {"action": "cancel", "filter": {}}, 404, "unknown_topic"),
        ("POST", "none/changes", {"action": "cancel"}, 400, "bad_argument"),
        ("POST", "none/changes", {"action": "delete", "filter": {}}, 400, "bad_argument"),
        ("POST", "none/changes", {"action": "cancel", "filter": {}, "delay": "1s"}, 400, "bad_argument"),
        ("POST", "none/changes", {"action": "reschedule", "filter": {}}, 400, "bad_time"),
        ("POST", "none/changes", {"action": "redeliver", "filter": {"colour": 1}}, 400, "unknown_field"),
    ],
)
async def test_what_is_refused(
    ask: Caller, method: str, path: str, json: Any, status: int, code: str
) -> None:
    answer = await ask(method, f"/v1/topics/{path}", json)
    assert (answer.status, answer.code) == (status, code)
