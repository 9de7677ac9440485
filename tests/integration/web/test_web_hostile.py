"""The HTTP API on a real broker: bytes that are no text, cursors that were made up, and what other clients wrote."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.daemon_harness import Daemon

TOPIC = "/v1/topics/{}/messages"
RAW = {"content-type": "text/plain"}


def cursor(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode()


@pytest.mark.parametrize("place", ["1" * 5_000, "9" * 20, "-1", "\u0663", "1.5"], ids=len)
@pytest.mark.parametrize("path", [TOPIC.format("t"), "/v1/topics/t/dead", "/v1/prepared?topic=t"])
async def test_a_cursor_that_was_made_up(ask: Caller, path: str, place: str) -> None:
    await ask("PUT", "/v1/topics/t", {})
    answer = await ask("GET", f"{path}{'&' if '?' in path else '?'}after={cursor(place)}")
    assert (answer.status, answer.code) == (400, "bad_argument")


async def test_other_bytes_than_utf_8_are_never_taken_for_one_another(ask: Caller) -> None:
    """As texts they would all be the same key."""
    for bad in ("%ff", "%fe", "%ed%a0%80"):
        refused = [
            await ask("POST", f"{TOPIC.format('bytes')}?key={bad}", body=b"x", headers=RAW),
            await ask("POST", f"{TOPIC.format('bytes')}?order_key={bad}", body=b"x", headers=RAW),
            await ask("GET", f"{TOPIC.format('bytes')}?{bad}=1"),
            *[await ask(method, f"/v1/topics/bytes/keys/{bad}") for method in ("GET", "DELETE")],
            await ask("GET", f"/v1/messages/{bad}"),
        ]
        assert [(one.status, one.code) for one in refused] == [(400, "bad_argument")] * len(refused)
    good = await ask("POST", f"{TOPIC.format('bytes')}?key=%EF%BF%BD%00", body=b"x", headers=RAW)
    assert good.status == 201
    assert (await ask("GET", "/v1/topics/bytes/keys/%EF%BF%BD%00")).json["key"] == "\ufffd\0"


@pytest.mark.parametrize("written", ["utf-8", "latin-1"])
async def test_headers_are_texts_as_they_were_written(ask: Caller, written: str) -> None:
    said = "Zoë".encode(written).decode("latin-1")
    headers = {**RAW, "tw-header-name": said, "Idempotency-Key": said}
    path = TOPIC.format(f"headers-{written}")
    sent = await ask("POST", path, body=b"x", headers=headers)
    found = (await ask("GET", sent.headers["location"])).json
    assert (found["headers"]["name"], found["key"]) == ("Zoë", "Zoë")
    assert (await ask("POST", path, {"text": "x", "key": "Zoë"})).status == 200


JSON_TYPE = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", TOPIC.format("t"), b'{"text": "a", "delay": "1h", "delay": "2h"}'),
        ("POST", TOPIC.format("t"), b'{"text": "a", "headers": {"x": "1", "x": "2"}}'),
        ("PUT", "/v1/topics/t", b'{"settings": {"rate": 5, "r\\u0061te": 6}}'),
        ("POST", "/v1/topics/t/groups/g/receive", b'{"max": 1, "max": 2}'),
        ("POST", "/v1/query", b'{"sql": "select 1", "sql": "select 2"}'),
    ],
)
async def test_a_name_that_stands_twice(ask: Caller, method: str, path: str, body: bytes) -> None:
    answer = await ask(method, path, body=body, headers=JSON_TYPE)
    assert (answer.status, answer.code) == (400, "bad_json"), answer.json
    assert "stands twice" in answer.json["detail"]


async def test_a_name_that_stands_twice_in_a_batch_or_a_body(ask: Caller) -> None:
    path = TOPIC.format("twice")
    twice, once = b'{"text": "a", "key": "a", "key": "b"}', b'{"text": "c", "key": "c"}'
    for kind, data in (
        ("application/json", b"[%b, %b]" % (twice, once)),
        ("application/x-ndjson", b"%b\n%b\n" % (twice, once)),
    ):
        answer = await ask("POST", f"{path}/batch", body=data, headers={"content-type": kind})
        refused, stored = answer.json["items"]
        assert refused["code"] == "bad_json"
        assert stored["id"]
    odd = b'{"body": {"a": 1, "a": 2}}'
    sent = await ask("POST", path, body=odd, headers=JSON_TYPE)
    assert sent.status == 201, "a body is kept as it came"


async def test_a_body_whose_texts_are_no_utf_8_is_no_json(ask: Caller) -> None:
    headers = {"content-type": "application/json"}
    refused = await ask("POST", TOPIC.format("t"), body=b'{"body": ["\xff"]}', headers=headers)
    assert (refused.status, refused.code) == (400, "bad_argument")
    batch = b'[{"body": "\xff"}, {"body": "t\xc3\xa9"}]'
    sent = (await ask("POST", f"{TOPIC.format('t')}/batch", body=batch, headers=headers)).json
    assert [one.get("code") for one in sent["items"]] == ["bad_argument", None]


async def test_a_token_that_is_too_long_is_no_token(ask: Caller) -> None:
    refused = await ask.with_token("x" * 300)("GET", "/v1/topics")
    assert (refused.status, refused.code) == (401, "login_required")


@pytest.mark.parametrize("path", ["/openapi.json/", "/v1/stats/", "/v1/topics/t/messages/"])
async def test_no_path_leads_elsewhere(ask: Caller, path: str) -> None:
    """Where to would be what the request says of its host."""
    found = await ask("GET", path)
    assert (found.status, found.code) == (404, "no_such_path")


async def test_headers_that_cannot_be_read_hide_no_message(ask: Caller, daemon: Daemon) -> None:
    """As a client of another kind may send them."""
    out_of_range = msgspec.msgpack.Ext(-1, b"\0" * 4 + b"\x7f" * 8)
    async with tickwheel.Client(daemon.url) as client:
        for headers in ({"a": 1}, {"when": out_of_range}):
            await client.send("poison", b"x", headers=headers, delay=timedelta(hours=1))
    listed: Any = (await ask("GET", f"{TOPIC.format('poison')}?bodies=1")).json["items"]
    assert [one["headers"] for one in listed] == [{"a": 1}, None]
    assert [one["base64"] for one in listed] == ["eA==", "eA=="]
    found = await ask("GET", f"/v1/messages/{listed[1]['id']}")
    assert (found.status, found.json["headers"], found.json["base64"]) == (200, None, "eA==")
    changed = await ask("PATCH", f"/v1/messages/{listed[1]['id']}", {"text": "y", "headers": {}})
    assert changed.json["result"] == "replaced"
