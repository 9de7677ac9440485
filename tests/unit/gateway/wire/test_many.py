"""What the C code reads and writes means what the Python code says of it, message by message; or it is left to that."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given as with_any
from hypothesis import strategies as st

from tests.support.rocketmq.gateway_sending import message, transaction
from tests.unit.tickwheel.server_frames import DeliverItem, encode_deliver
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Refused
from tickwheel_gateway.wire.handles import Receipt, decode_recall, decode_receipt, encode_receipt
from tickwheel_gateway.wire.many import Acks, Receiver, Sends, given
from tickwheel_gateway.wire.messages import Given, Held, Limits, Sender, Sent, received, sent

NOW_MS = 1_900_000_000_000
DAY_MS = 86_400_000
SENDER = Sender("host@7@0", "192.0.2.7")
LIMITS = Limits(max_body_bytes=2_000, max_delay_ms=DAY_MS)
TEXT = st.text(max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "a",
        "a|b",
        "\x7f",
        "grün",
        "\u3000",
        "\u2003",
        "世界",
        "KEYS",
        "rocketmq",
        "tickwheel-x",
        "k" * 70,
    ]
)
NUMBER = st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([0, 1, 2, 4, 5, 50, 51, 127, 128])
TIME = st.integers(-1, MAX_TIME_MS + DAY_MS) | st.sampled_from(
    [0, NOW_MS, NOW_MS + DAY_MS, NOW_MS + DAY_MS + 1]
)
SYSTEM = st.fixed_dictionaries(
    {},
    optional={
        "tag": TEXT,
        "keys": st.lists(TEXT, max_size=18),
        "message_type": NUMBER,
        "message_group": TEXT,
        "body_encoding": NUMBER,
        "born_host": TEXT,
        "born_timestamp": TIME,
        "delivery_timestamp": TIME,
        "trace_context": TEXT,
        "priority": NUMBER,
        "queue_id": NUMBER,
        "queue_offset": NUMBER,
    },
)
MESSAGES = st.builds(
    lambda message_id, body, properties, system: message(message_id, body, properties=properties, **system),
    TEXT | st.just("01AB"),
    st.binary(max_size=80) | st.just(bytes(2_001)),
    st.dictionaries(TEXT, TEXT, max_size=18),
    SYSTEM,
)


def request(*messages: Any) -> bytes:
    return bytes(schema.SendMessageRequest(messages=messages).SerializeToString())


def judged(data: bytes) -> Sent | None:
    """By the Python code; None: it is refused, or not one message."""
    try:
        asked = schema.SendMessageRequest.FromString(data)
        return sent(asked.messages[0], SENDER, LIMITS, NOW_MS) if len(asked.messages) == 1 else None
    except (DecodeError, Refused):
        return None


def check_sends(requests: list[bytes]) -> list[int]:
    """Which are usual."""
    sends = Sends(requests, SENDER, LIMITS, NOW_MS)
    for place, is_usual in enumerate(sends.are_usual):
        if not is_usual:
            continue
        found = judged(requests[place])
        assert found is not None
        of = place, place + 1
        assert not found.is_transaction
        topic = schema.SendMessageRequest.FromString(requests[place]).messages[0].topic.name
        assert sends.topics(*of) == [topic.encode()]
        assert sends.bodies(*of) == [found.body]
        assert sends.keys(*of) == [found.key.encode()]
        assert sends.order_keys(*of) == [(found.order_key or "").encode()]
        assert sends.deliver_at_ms(*of) == [found.deliver_at_ms or 0]
        assert sends.priorities(*of) == [-1 if found.priority is None else found.priority]
        (headers,) = sends.headers(*of)
        assert msgspec.msgpack.decode(headers) == found.headers
        (reply,) = sends.answers([place], [7 + place], NOW_MS)
        response = schema.SendMessageResponse.FromString(reply)
        (entry,) = response.entries
        for status in (response.status, entry.status):
            assert (status.code, status.message) == (20_000, "OK")
        assert (entry.message_id, entry.transaction_id, entry.offset) == (
            found.message_id,
            found.message_id,
            7 + place,
        )
        assert bool(entry.recall_handle) == ((found.deliver_at_ms or 0) > NOW_MS)
        if entry.recall_handle and topic:
            recall = decode_recall(entry.recall_handle)
            assert recall == (topic, found.deliver_at_ms, 7 + place, found.message_id)
    return sends.are_usual


@with_any(st.lists(MESSAGES, max_size=4))
def test_any_messages(messages: list[Any]) -> None:
    check_sends([request(one) for one in messages])


@pytest.mark.parametrize(("nanos", "more_ms"), [(0, 0), (1, 1), (999_999_999, 1_000)])
def test_a_delivery_time_is_rounded_up(nanos: int, more_ms: int) -> None:
    one = message("0D", delivery_timestamp=NOW_MS, message_type=schema.DELAY)
    due = one.system_properties.delivery_timestamp
    due.seconds, due.nanos = NOW_MS // 1_000 + 1, nanos
    assert check_sends([request(one)]) == [1]
    found = judged(request(one))
    assert found is not None
    assert found.deliver_at_ms == due.seconds * 1_000 + more_ms


@with_any(MESSAGES, st.data())
def test_requests_with_an_error(one: Any, data: st.DataObject) -> None:
    whole = bytearray(request(one))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    check_sends([request(message()), bytes(whole), bytes(whole[:cut]), request(message())])


USUAL = [
    message(),
    message("0B", properties={"a": "b", "": "", "grün": "世界"}, tag="t", keys=["k1", "k 2"]),
    message("0C", message_group="g", born_timestamp=NOW_MS, born_host="h", body_encoding=schema.GZIP),
    message("0D", delivery_timestamp=NOW_MS + 1, message_type=schema.DELAY, trace_context="00-ab"),
    message("0E", delivery_timestamp=NOW_MS + 2, priority=3, queue_id=1),
    message("i" * 246, bytes(2_000), topic="t" * 114, delivery_timestamp=NOW_MS + DAY_MS, priority=1 << 30),
]
UNUSUAL = [
    request(),
    request(message(), message()),
    request(transaction()),
    request(message(message_type=schema.LITE)),
    request(message(lite_topic="")),
    request(message(body=b"")),
    request(message(body=bytes(2_001))),
    request(message(properties={"KEYS": ""})),
    request(message(properties={"rocketmq": ""})),
    request(message(properties={"a": "b" * 16_384})),
    request(message(properties={str(number): "" for number in range(129)})),
    request(message("i" * 247)),
    request(message(message_group="g" * 64)),
    request(message(delivery_timestamp=NOW_MS + DAY_MS + 1)),
    *(request(message(delivery_timestamp=time_ms)) for time_ms in (0, NOW_MS - 1, NOW_MS)),
    request(message(priority=-1)),
    request(message()) + b"\x10\x00",
    request(message())[:-1],
]


def test_what_is_usual() -> None:
    requests = [request(one) for one in USUAL]
    assert check_sends(requests) == [1] * len(requests)
    both = [*requests, *UNUSUAL, *requests]
    assert check_sends(both) == [1] * len(requests) + [0] * len(UNUSUAL) + [1] * len(requests)
    assert check_sends([]) == []


# -- acks ----------------------------------------------------------------------------------------------------------


def ack(
    handle: str = "", message_id: str = "01AB", topic: str = "t", group: str = "g", entries: int = 1
) -> bytes:
    made = schema.AckMessageRequest()
    made.topic.name, made.group.name = topic, group
    for _ in range(entries):
        made.entries.add(message_id=message_id, receipt_handle=handle)
    return bytes(made.SerializeToString())


def check_acks(requests: list[bytes]) -> list[int]:
    """Which are usual."""
    acks = Acks(requests, NOW_MS)
    usual = [place for place, is_usual in enumerate(acks.are_usual) if is_usual]
    for place in usual:
        asked = schema.AckMessageRequest.FromString(requests[place])
        (entry,) = asked.entries
        receipt = decode_receipt(entry.receipt_handle)
        assert not receipt.has_expired(NOW_MS)
        assert (acks.groups[place], acks.receipts[place]) == (receipt.group_id, (receipt.id, receipt.epoch))
    for place, reply in zip(usual, acks.answers(usual) if usual else [], strict=True):
        response = schema.AckMessageResponse.FromString(reply)
        expected = schema.AckMessageResponse()
        expected.status.code, expected.status.message = 20_000, "OK"
        (entry,) = schema.AckMessageRequest.FromString(requests[place]).entries
        told = expected.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
        told.status.CopyFrom(expected.status)
        assert response == expected
    return acks.are_usual


HANDLE = encode_receipt(Receipt(7, 1_042, 1, 0))


def test_acks() -> None:
    usual = [
        ack(HANDLE),
        ack(HANDLE, ""),
        ack("tw1.4294967295.1.4294967295.1900000000001.18446744073709551615", "ü", "a%b", "x_-1"),
        ack("tw1.00.1.0.0.007"),
    ]
    unusual = [
        ack(HANDLE, entries=2),
        ack(HANDLE, entries=0),
        ack(HANDLE, topic=""),
        ack(HANDLE, group="a.b"),
        ack(HANDLE, topic="rmq%x"),
        ack(HANDLE, topic="t" * 128),
        *map(
            ack,
            ("", "tw1", "tw1.7.1.1.0", "tw2.7.1.1.0.1", "tw1.7..1.0.1", "tw1.7.1.1.0.1.", "tw1.7.1.1.0.1 "),
        ),
        *map(ack, ("tw1.4294967296.1.1.0.1", "tw1.1.1.4294967296.0.1", "tw1.1.18446744073709551615.1.0.1")),
        *map(ack, ("tw1.1.1.1.1900000000000.1", "tw1.1.1.1.1.1", "tw1.1.1.1.0.18446744073709551616")),
        ack(HANDLE) + b"\x20\x00",
        ack(HANDLE)[:-1],
    ]
    assert check_acks([*usual, *unusual, *usual]) == [1] * len(usual) + [0] * len(unusual) + [1] * len(usual)
    assert check_acks([]) == []


@with_any(st.data())
def test_acks_with_an_error(data: st.DataObject) -> None:
    whole = bytearray(ack(HANDLE))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from(b".0 %")
        )
    check_acks([ack(HANDLE), bytes(whole), bytes(whole[: data.draw(st.integers(0, len(whole)))])])


# -- what is delivered ---------------------------------------------------------------------------------------------


def check_given(items: list[DeliverItem], attempts: list[int], until_ms: int = 0) -> list[bool]:
    """Which are usual."""
    topic = schema.Message(topic={"name": "orders", "resource_namespace": "ns"}).topic
    receiver = Receiver(topic.SerializeToString(), "198.51.100.1:8081", 60_000, until_ms)
    found = given(encode_deliver(9, items), attempts, receiver)
    handles = set()
    for place, (data, item, attempt) in enumerate(zip(found.answers, items, attempts, strict=True)):
        if not data:
            continue
        answer = schema.ReceiveMessageResponse.FromString(data)
        system = answer.message.system_properties
        handles.add(system.receipt_handle)
        assert decode_receipt(system.receipt_handle) == (9, item.id, item.epoch, until_ms)
        held = Held(
            id=item.id,
            key=item.key.decode() or None,
            body=item.body,
            headers=msgspec.msgpack.decode(item.headers),
            deliver_at_ms=item.deliver_at_ms,
            created_ms=item.created_ms,
            order_key=item.order_key.decode() or None,
        )
        as_given = Given(topic, "198.51.100.1:8081", system.receipt_handle, attempt, 60_000)
        assert answer.message == received(held, as_given)
        assert found.tag(place) == (system.tag if system.HasField("tag") else None)
    assert len(handles) == sum(map(bool, found.answers))
    return list(map(bool, found.answers))


def item(headers: Any, body: bytes = b"x", **fields: Any) -> DeliverItem:
    data = headers if isinstance(headers, bytes) else msgspec.msgpack.encode(headers)
    usual = {"id": 7, "deliver_at_ms": NOW_MS, "created_ms": NOW_MS, "epoch": 1, "priority": 50, "key": b"k"}
    return DeliverItem(**{**usual, **fields}, headers=data, body=body)


def test_a_body_of_any_length_has_its_digest() -> None:
    items = [item({"rocketmq": {"id": "01"}}, bytes(range(256))[:size] * 2) for size in range(140)]
    for one, each in zip(
        given(encode_deliver(9, items), [1] * 140, Receiver(b"", "h:1", 1, 0)).answers, items, strict=True
    ):
        digest = schema.ReceiveMessageResponse.FromString(one).message.system_properties.body_digest
        assert digest.checksum == hashlib.md5(each.body, usedforsecurity=False).hexdigest().upper()


def test_what_is_delivered() -> None:
    stored = [judged(request(one)) for one in USUAL]
    usual = [
        item(
            one.headers, one.body, order_key=(one.order_key or "").encode(), deliver_at_ms=NOW_MS + 5 * place
        )
        for place, one in enumerate(stored)
        if one is not None
    ]
    own = {"id": "01AB"}
    unusual = [
        item(b""),
        item(b"\xc1"),
        item({"a": "b"}),
        item({"rocketmq": "x"}),
        item({"rocketmq": {"id": ""}}),
        item({"rocketmq": {"id": 7}}),
        item({"a": 5, "rocketmq": own}),
        item({"rocketmq": {**own, "type": schema.TRANSACTION}}),
        item({"rocketmq": {**own, "shadowed": {"rocketmq": "x"}}}),
        item({"rocketmq": {**own, "dead": {"topic": "t", "message_id": "x"}}}),
        item(msgspec.msgpack.encode({"rocketmq": own}) + b"\0"),
        item(b"\x81\xa8rocketmq\x81\xa2id\xa2\xff\xff"),
        item({"rocketmq": own}, order_key=b"\xff"),
    ]
    assert len(usual) == len(USUAL)
    assert check_given([*usual, *unusual, *usual], [1] * (2 * len(usual) + len(unusual)), NOW_MS) == [
        *[True] * len(usual),
        *[False] * len(unusual),
        *[True] * len(usual),
    ]


VALUE = TEXT | st.integers(-1, (1 << 64) - 1) | st.none() | st.lists(TEXT, max_size=3)


@with_any(
    st.lists(
        st.tuples(
            st.dictionaries(TEXT, VALUE, max_size=4),
            st.fixed_dictionaries(
                {"id": TEXT},
                optional={
                    "client": TEXT,
                    "born_host": TEXT,
                    "tag": TEXT,
                    "keys": st.lists(TEXT, max_size=4),
                    "type": st.integers(0, 6),
                    "born_ms": st.integers(0, MAX_TIME_MS),
                    "encoding": st.integers(0, 200),
                    "trace": TEXT,
                    "priority": st.integers(0, 200),
                },
            ),
            st.binary(max_size=200),
            TEXT,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 70_000),
)
def test_any_headers(parts: list[Any], due_ms: int) -> None:
    items = [
        item(
            {**properties, "rocketmq": own},
            body,
            id=place + 1,
            order_key=order_key.encode(),
            deliver_at_ms=NOW_MS + due_ms - 35_000,
        )
        for place, (properties, own, body, order_key) in enumerate(parts)
    ]
    check_given(items, [min(due_ms, 65_535)] * len(items))


@pytest.mark.parametrize("cut", [0, 7, 8, 46, -1])
def test_a_payload_that_is_none(cut: int) -> None:
    payload = encode_deliver(9, [item({"rocketmq": {"id": "01"}})])
    assert given(payload[:cut], [1], Receiver(b"", "h:1", 1, 0)).answers == [b""]
    assert given(payload, [1, 1], Receiver(b"", "h:1", 1, 0)).answers == [b"", b""]
    assert given(payload[:8], [], Receiver(b"", "h:1", 1, 0)).answers == []
