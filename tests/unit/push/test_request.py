"""The requests that messages become, as the official packages of Standard Webhooks and CloudEvents read them."""

from __future__ import annotations

import base64
import dataclasses
import doctest
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.clients.strange import readable
from tests.support.run.cases import table
from tickwheel.protocol.receipts import Receipt, decode_receipt
from tickwheel_push.http import cloud_event
from tickwheel_push.http.addresses import Allowed, location_of
from tickwheel_push.http.request import Due, Request, RequestRefused, Style, request_of, signature, task_of

OLD = "whsec_" + base64.b64encode(b"o" * 24).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 64).decode()
OTHER = "whsec_" + base64.b64encode(b"x" * 32).decode()
WHERE = location_of("https://hooks.example.com/in?x=1")
DUE_MS = 1_700_000_000_123
DUE = Due(
    receipt=Receipt(4, 7, 3),
    topic="bücher/1",
    group="push.shop",
    body=b'{"order": 17}',
    headers={"content-type": "application/json"},
    key="order 17 \u20ac",
    deliver_at_ms=DUE_MS,
    created_ms=DUE_MS - 60_000,
    attempt=2,
)


def of(due: Due = DUE, style: Style | None = None, **options: Any) -> Request:
    return request_of(due, style or Style(), WHERE, time.time(), **options)


def but(**changes: Any) -> Due:
    return dataclasses.replace(DUE, **changes)


def verified(made: Request, secret: str) -> None:
    Webhook(secret).verify(made.body, dict(made.headers), json_parse=False)


# Signatures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["binary", "structured", "plain"])
def test_each_live_secret_verifies_it(style: Any) -> None:
    made = of(style=Style(style, secrets=[NEW, OLD]))
    for secret in (NEW, OLD):
        verified(made, secret)
    with pytest.raises(WebhookVerificationError):
        verified(made, OTHER)
    altered = dataclasses.replace(made, body=made.body + b" ")
    with pytest.raises(WebhookVerificationError):
        verified(altered, NEW)


def test_the_id_stays_and_the_time_is_that_of_the_attempt() -> None:
    first = dict(request_of(DUE, Style(secrets=[NEW]), WHERE, 1_000.9).headers)
    again = dict(
        request_of(but(attempt=3, receipt=Receipt(4, 7, 9)), Style(secrets=[NEW]), WHERE, 2_000.0).headers
    )
    assert first["webhook-id"] == again["webhook-id"] == "msg_7"
    assert "." not in first["webhook-id"]
    assert (first["webhook-timestamp"], again["webhook-timestamp"]) == ("1000", "2000")
    assert first["webhook-signature"] != again["webhook-signature"]
    assert (first["tickwheel-attempt"], again["tickwheel-attempt"]) == ("2", "3")


def test_without_a_secret_nothing_is_signed() -> None:
    assert "webhook-signature" not in dict(of().headers)


@given(st.binary(max_size=100), st.binary(min_size=24, max_size=64))
def test_any_utf8_body_verifies(body: bytes, key: bytes) -> None:
    text = body.decode(errors="ignore")
    secret = "whsec_" + base64.b64encode(key).decode()
    now_s = int(time.time())
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now_s),
        "webhook-signature": signature([secret], "msg_1", now_s, text.encode()),
    }
    Webhook(secret).verify(text, headers, json_parse=False)


# CloudEvents -------------------------------------------------------------------------------------


def read(made: Request, *, binary: bool) -> tuple[dict[str, Any], Any]:
    message = HTTPMessage(dict(made.headers), made.body)
    event = (from_binary if binary else from_structured)(message, JSONFormat())
    return event.get_attributes(), event.get_data()


@pytest.mark.parametrize("binary", [True, False])
def test_the_package_reads_an_event(binary: bool) -> None:
    attributes, data = read(of(style=Style("binary" if binary else "structured")), binary=binary)
    assert data == {"order": 17}
    assert attributes["specversion"] == "1.0"
    assert attributes["id"] == "msg_7"
    assert attributes["source"] == "/topics/b%C3%BCcher%2F1"
    assert attributes["type"] == "tickwheel.message"
    assert attributes["time"] == datetime.fromtimestamp(DUE_MS / 1_000, UTC)
    assert attributes["subject"] == "order 17 \u20ac"
    assert attributes["datacontenttype"] == "application/json"


@pytest.mark.parametrize("binary", [True, False])
def test_a_message_may_say_itself_what_it_is(binary: bool) -> None:
    headers = {"ce-type": "org.example.due", "ce-source": "/shop", "ce-subject": "17", "ce-id": "a.b"}
    made = of(but(headers=headers), Style("binary" if binary else "structured"))
    attributes, _ = read(made, binary=binary)
    assert (attributes["type"], attributes["source"]) == ("org.example.due", "/shop")
    assert (attributes["subject"], attributes["id"]) == ("17", "a.b")
    assert dict(made.headers)["webhook-id"] == "msg_7"


@pytest.mark.parametrize(
    ("body", "content_type", "data"),
    [
        (b"\xff\x00", None, b"\xff\x00"),
        (b"tea is ready", "text/plain", "tea is ready"),
        (b"\xff", "text/plain", b"\xff"),
        (b"[1, 2]", "application/problem+json; charset=utf-8", [1, 2]),
        (b"{broken", "application/json", b"{broken"),
        (b"", "application/json", None),
    ],
)
def test_structured_data(body: bytes, content_type: str | None, data: Any) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    made = of(but(body=body, headers=headers), Style("structured"))
    assert dict(made.headers)["content-type"] == "application/cloudevents+json"
    _, found = read(made, binary=False)
    assert found == data


