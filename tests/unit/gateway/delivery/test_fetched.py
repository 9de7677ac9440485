"""Messages that were fetched, as they are shown."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from tests.support.clients.strange import readable
from tests.support.rocketmq.gateway_consumer import bodies, consuming
from tests.support.run.cases import table
from tickwheel.client import client as client_module
from tickwheel_gateway.delivery.fetched import properties_of, shown
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.messages import Given, Held, client_of, dead_headers

GIVEN = Given(schema.Message().topic, "h:1", "tw1.1.1.1.0.1")


def held(headers: dict[str, Any], order_key: str | None = None) -> Held:
    return Held(
        id=7, key=None, body=b"x", headers=headers, deliver_at_ms=0, created_ms=0, order_key=order_key
    )


def test_what_an_expression_may_name() -> None:
    own = {"id": "01AB", "tag": "a", "keys": ["k1", "k2"]}
    message = shown(held({"colour": "red", "rocketmq": own}, "group"), GIVEN)
    assert properties_of(message) == {
        "colour": "red",
        "TAGS": "a",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "01AB",
        "__SHARDINGKEY": "group",
    }
    assert properties_of(shown(held({}), GIVEN)) == {"UNIQ_KEY": f"00{7:032x}"}


@pytest.mark.parametrize(
    "headers",
    [
        {"rocketmq": {"id": "x", "keys": 5}},
        {"rocketmq": {"id": "x", "shadowed": ["a"]}},
        {"rocketmq": {"id": "x", "dead": {"topic": "t"}}},
        {"rocketmq": {"id": "x", "priority": 2**40}},
        {"rocketmq": {"id": "x", "born_ms": "now"}},
        {"rocketmq": {"id": "x", "dead": 7}},
    ],
)
def test_what_cannot_be_said_is_left_out(headers: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        message = shown(held(headers), GIVEN)
    assert (message.body, dict(message.user_properties)) == (b"x", {})
    assert message.system_properties.receipt_handle == GIVEN.receipt_handle
    assert "message 7 is delivered without its headers" in caplog.text


@table("headers", readable())
def test_headers_that_others_wrote(headers: dict[str, Any]) -> None:
    for own in ({}, {"rocketmq": headers}, {"rocketmq": {**headers, "id": "x"}}):
        one = held({**headers, **own})
        assert shown(one, GIVEN).body == b"x"
        dead_headers(one, "t")
        client_of(one.headers)


def test_an_ordering_key_that_is_no_text() -> None:
    message = shown(held({}, b"\xff".decode(errors="surrogateescape")), GIVEN)
    assert not message.system_properties.HasField("message_group")


async def test_headers_that_another_program_wrote_wrongly(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consuming(tmp_path) as consumer:
        monkeypatch.setattr(client_module, "encode_one_headers", lambda *_: b"\xc1")
        await consumer.client.send("t", b"x", headers={"a": 1})
        (message,) = await consumer.receive()
        assert (bodies([message]), dict(message.user_properties)) == ([b"x"], {})
