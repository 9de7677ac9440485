"""The HTTP API on a real broker, in this process: what each request does, and how each wrong one is refused."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import NotConnected
from tickwheel_web.endpoints import Endpoint
from tickwheel_web.shapes import MAX_BATCH
from tickwheel_web.table import ENDPOINTS

TOPIC = "/v1/topics/{}/messages"
LATER = "2031-05-01T09:00:00+02:00"


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Bodies are small."""
    return {"max_body_bytes": "64KiB"}


@pytest.fixture
async def ask(daemon: Daemon) -> AsyncIterator[Caller]:
    app = tickwheel.web.app(daemon.url, max_request_bytes=128 * 1024)
    async with app.router.lifespan_context(app):
        yield Caller(app)


async def test_a_message_from_send_to_cancel(ask: Caller) -> None:
    sent = await ask(
        "POST",
        TOPIC.format("life"),
        {"body": {"order": 17}, "key": "a/b c", "deliver_at": LATER, "priority": 3, "headers": {"x": 1}},
    )
    assert sent.status == 201
    assert sent.json == {"id": sent.json["id"], "duplicate": False, "differs": False}
    assert isinstance(sent.json["id"], str)
    path = sent.headers["location"]
    assert path == f"/v1/messages/{sent.json['id']}"

    found = (await ask("GET", path)).json
    assert found["deliver_at"] == "2031-05-01T07:00:00Z"
    assert (found["id"], found["topic"], found["key"]) == (sent.json["id"], "life", "a/b c")
    assert (found["state"], found["priority"], found["body"]) == ("scheduled", 3, {"order": 17})
    assert found["headers"] == {"x": 1, "content-type": "application/json"}
    assert (await ask("GET", "/v1/topics/life/keys/a%2Fb%20c")).json == found

    changed = await ask("PATCH", path, {"deliver_at": "2032-01-01T00:00:00Z", "priority": 4})
    assert (changed.status, changed.json) == (200, {"result": "rescheduled"})
    changed = await ask("PATCH", "/v1/topics/life/keys/a%2Fb%20c", {"delay": "PT2H"})
    assert changed.json == {"result": "rescheduled"}
    found = (await ask("GET", path)).json
    assert found["priority"] == 4
    assert found["deliver_at"] < "2032"

    assert (await ask("DELETE", "/v1/topics/life/keys/a%2Fb%20c")).json == {"result": "cancelled"}
    again = await ask("DELETE", path)
    assert (again.status, again.json) == (200, {"result": "already_cancelled"})
    too_late = await ask("PATCH", path, {"delay": "1h"})
    assert (too_late.status, too_late.code) == (409, "already_cancelled")


async def test_what_was_delivered_is_not_cancelled_but_can_be_stopped(ask: Caller, daemon: Daemon) -> None:
    sent = (await ask("POST", TOPIC.format("gone"), {"text": "now"})).json
    async with tickwheel.Client(daemon.url) as client, client.subscribe("gone") as subscription:
        message = await anext(aiter(subscription))
        found = (await ask("GET", f"/v1/messages/{sent['id']}")).json
        assert (found["state"], found["text"]) == ("ready", "now")
        assert [(one["group"], one["state"], one["epoch"]) for one in found["groups"]] == [
            ("default", "leased", 1)
        ]
        refused = await ask("DELETE", f"/v1/messages/{sent['id']}")
        assert (refused.status, refused.code) == (409, "already_delivered")
        stopped = await ask("DELETE", f"/v1/messages/{sent['id']}?stop=1")
        assert stopped.json == {"result": "stopped"}
        assert message.id == int(sent["id"])


