"""Messages that get another body, become due now, are delivered again, are given up: over HTTP, on a real broker."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import tickwheel
import tickwheel.web
from tests.integration.web.test_web_consuming import receive, settle
from tests.support.clients.asgi import Answer, Caller
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon

LATER = "2031-05-01T09:00:00Z"


async def send(ask: Caller, topic: str, **message: Any) -> str:
    """The path of the message."""
    answer = await ask("POST", f"/v1/topics/{topic}/messages", {"text": "x", **message})
    assert answer.status == 201
    return answer.headers["location"]


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["result"] if answer.status == 200 else answer.code


# Now, and again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by_key", [False, True])
async def test_due_now_and_again(ask: Caller, topic: str, by_key: bool) -> None:
    by_id = await send(ask, topic, key="a/run", deliver_at=LATER)
    path = f"/v1/topics/{topic}/keys/a%2Frun" if by_key else by_id
    assert told(await ask("POST", f"{path}/redeliver", {})) == (200, "waiting")
    assert told(await ask("POST", f"{path}/run")) == (200, "rescheduled")
    (item,) = await receive(ask, topic)
    assert (item["id"], item["attempt"]) == (by_id.rpartition("/")[2], 1)
    assert told(await ask("POST", f"{path}/run")) == (409, "already_delivered")
    assert told(await ask("POST", f"{path}/redeliver", {"group": "g"})) == (200, "redelivered")
    assert (await settle(ask, topic, ack=[item["receipt"]])).json["ack"] == ["stale_receipt"]
    (item,) = await receive(ask, topic)
    assert item["attempt"] == 1, "attempts are counted anew"
    await settle(ask, topic, ack=[item["receipt"]])
    assert told(await ask("POST", f"{path}/redeliver", {})) == (409, "already_acked")
    assert told(await ask("POST", f"{path}/redeliver", {"acked": True, "keep_attempts": True})) == (
        200,
        "redelivered",
    )
    (item,) = await receive(ask, topic)
    assert item["attempt"] == 2


@pytest.mark.parametrize(
    "condition",
    [{"If-None-Match": "*"}, {"If-Match": '"1"'}, {"If-Unmodified-Since": "Thu, 01 May 2031 09:00:00 GMT"}],
)
async def test_conditions_at_which_nobody_looks_are_refused(
    ask: Caller, topic: str, condition: dict[str, str]
) -> None:
    daily = {"topic": topic, "cron": "0 9 * * *", "text": "x"}
    (name,) = condition
    for method, path, body in (
        ("PUT", f"/v1/schedules/{topic}-daily", daily),
        ("PUT", f"/v1/topics/{topic}-new", {}),
        ("POST", f"/v1/topics/{topic}/messages", {"text": "x"}),
        ("DELETE", f"/v1/topics/{topic}?confirm={topic}", None),
    ):
        refused = await ask(method, path, body, headers=condition)
        assert refused.status == 400, (method, path)
        assert f"knows no {name}" in refused.json["detail"]
    assert (await ask("GET", f"/v1/schedules/{topic}-daily", headers=condition)).status == 404
    assert (await ask("GET", f"/v1/topics/{topic}-new", headers=condition)).status == 404
    assert (await ask("PUT", f"/v1/schedules/{topic}-daily", daily)).status == 201


# Another body ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "body", "headers"),
    [
        ({"text": "new"}, {"text": "new"}, {"h": 1, "content-type": "text/plain; charset=utf-8"}),
        ({"base64": "AP8="}, {"base64": "AP8="}, {"h": 1}),
        ({"headers": {"n": 2}}, {"body": {"a": 1}}, {"n": 2, "content-type": "application/json"}),
        ({"headers": {}}, {"body": {"a": 1}}, {"content-type": "application/json"}),
        (
            {"text": "[1]", "headers": {"content-type": "x/y+json"}},
            {"body": [1]},
            {"content-type": "x/y+json"},
        ),
    ],
)
async def test_another_body_or_other_headers(
    ask: Caller, topic: str, change: Any, body: Any, headers: Any
) -> None:
    path = await send(ask, topic, deliver_at=LATER, priority=7, headers={"h": 1, "content-type": "x"})
    first = await ask("PATCH", path, {"body": {"a": 1}, "headers": {"h": 1}})
    assert told(first) == (200, "replaced")
    path = f"/v1/messages/{first.json['id']}"
    changed = await ask("PATCH", path, change)
    assert told(changed) == (200, "replaced")
    found = (await ask("GET", f"/v1/messages/{changed.json['id']}")).json
    assert {name: found[name] for name in ("text", "base64", "body") if name in found} == body
    assert (found["headers"], found["priority"], found["deliver_at"]) == (headers, 7, LATER)
    assert (await ask("GET", path)).json["state"] == "cancelled"
    assert told(await ask("PATCH", path, change)) == (409, "already_cancelled")


async def test_another_body_at_another_time(ask: Caller, topic: str) -> None:
    path = await send(ask, topic, deliver_at=LATER, order_key="o")
    changed = await ask("PATCH", path, {"text": "now", "delay": "0s"})
    (item,) = await receive(ask, topic)
    assert (item["id"], item["text"], item["order_key"]) == (changed.json["id"], "now", "o")
    assert told(await ask("PATCH", f"/v1/messages/{item['id']}", {"text": "late"})) == (
        409,
        "already_delivered",
    )


@pytest.mark.parametrize("by_key", [False, True])
async def test_what_has_a_key_hands_it_on(ask: Caller, topic: str, by_key: bool) -> None:
    path, named = await send(ask, topic, key="a/k", deliver_at=LATER), f"/v1/topics/{topic}/keys/a%2Fk"
    for text in ("new", "newer"):
        changed = await ask("PATCH", named if by_key else path, {"text": text})
        assert told(changed) == (200, "replaced")
        assert (await ask("GET", path)).json["state"] == "cancelled"
        path = f"/v1/messages/{changed.json['id']}"
        found = (await ask("GET", named)).json
        assert (found["id"], found["text"], found["key"]) == (changed.json["id"], text, "a/k")
        again = await ask("POST", f"/v1/topics/{topic}/messages", {"text": text, "key": "a/k"})
        assert (again.status, again.json["id"]) == (200, changed.json["id"])
    assert told(await ask("PATCH", named, {"priority": 3})) == (200, "rescheduled")
    assert told(await ask("POST", f"{path}/run")) == (200, "rescheduled")
    (item,) = await receive(ask, topic)
    assert (item["text"], item["key"]) == ("newer", "a/k")
    late = await ask("PATCH", named if by_key else path, {"text": "late"})
    assert told(late) == (409, "already_delivered"), "the key is its own still"


async def test_a_key_that_is_not_there_is_none_to_hand_on(ask: Caller, topic: str) -> None:
    await send(ask, topic)
    answer = await ask("PATCH", f"/v1/topics/{topic}/keys/none", {"text": "x"})
    assert (answer.status, answer.code) == (404, "not_found")


async def test_what_is_prepared_keeps_its_body(ask: Caller, topic: str) -> None:
    prepared = await ask("POST", "/v1/prepared", {"topic": topic, "text": "x"})
    path = f"/v1/messages/{prepared.json['id']}"
    assert told(await ask("PATCH", path, {"text": "new"})) == (409, "message_is_prepared")
    committed = await ask("POST", f"/v1/prepared/{prepared.json['id']}/commit")
    assert committed.status == 200
    assert [item["text"] for item in await receive(ask, topic)] == ["x"]


@pytest.mark.parametrize(
    ("method", "suffix", "what", "code"),
    [
        ("PATCH", "", {"text": "x", "body": 1}, "bad_argument"),
        ("PATCH", "", {"base64": "!"}, "bad_argument"),
        ("PATCH", "", {"headers": []}, "bad_argument"),
        ("PATCH", "", {"text": "x", "delay": "1s", "deliver_at": LATER}, "bad_time"),
        ("PATCH", "", {"headers": {"h": "x" * 40_000}}, "headers_too_large"),
        ("POST", "/redeliver", {"grp": "g"}, "unknown_field"),
        ("POST", "/redeliver", {"delay": "1s", "deliver_at": LATER}, "bad_time"),
        ("POST", "/redeliver", {"group": 1}, "bad_argument"),
    ],
)
async def test_what_cannot_be_changed(
    ask: Caller, topic: str, method: str, suffix: str, what: Any, code: str
) -> None:
    path = await send(ask, topic, deliver_at=LATER)
    answer = await ask(method, path + suffix, what)
    assert (answer.status, answer.code) == (400, code)
    assert (await ask("GET", path)).json["state"] == "scheduled"


@pytest.mark.parametrize("what", ["run", "redeliver"])
async def test_messages_that_are_not_there(ask: Caller, what: str) -> None:
    body = {} if what == "redeliver" else None
    answer = await ask("POST", f"/v1/messages/17000000/{what}", body)
    assert (answer.status, answer.code) == (404, "not_found")
    assert told(await ask("PATCH", "/v1/messages/17000000", {"text": "x"})) == (404, "not_found")
    by_key = await ask("POST", f"/v1/topics/none/keys/k/{what}", body)
    assert (by_key.status, by_key.code) == (404, "not_found")


# Given up ----------------------------------------------------------------------------------------


async def give_up(ask: Caller, topic: str, *texts: str) -> None:
    """One after the other, so that their letters are in order."""
    for text in texts:
        await send(ask, topic, text=text, key=f"key-{text}", headers={"h": text})
        (item,) = await receive(ask, topic)
        nack = {"receipt": item["receipt"], "give_up": True, "error": f"no {text}"}
        assert (await settle(ask, topic, nack=[nack])).json["nack"] == ["dead"]


async def test_dead_letters_from_giving_up_to_replay(ask: Caller, topic: str) -> None:
    await give_up(ask, topic, "a", "b", "c")
    found = await ask("GET", f"/v1/topics/{topic}/dead?bodies=1&limit=2")
    first = found.json["items"][0]
    assert [item["text"] for item in found.json["items"]] == ["a", "b"]
    assert (first["group"], first["attempts"], first["error"], first["key"]) == ("g", 1, "no a", "key-a")
    assert first["headers"] == {"h": "a", "content-type": "text/plain; charset=utf-8"}
    assert [(one["attempt"], one["error"]) for one in first["failures"]] == [(1, "no a")]
    rest = await ask("GET", f"/v1/topics/{topic}/dead?after={found.json['next']}")
    assert [(item["error"], "text" in item) for item in rest.json["items"]] == [("no c", False)]
    assert rest.json["next"] is None
    for wrong in ("after=%21", "after=eA==", "limit=0", "created_from=now", "bodies=2", "body=1"):
        assert (await ask("GET", f"/v1/topics/{topic}/dead?{wrong}")).status == 400
    assert (await ask("GET", f"/v1/topics/{topic}/dead?created_until=2001-01-01T00:00:00Z")).json[
        "items"
    ] == []

    replayed = await ask("POST", f"/v1/topics/{topic}/dead/replay", {"ids": [first["id"], "1700000"]})
    assert replayed.json == {"results": {"replayed": 1, "not_found": 1}}
    (item,) = await receive(ask, topic)
    assert (item["id"], item["attempt"]) == (first["original"], 1)
    assert (await ask("POST", f"/v1/topics/{topic}/dead/replay", {})).json == {"results": {"replayed": 2}}


async def test_dead_letters_are_dropped_when_it_is_confirmed(ask: Caller, topic: str) -> None:
    await give_up(ask, topic, "a", "b")
    for target in (f"/v1/topics/{topic}/dead", f"/v1/topics/{topic}/dead?confirm=other"):
        assert (await ask("DELETE", target)).status == 400
    assert len((await ask("GET", f"/v1/topics/{topic}/dead")).json["items"]) == 2
    dropped = await ask("DELETE", f"/v1/topics/{topic}/dead?confirm={topic}")
    assert (dropped.status, dropped.json["matched"]) == (200, 2)
    with trio.fail_after(PATIENCE_S):
        while (await ask("GET", f"/v1/topics/{topic}/dead")).json["items"]:
            await trio.sleep(0.01)


async def test_letters_that_others_wrote(ask: Caller, topic: str, daemon: Daemon) -> None:
    await give_up(ask, topic, "a")
    odd: list[Any] = [None, {"tickwheel-dead": 17}, {"tickwheel-dead": {"id": "x"}}]
    odd += [{"tickwheel-dead": {"history": [[1, 1 << 62, "?"]], "group": "g"}}]
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many(f"{topic}.dead", [b"?"] * len(odd), headers=odd)
    found = (await ask("GET", f"/v1/topics/{topic}/dead")).json["items"]
    assert [(item["original"], item["group"], item["failures"]) for item in found[1:]] == [
        (None, None, [])
    ] * len(odd)


async def test_topics_without_dead_letters(ask: Caller, topic: str) -> None:
    for method, target, body in [
        ("GET", "", None),
        ("POST", "/replay", {}),
        ("DELETE", f"?confirm={topic}", None),
    ]:
        answer = await ask(method, f"/v1/topics/{topic}/dead{target}", body)
        assert (answer.status, answer.code) == (404, "unknown_topic")
    await send(ask, topic)
    assert (await ask("GET", f"/v1/topics/{topic}/dead")).json == {"items": [], "next": None}
    assert (await ask("POST", f"/v1/topics/{topic}/dead/replay", {})).json == {"results": {}}
    dropped = await ask("DELETE", f"/v1/topics/{topic}/dead?confirm={topic}")
    assert dropped.json == {"matched": 0, "results": {}}


@pytest.mark.parametrize(
    "what", [{"ids": []}, {"ids": ["x"]}, {"ids": [1]}, {"limit": 0}, {"limit": 100_001}, {"id": "1"}]
)
async def test_what_cannot_be_replayed(ask: Caller, what: Any) -> None:
    answer = await ask("POST", "/v1/topics/t/dead/replay", what)
    assert answer.status == 400