@given(st.text(max_size=30), st.binary(max_size=50), st.sampled_from(["binary", "structured"]))
def test_any_key_and_body_make_an_event(key: str, body: bytes, style: Any) -> None:
    key = "".join(char for char in key if not 0xD800 <= ord(char) < 0xE000)
    made = of(but(key=key or None, body=body, headers={}), Style(style))
    assert all(value.isascii() and value.isprintable() for _, value in made.headers)
    attributes, _ = read(made, binary=style == "binary")
    assert attributes.get("subject") == (None if key.startswith("~") else key or None)


def test_a_key_that_is_no_text_is_shown_as_far_as_it_is() -> None:
    for style in (Style("structured"), Style("binary")):
        attributes, _ = read(of(but(key="a\udcff"), style), binary=style.format == "binary")
        assert attributes["subject"] == "a?"


def test_plain_is_the_body_alone() -> None:
    made = of(style=Style("plain"))
    assert made.body == DUE.body
    assert not [name for name, _ in made.headers if name.startswith("ce-")]
    assert dict(made.headers)["content-type"] == "application/json"


# Headers -----------------------------------------------------------------------------------------


def test_what_we_say_of_a_message() -> None:
    headers = dict(
        of(but(headers={"traceparent": "00-aa-bb-01", "tracestate": "x=1", "secret": "s"})).headers
    )
    assert headers["host"] == "hooks.example.com"
    assert headers["content-length"] == str(len(DUE.body))
    assert headers["content-type"] == "application/octet-stream"
    assert headers["tickwheel-due"] == "2023-11-14T22:13:20.123Z"
    assert headers["tickwheel-scheduled"] == "2023-11-14T22:12:20.123Z"
    assert (headers["traceparent"], headers["tracestate"]) == ("00-aa-bb-01", "x=1")
    assert "secret" not in headers
    assert "tickwheel-receipt" not in headers


def test_a_receipt_is_one_of_the_http_api() -> None:
    told = dict(of(style=Style(tells_receipt=True)).headers)["tickwheel-receipt"]
    assert decode_receipt(DUE.topic, "push.shop", told) == (4, 7, 3)


def test_headers_of_the_endpoint_do_not_displace_ours() -> None:
    style = Style(headers={"Authorization": "Bearer x", "Content-Type": "text/csv", "X-A": "1"})
    headers = dict(of(but(headers={}), style).headers)
    assert (headers["authorization"], headers["x-a"], headers["content-type"]) == (
        "Bearer x",
        "1",
        "text/csv",
    )
    assert dict(of(style=style).headers)["content-type"] == "application/json"
    forged = Style(headers={"Webhook-Id": "msg_8", "Tickwheel-Attempt": "9"})
    assert dict(of(style=forged).headers)["webhook-id"] == "msg_7"


@pytest.mark.parametrize("headers", [{"x": "a\r\nhost: b"}, {"x y": "1"}, {"x": "\u20ac"}, {"": "1"}])
def test_headers_that_are_none_make_no_request(headers: dict[str, str]) -> None:
    with pytest.raises(RequestRefused, match="not one of HTTP"):
        of(style=Style(headers=headers))


def test_strange_headers_of_a_message_are_left_out() -> None:
    made = of(but(headers={"content-type": "a\r\nb", "traceparent": 7, "ce-type": b"x"}))
    headers = dict(made.headers)
    assert headers["content-type"] == "application/octet-stream"
    assert "traceparent" not in headers
    assert headers["ce-type"] == "tickwheel.message"


@table("headers", readable())
@table("format", ["binary", "structured", "plain"])
def test_headers_that_others_wrote(headers: dict[str, Any], format: Any) -> None:
    assert of(but(headers=headers), Style(format=format)).method == "POST"
    with pytest.raises(RequestRefused):
        task(headers, ["https://*"])


# Tasks -------------------------------------------------------------------------------------------


def task(headers: dict[str, Any], allow: list[str], **changes: Any) -> Request:
    return task_of(but(headers=headers, **changes), Style(), Allowed(), allow, time.time())


def test_a_task_names_its_request() -> None:
    headers = {
        "tickwheel-url": "https://api.example.com/hooks/7?a=b",
        "tickwheel-method": "PUT",
        "tickwheel-header-x-kind": "late",
        "tickwheel-header-content-type": "text/csv",
    }
    made = task(headers, ["https://api.example.com/hooks/*"])
    assert (made.method, made.location.host, made.location.target) == (
        "PUT",
        "api.example.com",
        "/hooks/7?a=b",
    )
    assert dict(made.headers)["x-kind"] == "late"
    assert dict(made.headers)["content-type"] == "text/csv"


def test_a_get_without_body_has_no_length() -> None:
    headers = {"tickwheel-url": "https://api.example.com/", "tickwheel-method": "GET"}
    made = dict(task(headers, ["https://api.example.com/*"], body=b"").headers)
    assert "content-length" not in made
    assert "content-type" not in made


@table(
    "headers",
    [
        {},
        {"tickwheel-url": 7},
        {"tickwheel-url": "http://api.example.com/"},
        {"tickwheel-url": "https://other.example.com/"},
        {"tickwheel-url": "https://api.example.com/../x"},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-method": "CONNECT"},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-method": 1},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-header-Host": "inside"},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-header-webhook-id": "1"},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-header-transfer-encoding": "chunked"},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-header-x": 1},
        {"tickwheel-url": "https://api.example.com/", "tickwheel-header-x": "a\nb"},
    ],
)
def test_a_task_that_can_never_go(headers: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused):
        task(headers, ["https://api.example.com/*"])


def test_the_examples() -> None:
    assert doctest.testmod(cloud_event).failed == 0
    assert json.loads(of(style=Style("structured")).body)["data"] == {"order": 17}