async def test_a_key_is_stored_once_also_as_a_header(ask: Caller) -> None:
    message = {"text": "x", "deliver_at": LATER}
    first = await ask("POST", TOPIC.format("once"), message, headers={"Idempotency-Key": '"k-1"'})
    again = await ask("POST", TOPIC.format("once"), {**message, "key": "k-1"})
    other = await ask("POST", TOPIC.format("once"), {"text": "y"}, headers={"Idempotency-Key": "k-1"})
    assert (first.status, again.status, other.status) == (201, 200, 200)
    assert again.json == {"id": first.json["id"], "duplicate": True, "differs": False}
    assert other.json == {"id": first.json["id"], "duplicate": True, "differs": True}
    own = await ask(
        "POST", TOPIC.format("once"), {**message, "key": "k-2"}, headers={"Idempotency-Key": "k-1"}
    )
    assert own.status == 201


@pytest.mark.parametrize(
    ("sent", "content_type", "shown"),
    [
        (b"\x00\xff", "application/octet-stream", {"base64": "AP8="}),
        (b'{"a": [1]}', "application/vnd.x+json", {"body": {"a": [1]}}),
        (b"tea", "text/plain", {"text": "tea"}),
        (b"\xff", "text/plain", {"base64": "/w=="}),
        (b"{", "application/ld+json", {"base64": "ew=="}),
        (b"", "", {"base64": ""}),
    ],
)
async def test_any_body_and_how_it_is_shown(
    ask: Caller, sent: bytes, content_type: str, shown: dict[str, Any]
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    target = TOPIC.format("raw") + "?delay=1h&priority=7"
    answer = await ask("POST", target, body=sent, headers={**headers, "TW-Header-Shop": "berlin"})
    assert answer.status == 201
    found = (await ask("GET", answer.headers["location"])).json
    assert {name: found[name] for name in ("body", "text", "base64") if name in found} == shown
    assert found["headers"] == {"shop": "berlin", **({"content-type": content_type} if content_type else {})}
    assert (found["priority"], found["body_bytes"]) == (7, len(sent))


@pytest.mark.parametrize(
    ("content_type", "body", "advice"),
    [
        ("application/x-www-form-urlencoded", b'{"text": "hi", "delay": "1h"}', "application/octet-stream"),
        ("Application/X-WWW-Form-Urlencoded; charset=utf-8", b"text=hi&delay=1h", "application/json"),
        ("application/x-www-form-urlencoded", b"", "application/json"),
        ("multipart/form-data; boundary=x", b"--x--", "application/octet-stream"),
        ("", b'{"text": "hi", "delay": "1h"}', "application/octet-stream"),
        (" ", b"\x00", "application/octet-stream"),
        ("json", b'{"text": "hi"}', "application/json"),
        ("text/json", b'{"text": "hi"}', "application/json"),
        ("*/*", b'{"text": "hi"}', "application/json"),
        ("application/*", b"hi", "application/octet-stream"),
        ("application/vnd.api+json", b'{"text": "hi", "delay": "1h"}', "application/json"),
        (
            "text/plain;charset=UTF-8",
            b' {"body": 1, "deliver_at": "2031-05-01T09:00:00Z"}',
            "application/json",
        ),
        ("application/x-ndjson", b'{"text": "hi"}\n', "/v1/topics/untyped/messages/batch"),
    ],
)
async def test_a_body_whose_type_nobody_chose_is_no_message(
    ask: Caller, content_type: str, body: bytes, advice: str
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    answer = await ask("POST", TOPIC.format("untyped"), body=body, headers=headers)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert advice in answer.json["detail"]
    assert (await ask("GET", "/v1/topics/untyped")).code == "unknown_topic"


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("", {"content-type": "text/plain", "TW-Delay": "1h"}, b"hi"),
        ("", {"content-type": "text/plain", "tw-deliver-at": "2031-05-01T09:00:00Z"}, b"hi"),
        ("", {"content-type": "application/octet-stream", "tw-headers-shop": "berlin"}, b"hi"),
        ("", {"content-type": "application/json", "tw-header-shop": "berlin"}, b'{"text": "hi"}'),
        ("", {"content-type": "application/json", "tw-delay": "1h"}, b'{"text": "hi"}'),
        ("/batch", {"content-type": "application/json", "tw-header-shop": "berlin"}, b'[{"text": "hi"}]'),
    ],
)
async def test_headers_that_would_be_passed_over_are_refused(
    ask: Caller, path: str, headers: dict[str, str], body: bytes
) -> None:
    answer = await ask("POST", TOPIC.format("beside") + path, body=body, headers=headers)
    assert (answer.status, answer.code) == (400, "bad_argument")
    assert next(name for name in headers if name.lower().startswith("tw-")).lower() in answer.json["detail"]
    assert (await ask("GET", "/v1/topics/beside")).code == "unknown_topic"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/octet-stream", b'{"text": "hi", "delay": "1h"}'),
        ("text/plain", b'{"text": "for another program"}'),
        ("text/plain", b'{"text": "hi", "delay": "1h", "of": "ada"}'),
        ("text/plain", b'{"key": "a", "delay": "1h"}'),
        ("text/plain", b"{text: hi}"),
        ("application/cloudevents+json", b'{"specversion": "1.0", "id": "a"}'),
    ],
)
async def test_a_body_whose_type_was_chosen_is_stored_as_it_is(
    ask: Caller, content_type: str, body: bytes
) -> None:
    answer = await ask("POST", TOPIC.format("typed"), body=body, headers={"content-type": content_type})
    assert answer.status == 201
    assert (await ask("GET", answer.headers["location"])).json["body_bytes"] == len(body)


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.parametrize(
    "row", [row for row in ENDPOINTS if row.requests is not None], ids=lambda row: row.name
)
async def test_no_endpoint_takes_a_form(ask: Caller, row: Endpoint, content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    target = re.sub(r"{\w+}", "17", row.path)
    answer = await ask(row.method, target, body=b'{"delay": "1h"}', headers=headers)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert "Use application/json" in answer.json["detail"]


async def test_what_another_client_sent(ask: Caller, daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        sent = await client.send("native", b"\x01", headers={"b": b"\x00", "n": {"e": [1.5, None]}})
    found = (await ask("GET", f"/v1/messages/{sent.id}")).json
    assert base64.b64decode(found["base64"]) == b"\x01"
    assert found["headers"] == {"b": "AA==", "n": {"e": [1.5, None]}}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("2031-05-01T09:00:00.000000001Z", "2031-05-01T09:00:00.001Z"),
        ("2031-05-01T09:00:00.0010+02:00", "2031-05-01T07:00:00.001Z"),
        ("2031-05-01t09:00:00z", "2031-05-01T09:00:00Z"),
        ("2031-06-30T23:59:60Z", "2031-07-01T00:00:00Z"),
        ("2031-06-30T15:59:60.5-08:00", "2031-07-01T00:00:00.5Z"),
    ],
)
async def test_a_time_is_never_earlier_than_it_was_written(ask: Caller, said: str, kept: str) -> None:
    for answer in (
        await ask("POST", TOPIC.format("fine"), {"text": "x", "deliver_at": said}),
        await ask(
            "POST",
            f"{TOPIC.format('fine')}?deliver_at={said.replace('+', '%2B')}",
            body=b"x",
            headers={"content-type": "text/plain"},
        ),
        await ask("POST", TOPIC.format("fine") + "/batch", [{"text": "x", "deliver_at": said}]),
    ):
        sent = answer.json.get("items", [answer.json])[0]
        found = (await ask("GET", f"/v1/messages/{sent['id']}")).json["deliver_at"]
        assert datetime.fromisoformat(found) == datetime.fromisoformat(kept)


