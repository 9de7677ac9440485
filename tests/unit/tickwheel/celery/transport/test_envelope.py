"""Messages of Kombu as bodies at the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel.celery.transport import envelope


def message(body: Any, **properties: Any) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "report", "id": "17", "at": datetime(2031, 5, 1, tzinfo=UTC)},
        "properties": properties,
    }


@pytest.mark.parametrize("body", ["[1, 2]", b"\x80\x04\x95", b""])
def test_a_message_comes_out_as_it_went_in(body: str | bytes) -> None:
    encoded = envelope.encode(message(body, reply_to="me", priority=3), "exchange", "key")
    decoded = envelope.decode(encoded)
    assert decoded["body"] == body
    assert decoded["headers"] == message(body)["headers"]
    assert decoded["content-type"] == "application/json"
    assert decoded["properties"]["reply_to"] == "me"
    assert decoded["properties"]["delivery_info"] == {"exchange": "exchange", "routing_key": "key"}


def test_text_stays_readable() -> None:
    assert json.loads(envelope.encode(message("[1, 2]"), "", "q"))["body"] == "[1, 2]"


def test_only_properties_of_amqp_are_kept() -> None:
    """Callers pass objects of their own, too."""
    encoded = envelope.encode(message("1", correlation_id="17", signature=object()), "", "q")
    assert set(json.loads(encoded)["properties"]) == {"correlation_id", "delivery_info", "delivery_tag"}


def test_two_sends_of_the_same_are_told_apart() -> None:
    assert envelope.encode(message("1"), "", "q") != envelope.encode(message("1"), "", "q")


@table(
    "body",
    [
        *(b"", b"\xff", b"[]", b"{}", b'{"headers": {}, "properties": {}}', b"17", b"[" * 60_000),
        b'{"headers": {}, "properties": {}, "body": {"__type__": "decimal", "__value__": "abc"}}',
        b'{"headers": {}, "properties": {"body_encoding": "base64"}, "body": "%%%"}',
        b'{"headers": {"task": "t"}, "properties": {}, "body": ""}',
        b'{"headers": {"task": ["t"], "id": "i"}, "properties": {}, "body": ""}',
        b'{"headers": {}, "properties": {}, "body": "", "content-type": [1]}',
        b'{"headers": {}, "properties": {}, "body": "", "content-encoding": 5}',
    ],
)
def test_what_is_no_envelope_is_bytes(body: bytes) -> None:
    decoded = envelope.decode(body)
    assert decoded["body"] == body
    assert decoded["content-type"] == "application/data"


def test_headers_at_the_broker_are_those_of_tasks() -> None:
    assert envelope.broker_headers({"task": "report", "id": "17"}) == {
        "celery-task": "report",
        "celery-id": "17",
    }
    assert envelope.broker_headers({"method": "ping"}) is None


def test_messages_are_filled_in_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(
        at_broker: Mapping[str, Any], headers: MutableMapping[str, Any], properties: MutableMapping[str, Any]
    ) -> None:
        headers["id"] = properties["correlation_id"] = at_broker["slot"]

    monkeypatch.setattr(envelope, "ARRIVALS", [fill])
    decoded = envelope.decode(envelope.encode(message("1"), "", "q"), {"slot": "slot 9"})
    assert decoded["headers"]["id"] == decoded["properties"]["correlation_id"] == "slot 9"
