"""A message of a client, as the broker keeps it, and back."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.protocol.limits import LEAST_NUMBER_MS
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.messages import (
    Given,
    Held,
    Limits,
    Sender,
    dead_headers,
    message_id,
    received,
    sent,
)
from tickwheel_gateway.wire.properties import RESERVED

NOW_MS = 1_900_000_000_000
DAY_MS = 86_400_000
SENDER = Sender("host@7@0", "192.0.2.7")
PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20).filter(
    str.strip
)
TAG = PLAIN.filter(lambda text: "|" not in text)
GROUP = PLAIN.filter(lambda text: len(text.encode()) < 64)
PROPERTIES = st.dictionaries(
    PLAIN.filter(lambda name: name not in RESERVED), PLAIN | st.just(""), max_size=10
)


def message(**system: Any) -> Any:
    """One that can be sent."""
    made = schema.Message(body=b"{}")
    made.topic.name = "orders"
    made.system_properties.message_id = system.pop("message_id", "01AB")
    for name, value in system.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name == "delivery_timestamp":
            schema.set_milliseconds(made.system_properties.delivery_timestamp, value)
        elif name == "recovery_ms":
            schema.set_milliseconds(made.system_properties.orphaned_transaction_recovery_duration, value)
        else:
            setattr(made.system_properties, name, value)
    return made


def stored(found: Any) -> dict[str, Any]:
    """Its headers, as they come back from the broker."""
    made: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(found.headers))
    return made


def back(one: Any, now_ms: int = NOW_MS, **how: Any) -> Any:
    """What a consumer gets of what a producer has sent."""
    found = sent(one, SENDER, Limits(), now_ms)
    at_ms = now_ms if found.deliver_at_ms is None else found.deliver_at_ms
    held = Held(
        id=17,
        key=found.key,
        body=found.body,
        headers=stored(found),
        deliver_at_ms=at_ms,
        created_ms=now_ms,
        order_key=found.order_key,
    )
    return received(held, Given(one.topic, "198.51.100.1:8081", **how))


@settings(deadline=None)
@given(
    PROPERTIES,
    st.none() | TAG,
    st.lists(PLAIN, max_size=4),
    st.none() | GROUP,
    st.none() | st.just(0) | st.integers(LEAST_NUMBER_MS, NOW_MS + 900 * DAY_MS),
    st.none() | st.integers(0, 2**31 - 1),
    st.binary(min_size=1, max_size=200),
    st.sampled_from([schema.IDENTITY, schema.GZIP]),
)
def test_there_and_back(
    properties: dict[str, str],
    tag: str | None,
    keys: list[str],
    group: str | None,
    due_ms: int | None,
    priority: int | None,
    body: bytes,
    encoding: int,
) -> None:
    one = message(keys=keys, body_encoding=encoding, trace_context="t", born_host="b")
    schema.set_milliseconds(one.system_properties.born_timestamp, NOW_MS - 5)
    one.body = body
    for name, value in {**properties, "rocketmq": "mine", "tickwheel-url": "mine"}.items():
        one.user_properties[name] = value
    given = {"tag": tag, "message_group": group, "priority": priority}
    for name, given_value in given.items():
        if given_value is not None:
            setattr(one.system_properties, name, given_value)
    if due_ms is not None:
        schema.set_milliseconds(one.system_properties.delivery_timestamp, due_ms)
    found = back(one, receipt_handle="tw1.1.2.3.4.5", attempt=3, invisible_ms=60_000)
    more = {} if group is None else {"__SHARDINGKEY": group}
    assert dict(found.user_properties) == {**properties, "rocketmq": "mine", "tickwheel-url": "mine", **more}
    assert (found.body, found.topic.name) == (body, "orders")
    system = found.system_properties
    for name in ("tag", "message_group", "priority", "delivery_timestamp"):
        assert system.HasField(name) == one.system_properties.HasField(name)
        assert getattr(system, name) == getattr(one.system_properties, name)
    for name in ("message_id", "keys", "body_encoding", "trace_context", "born_host", "born_timestamp"):
        assert getattr(system, name) == getattr(one.system_properties, name)
    kinds = [(due_ms, schema.DELAY), (group, schema.FIFO), (priority, schema.PRIORITY), (1, schema.NORMAL)]
    assert system.message_type == next(kind for value, kind in kinds if value is not None)
    assert system.body_digest.checksum == hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    assert (system.receipt_handle, system.delivery_attempt, system.invisible_duration.seconds) == (
        "tw1.1.2.3.4.5",
        3,
        60,
    )
    assert (system.queue_id, system.queue_offset, system.store_host) == (0, 17, "198.51.100.1:8081")


def test_what_is_empty_is_not_there() -> None:
    empty = message(tag="", keys=["", "a", ""], message_group="")
    found = back(empty).system_properties
    assert not found.HasField("tag")
    assert not found.HasField("message_group")
    assert list(found.keys) == ["a"]
    assert sent(empty, SENDER, Limits(), NOW_MS).order_key is None


def test_a_time_that_is_over_is_kept() -> None:
    for due_ms in (LEAST_NUMBER_MS, NOW_MS):
        found = back(message(delivery_timestamp=due_ms)).system_properties
        assert schema.milliseconds(found.delivery_timestamp) == due_ms
        assert found.message_type == schema.DELAY


def test_what_the_broker_is_given() -> None:
    found = sent(
        message(priority=20, message_group="g", delivery_timestamp=NOW_MS + 5), SENDER, Limits(), NOW_MS
    )
    assert found.key.startswith("01AB.")
    assert found.key == sent(message(), SENDER, Limits(), 0).key
    assert found.key != sent(message(), Sender("another", ""), Limits(), 0).key
    assert (found.priority, found.order_key, found.deliver_at_ms, found.is_transaction) == (
        30,
        "g",
        NOW_MS + 5,
        False,
    )
    assert sent(message(priority=99), SENDER, Limits(), NOW_MS).priority == 0
    plain = sent(message(), SENDER, Limits(), NOW_MS)
    assert (plain.priority, plain.order_key, plain.deliver_at_ms, plain.check_after_ms) == (
        None,
        None,
        None,
        None,
    )
    assert plain.headers == {"rocketmq": {"id": "01AB", "born_host": "192.0.2.7", "client": "host@7@0"}}
    over = message(delivery_timestamp=NOW_MS - 5)
    assert sent(over, SENDER, Limits(max_delay_ms=1), NOW_MS).deliver_at_ms == NOW_MS - 5


def test_a_transaction_is_known_by_its_key() -> None:
    one = message(message_type=schema.TRANSACTION, recovery_ms=90_000)
    found = sent(one, SENDER, Limits(), NOW_MS)
    assert (found.is_transaction, found.check_after_ms) == (True, 90_000)
    asked = back(one, is_check=True, attempt=2)
    assert asked.system_properties.message_type == schema.TRANSACTION
    assert dict(asked.user_properties) == {"__transactionId__": found.key, "TRANSACTION_CHECK_TIMES": "2"}
    assert sent(message(recovery_ms=90_000), SENDER, Limits(), NOW_MS).check_after_ms is None


def test_messages_of_other_programs() -> None:
    headers = {"n": 7, "text": "t", "raw": b"\xff", "rocketmq": "theirs", "list": [1, None]}
    held = Held(
        id=300,
        key=None,
        body=b"x",
        headers=headers,
        deliver_at_ms=NOW_MS + 5,
        created_ms=NOW_MS,
        order_key=None,
    )
    found = received(held, Given(schema.Message().topic, "h:1"))
    assert message_id(held) == found.system_properties.message_id == "00" + f"{300:032x}"
    assert dict(found.user_properties) == {
        "n": "7",
        "text": "t",
        "raw": "\ufffd",
        "rocketmq": "theirs",
        "list": "[1, None]",
    }
    assert found.system_properties.message_type == schema.DELAY
    assert found.system_properties.body_encoding == schema.IDENTITY
    assert found.system_properties.born_timestamp.seconds == NOW_MS // 1_000
    assert not found.system_properties.HasField("priority")


def test_a_dead_letter_says_where_it_comes_from() -> None:
    own = {"id": "01AB", "dead": {"topic": "orders", "message_id": "01AA"}}
    found = received(
        Held(
            id=1, key="k", body=b"x", headers={"rocketmq": own}, deliver_at_ms=0, created_ms=0, order_key=None
        ),
        Given(schema.Message().topic, "h:1"),
    )
    dead = found.system_properties.dead_letter_queue
    assert (dead.topic, dead.message_id) == ("orders", "01AA")


LONG = "x" * 8_192
REFUSED = [
    (message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
    (message(message_id="x" * 247), Code.ILLEGAL_MESSAGE_ID),
    (message(message_type=schema.LITE), Code.NOT_IMPLEMENTED),
    (message(lite_topic=""), Code.NOT_IMPLEMENTED),
    (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    (message(tag="a\x7f"), Code.ILLEGAL_MESSAGE_TAG),
    (message(keys=["a", "  "]), Code.ILLEGAL_MESSAGE_KEY),
    (message(keys=["a\n"]), Code.ILLEGAL_MESSAGE_KEY),
    (message(keys=[LONG, LONG]), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (message(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
    (message(message_group="x" * 64), Code.ILLEGAL_MESSAGE_GROUP),
    (message(message_group="a\x9f"), Code.ILLEGAL_MESSAGE_GROUP),
    (message(delivery_timestamp=NOW_MS + DAY_MS + 1), Code.ILLEGAL_DELIVERY_TIME),
    (message(delivery_timestamp=NOW_MS // 1_000), Code.ILLEGAL_DELIVERY_TIME),
    (message(delivery_timestamp=LEAST_NUMBER_MS - 1), Code.ILLEGAL_DELIVERY_TIME),
    (message(priority=-1), Code.BAD_REQUEST),
    (message(message_type=schema.TRANSACTION, recovery_ms=3_600_001), Code.BAD_REQUEST),
]


@table(("one", "code"), REFUSED)
def test_what_is_refused(one: Any, code: Code) -> None:
    with pytest.raises(Refused) as refused:
        sent(one, SENDER, Limits(max_delay_ms=DAY_MS), NOW_MS)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("TAGS", "x", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("__CRC32#", "x", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("a\t", "x", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("a", "x\x00", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("a", LONG + LONG, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ("a", "ä" * 8_192, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_properties_that_are_refused(name: str, value: str, code: Code) -> None:
    one = message()
    one.user_properties[name] = value
    with pytest.raises(Refused) as refused:
        sent(one, SENDER, Limits(), NOW_MS)
    assert refused.value.code == code


def test_how_many_and_how_large() -> None:
    one = message()
    for number in range(128):
        one.user_properties[str(number)] = ""
    assert sent(one, SENDER, Limits(), NOW_MS)
    one.user_properties["128"] = ""
    with pytest.raises(Refused) as refused:
        sent(one, SENDER, Limits(), NOW_MS)
    assert refused.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
    whole = message(tag="t", keys=["k"])
    whole.user_properties["p"] = "x" * (16 * 1_024 - 3)
    assert sent(whole, SENDER, Limits(), NOW_MS)
    for body, code in ((b"", Code.MESSAGE_BODY_EMPTY), (b"123456", Code.MESSAGE_BODY_TOO_LARGE)):
        whole.body = body
        with pytest.raises(Refused) as refused:
            sent(whole, SENDER, Limits(max_body_bytes=5), NOW_MS)
        assert refused.value.code == code


def test_the_headers_of_a_dead_letter() -> None:
    own = {"id": "01AB", "tag": "a"}
    known = Held(
        id=7,
        key="k",
        body=b"x",
        headers={"p": "v", "rocketmq": own},
        deliver_at_ms=0,
        created_ms=5,
        order_key=None,
    )
    assert dead_headers(known, "t") == {
        "p": "v",
        "rocketmq": {**own, "dead": {"topic": "t", "message_id": "01AB"}},
    }
    ours = f"00{7:032x}"
    other = dead_headers(known._replace(headers={"n": 1, "rocketmq": 5}), "t")
    assert other == {
        "n": 1,
        "rocketmq": {
            "id": ours,
            "born_ms": 5,
            "shadowed": {"rocketmq": "5"},
            "dead": {"topic": "t", "message_id": ours},
        },
    }
    shown = received(known._replace(id=8, headers=other), Given(schema.Message().topic, "h:1"))
    assert dict(shown.user_properties) == {"n": "1", "rocketmq": "5"}
    assert shown.system_properties.message_id == ours
    assert shown.system_properties.dead_letter_queue.message_id == ours


@pytest.mark.parametrize(("seconds", "kept"), [(2**63 - 1, 253_402_300_799_999), (-(2**63), None)])
def test_a_birth_that_no_calendar_has_is_no_reason_to_refuse(seconds: int, kept: int | None) -> None:
    one = message()
    one.system_properties.born_timestamp.seconds = seconds
    assert stored(sent(one, SENDER, Limits(), NOW_MS))["rocketmq"].get("born_ms") == kept


@pytest.mark.parametrize(
    "system",
    [{"tag": "a|" * 200_000}, {"keys": [" "] * 20_000}, {"keys": ["\0" * 300_000]}],
    ids=["a tag", "many keys", "a key"],
)
def test_what_is_far_too_large_is_not_looked_into(system: dict[str, Any]) -> None:
    """The rules for what is in it would take as long as it is large, with nobody served meanwhile."""
    one = schema.Message(body=b"x")
    one.system_properties.message_id = "01AB"
    one.system_properties.tag = system.get("tag", "")
    one.system_properties.keys.extend(system.get("keys", ()))
    with pytest.raises(Refused) as refused:
        sent(one, Sender("c", "h"), Limits(), 0)
    assert refused.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