@pytest.mark.parametrize(
    "said", ["2031-05-01", "2031-05-01T09:00Z", "20310501T090000Z", "2031-05-01T09:00:60Z", "1935478800"]
)
async def test_what_is_no_time_of_rfc_3339(ask: Caller, said: str) -> None:
    raw = {"content-type": "text/plain"}
    for answer in (
        await ask("POST", TOPIC.format("times"), {"text": "x", "deliver_at": said}),
        await ask("POST", TOPIC.format("times") + f"?deliver_at={said}", body=b"x", headers=raw),
    ):
        assert (answer.status, answer.code) == (400, "bad_argument")
        assert (
            answer.json["detail"]
            == f"{said!r} is no time. Write it as 2031-05-01T09:00:00+02:00, or with Z for UTC."
        )


# Batches -----------------------------------------------------------------------------------------

MIXED: list[Any] = [
    {"text": "a", "delay": "1h", "key": "m-1"},
    {"body": None, "deliver_at": LATER, "priority": 1},
    {"base64": "AP8="},
    {"text": "naive", "deliver_at": "2031-05-01T09:00:00"},
    {"text": "x", "delai": "1h"},
    {"text": "x" * 70_000},
    {"text": "early", "deliver_at": "1969-01-01T00:00:00Z"},
    {"text": "both", "delay": "1s", "deliver_at": LATER},
    {"text": "again", "delay": "2h", "key": "m-1"},
    {"text": "x", "key": "k" * 300},
    {"text": "x", "key": ""},
    17,
    {},
]
RESULTS = [
    *(None, None, None, "naive_datetime", "unknown_field", "body_too_large", "bad_time", "bad_time", None),
    *("key_too_long", "bad_argument", "bad_argument", "bad_argument"),
]


@pytest.mark.parametrize("form", ["array", "lines"])
async def test_each_message_of_a_batch_has_its_own_result(ask: Caller, form: str) -> None:
    topic = f"batch-{form}"
    if form == "array":
        answer = await ask("POST", TOPIC.format(topic) + "/batch", MIXED)
    else:
        lines = b"\n".join(msgspec.json.encode(one) for one in MIXED) + b"\n\n"
        headers = {"content-type": "application/x-ndjson"}
        answer = await ask("POST", TOPIC.format(topic) + "/batch", body=lines, headers=headers)
    assert answer.status == 200
    found = answer.json
    assert [item.get("code") for item in found["items"]] == RESULTS
    assert (found["stored"], found["refused"]) == (4, 9)
    assert found["items"][4]["detail"] == "There is no field 'delai'. Did you mean delay?"
    assert found["items"][8] == {"id": found["items"][0]["id"], "duplicate": True, "differs": True}
    stored = [(await ask("GET", f"/v1/messages/{found['items'][i]['id']}")).json for i in range(3)]
    assert [one["state"] for one in stored] == ["scheduled", "scheduled", "ready"]
    assert (stored[0]["text"], stored[1]["body"], stored[2]["base64"]) == ("a", None, "AP8=")
    assert [one["priority"] for one in stored] == [50, 1, 50]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"[]", {}, 400, "bad_argument"),
        (b"{}", {}, 400, "bad_json"),
        (b"[1", {}, 400, "bad_json"),
        (b"[" + b"1," * MAX_BATCH + b"1]", {}, 400, "bad_argument"),
        (b"[1]", {"content-type": "text/csv"}, 415, "unsupported_media_type"),
        (b'[{"text": "x"}]', {"idempotency-key": "k"}, 400, "bad_argument"),
        (b"[" * 100_000, {}, 400, "bad_json"),
        (b" " * 200_000, {}, 413, "request_too_large"),
    ],
)
async def test_what_is_no_batch(
    ask: Caller, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await ask(
        "POST",
        TOPIC.format("none") + "/batch",
        body=body,
        headers={"content-type": "application/json"} | headers,
    )
    assert (answer.status, answer.code) == (status, code)


# Wrong requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code", "pointer"),
    [
        ({"text": "x", "deliver_at": "2031-05-01T09:00:00"}, "naive_datetime", None),
        ({"text": "x", "deliver_at": "tomorrow"}, "bad_argument", "/deliver_at"),
        ({"text": "x", "deliver_at": "1969-12-31T23:00:00Z"}, "bad_time", None),
        ({"text": "x", "delay": "soon"}, "bad_time", None),
        ({"text": "x", "delay": 5}, "bad_argument", "/delay"),
        ({"text": "x", "delay": "1s", "deliver_at": LATER}, "bad_time", None),
        ({"text": "x", "headres": {}}, "unknown_field", "/headres"),
        ({"text": "x", "body": 1}, "bad_argument", None),
        ({"key": "k"}, "bad_argument", None),
        ({"base64": "!"}, "bad_argument", None),
        ({"text": "x", "priority": 256}, "bad_argument", "/priority"),
        ({"text": "x", "key": 1}, "bad_argument", "/key"),
        ({"text": "x", "key": "k" * 256}, "key_too_long", None),
        ({"text": "x", "order_key": ""}, "bad_argument", None),
        ({"text": "x", "headers": {"h": "x" * 40_000}}, "headers_too_large", None),
        ({"text": "x", "headers": {"h": 1 << 70}}, "bad_argument", None),
        ([], "bad_argument", ""),
    ],
)
async def test_a_message_that_is_refused(ask: Caller, message: Any, code: str, pointer: str | None) -> None:
    answer = await ask("POST", TOPIC.format("refused"), message)
    assert (answer.status, answer.code) == (400, code)
    assert [one["pointer"] for one in answer.json.get("errors", [])] == ([] if pointer is None else [pointer])
    assert answer.json["instance"] == "/v1/topics/refused/messages"


@pytest.mark.parametrize(
    ("method", "target", "json", "status", "code"),
    [
        ("GET", "/v1/messages/17000000", None, 404, "not_found"),
        ("GET", "/v1/messages/x", None, 400, "bad_argument"),
        ("GET", "/v1/messages/99999999999999999999", None, 400, "bad_argument"),
        ("GET", "/v1/messages/9999999999999999999", None, 400, "bad_argument"),
        ("GET", "/v1/messages/1?stop=1", None, 400, "unknown_field"),
        ("DELETE", "/v1/messages/17000000", None, 404, "not_found"),
        ("DELETE", "/v1/messages/1?stop=yes", None, 400, "bad_argument"),
        ("DELETE", "/v1/messages/1?stop=1&stop=1", None, 400, "bad_argument"),
        ("PATCH", "/v1/messages/17000000", {"delay": "1s"}, 404, "not_found"),
        ("PATCH", "/v1/messages/1", {}, 400, "bad_time"),
        ("PATCH", "/v1/messages/1", {"bdy": 1}, 400, "unknown_field"),
        ("PATCH", "/v1/messages/1", None, 415, "unsupported_media_type"),
        ("GET", "/v1/topics/none", None, 404, "unknown_topic"),
        ("GET", "/v1/topics/none/groups", None, 404, "unknown_topic"),
        ("GET", "/v1/topics/none/keys/k", None, 404, "unknown_topic"),
        ("GET", "/v1/topics/-none/keys/k", None, 400, "bad_topic_name"),
        ("GET", "/v1/topics/none/keys/", None, 404, "no_such_path"),
        ("GET", "/v1/topics/none/keys/a/b", None, 404, "no_such_path"),
        ("PATCH", "/v1/topics/none/keys/a/run", {"delay": "1s"}, 405, "method_not_allowed"),
        ("PATCH", "/v1/topics/none/keys/a%2Frun", {"delay": "1s"}, 404, "not_found"),
        ("GET", "/v1/topics?limit=0", None, 400, "bad_argument"),
        ("GET", "/v1/topics?limit=1001", None, 400, "bad_argument"),
        ("GET", "/v1/topics?limt=1", None, 400, "unknown_field"),
        ("GET", "/v1/topics?after=%21", None, 400, "bad_argument"),
        ("POST", "/v1/topics/t/messages?delay=1s", {"text": "x"}, 400, "bad_argument"),
        ("POST", "/v1/topics/-/messages", {"text": "x"}, 400, "bad_topic_name"),
        ("PUT", "/v1/topics", None, 405, "method_not_allowed"),
        ("PATCH", "/v1/topics/t/messages", None, 405, "method_not_allowed"),
        ("GET", "/v1/nothing", None, 404, "no_such_path"),
        ("GET", "/v2", None, 404, "no_such_path"),
    ],
)
async def test_a_request_that_is_refused(
    ask: Caller, method: str, target: str, json: Any, status: int, code: str
) -> None:
    answer = await ask(method, target, json)
    assert (answer.status, answer.code) == (status, code)


async def test_what_is_refused_before_it_is_read(ask: Caller) -> None:
    target = TOPIC.format("unread")
    large = await ask("POST", target, body=b"x" * 200_000)
    assert (large.status, large.code) == (413, "request_too_large")
    said = await ask("POST", target, body=b"", headers={"content-length": "9" * 30})
    assert (said.status, said.code) == (413, "request_too_large")
    raw = {"content-type": "text/plain"}
    for_the_broker = await ask("POST", target, body=b"x" * 100_000, headers=raw)
    assert (for_the_broker.status, for_the_broker.code) == (413, "body_too_large")
    zipped = await ask("POST", target, body=b"x", headers={"content-encoding": "gzip"})
    assert (zipped.status, zipped.code) == (415, "unsupported_encoding")
    methods = await ask("PUT", "/v1/messages/1")
    assert set(methods.headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD", "PATCH"}


# Looking -----------------------------------------------------------------------------------------


async def test_topics_groups_and_figures(ask: Caller, daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for number in range(3):
            await client.create_topic(f"list-{number}", ack_wait_ms=90_000)
        for group in ("a", "b", "c"):
            await client.create_group("list-1", group)
    names: list[str] = []
    after = ""
    while True:
        part = (await ask("GET", f"/v1/topics?limit=2&after={after}")).json
        assert len(part["items"]) <= 2
        names += [row["name"] for row in part["items"]]
        if part["next"] is None:
            break
        after = part["next"]
    assert names == sorted(names)
    assert {"list-0", "list-1", "list-2"} <= set(names)

    topic = (await ask("GET", "/v1/topics/list-1")).json
    assert topic["settings"] == {"ack_wait": "90s"}
    assert topic["effective"]["ack_wait"] == "90s"
    groups = (await ask("GET", "/v1/topics/list-1/groups?limit=2")).json
    assert [group["name"] for group in groups["items"]] == ["a", "b"]
    assert groups["items"][0]["backlog"] == 0
    rest = (await ask("GET", f"/v1/topics/list-1/groups?after={groups['next']}")).json
    assert ([group["name"] for group in rest["items"]], rest["next"]) == (["c"], None)

    stats = (await ask("GET", "/v1/stats")).json
    assert stats["topics"] >= 3
    assert stats["now"].endswith("Z")
    assert (await ask("HEAD", "/v1/stats")).status == 200


async def test_every_answer_has_the_headers_of_security(ask: Caller) -> None:
    for target in ("/v1/stats", "/v1/nothing", "/openapi.json"):
        answer = await ask("GET", target, headers={"accept-encoding": "gzip"})
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["content-encoding"] == "gzip"


async def test_a_defect_is_a_problem_too(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: tickwheel.Client) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(tickwheel.Client, "stats", broken)
    app = tickwheel.web.app(daemon.url, cors_origins=["https://shop.example"])
    async with app.router.lifespan_context(app):
        answer = await Caller(app)("GET", "/v1/stats", headers={"origin": "https://shop.example"})
    assert (answer.status, answer.code) == (500, "internal")
    assert "secret" not in answer.body.decode()
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert "the secret of the house" in caplog.text


# Without a broker --------------------------------------------------------------------------------


async def test_no_broker(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        url = daemon.url
    app = tickwheel.web.app(url)
    ask = Caller(app)
    outside = await ask("GET", "/v1/stats")
    assert (outside.status, outside.code) == (503, "shutting_down")
    assert "lifespan" in outside.json["detail"]
    async with app.router.lifespan_context(app):
        refused = await ask("GET", "/v1/stats")
        assert (refused.status, refused.code) == (503, NotConnected.code)
        assert (refused.json["retryable"], refused.headers["retry-after"]) == (True, "1")
        with Daemon(tmp_path / "data", listen_port=int(url.rpartition(":")[2])):
            assert (await ask("GET", "/v1/stats")).status == 200
