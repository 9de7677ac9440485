"""The sans-io core: cutting the stream makes no difference, and any bytes give events or RemoteProtocolError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tickwheel.server_frames import DeliverItem, encode_ack_ok, encode_deliver, encode_send_ok
from tickwheel.protocol.bodies.requests import Cancel, HelloOk, encode_body, encode_map, hello
from tickwheel.protocol.errors import BadCrc, BadHandshake, FrameTooLarge, RemoteProtocolError, to_wire
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.limits import MAX_HANDSHAKE_BYTES
from tickwheel.protocol.machine import ClientMachine, Connected, NotUnderstood, Requested, ServerMachine
from tickwheel.protocol.messages import (
    AckOk,
    ItemException,
    SendColumns,
    SendOk,
    decode_ack,
    decode_ack_ok,
    decode_deliver,
    decode_send,
    decode_send_ok,
    encode_ack,
    encode_send,
    pack_column,
    retarget_send,
)

MAX_FRAME_BYTES = 4096
HELLO_OK = HelloOk(
    protocol=1,
    server="test",
    now_ms=0,
    max_frame_bytes=MAX_FRAME_BYTES,
    max_body_bytes=1024,
    max_key_bytes=255,
    max_headers_bytes=1024,
)
REQUEST_TYPES = (FrameType.PING, FrameType.SEND, FrameType.ACK, FrameType.CANCEL, FrameType.STATS)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
blob = st.binary(max_size=40)
payloads = st.one_of(
    blob,
    st.builds(
        lambda ids: encode_ack(1, pack_column("Q", ids), pack_column("I", [1] * len(ids))), st.lists(u64)
    ),
    st.builds(lambda bodies: encode_send(1, SendColumns(bodies)), st.lists(blob, min_size=1, max_size=5)),
    st.builds(lambda first: encode_send_ok(SendOk(first, 1)), u64),
    st.builds(
        lambda b: encode_deliver(
            1,
            [
                DeliverItem(
                    id=1, deliver_at_ms=2, created_ms=3, epoch=1, priority=50, key=b"k", headers=b"", body=b
                )
            ],
        ),
        blob,
    ),
    st.builds(encode_map, st.dictionaries(st.text(max_size=8), st.integers(0, 9) | st.text(max_size=8))),
)
frames = st.builds(encode_frame, st.integers(0, 50), st.integers(0, 8), payloads)
streams = st.lists(frames | blob, max_size=8).map(b"".join)


def client() -> tuple[ClientMachine, bytes]:
    """A machine with open requests, and the bytes that end its handshake."""
    machine = ClientMachine()
    machine.hello("test")
    for frame_type in REQUEST_TYPES:
        machine.request(frame_type, b"")
    return machine, encode_frame(FrameType.HELLO_OK, 1, encode_body(HELLO_OK))


def server() -> tuple[ServerMachine, bytes]:
    return ServerMachine(MAX_FRAME_BYTES), encode_frame(FrameType.HELLO, 1, encode_body(hello("test")))


def seen(event: Any) -> object:
    """An event in a form that compares by value: exceptions compare by identity."""
    error = getattr(event, "error", None)
    return (type(event), event.correlation, to_wire(error)) if error is not None else event


def run(machine: ClientMachine | ServerMachine, chunks: Iterator[bytes]) -> list[object]:
    """What the machine makes of the chunks; the last entry says why it stopped, if it did."""
    out: list[object] = []
    try:
        for chunk in chunks:
            for event in machine.receive_data(chunk):
                out.append(seen(event))
    except RemoteProtocolError as error:
        out.append(to_wire(error))
    return out


@pytest.mark.parametrize("make", [client, server])
@given(stream=streams, greeted=st.booleans())
def test_byte_by_byte_gives_what_all_at_once_gives(
    make: Callable[[], tuple[ClientMachine | ServerMachine, bytes]], stream: bytes, greeted: bool
) -> None:
    whole, greeting = make()
    single, _ = make()
    data = (greeting if greeted else b"") + stream
    assert run(whole, iter([data])) == run(single, (data[i : i + 1] for i in range(len(data))))


@pytest.mark.parametrize("make", [client, server])
@given(data=st.binary(max_size=300), greeted=st.booleans())
def test_any_bytes_give_events_or_a_remote_protocol_error(
    make: Callable[[], tuple[ClientMachine | ServerMachine, bytes]], data: bytes, greeted: bool
) -> None:
    machine, greeting = make()
    outcome = run(machine, iter([(greeting if greeted else b"") + data]))
    assert len(outcome) >= greeted


@pytest.mark.parametrize("decode", [decode_send, decode_send_ok, decode_deliver, decode_ack, decode_ack_ok])
@given(data=st.binary(max_size=200))
def test_a_payload_is_decoded_or_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decoded = decode(data)
    except RemoteProtocolError:
        return
    assert decoded is not None


@given(data=st.data(), count=st.integers(1, 6), topic_id=u32)
def test_send_comes_out_as_it_went_in(data: st.DataObject, count: int, topic_id: int) -> None:
    def each(item: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(item, min_size=count, max_size=count)

    times = each(st.integers(-(2**63), 2**63 - 1)).map(lambda values: pack_column("q", values))
    columns = SendColumns(
        bodies=data.draw(each(blob)),
        deliver_at_ms=data.draw(st.integers(-(2**63), 2**63 - 1) | times),
        relative=data.draw(st.booleans()),
        priority=data.draw(st.integers(0, 255) | st.binary(min_size=count, max_size=count)),
        keys=data.draw(st.none() | each(blob)),
        headers=data.draw(st.none() | each(blob)),
    )
    payload = encode_send(7, columns)
    assert decode_send(payload) == (7, columns)
    assert decode_send(retarget_send(payload, topic_id)) == (topic_id, columns)
    for damaged in (payload[:-1], payload + b"x"):
        with pytest.raises(RemoteProtocolError):
            decode_send(damaged)


items = st.builds(
    DeliverItem, u64, st.integers(0, 2**40), st.integers(0, 2**40), u32, st.integers(0, 255), *[blob] * 3
)


@given(rows=st.lists(items, min_size=1, max_size=6))
def test_deliver_comes_out_as_it_went_in(rows: list[DeliverItem]) -> None:
    delivery = decode_deliver(encode_deliver(9, rows))
    assert (delivery.subscription, delivery.count) == (9, len(rows))
    assert delivery.ids == tuple(row.id for row in rows)
    assert delivery.deliver_at_ms == tuple(row.deliver_at_ms for row in rows)
    assert delivery.created_ms == tuple(row.created_ms for row in rows)
    assert delivery.epochs == tuple(row.epoch for row in rows)
    assert list(delivery.priorities) == [row.priority for row in rows]
    ends = delivery.ends()
    bodies = [delivery.payload[end - len(row.body) : end] for end, row in zip(ends, rows, strict=True)]
    assert bodies == [row.body for row in rows]
    ack = decode_ack(encode_ack(3, *delivery.ack_columns))
    assert (ack.group_id, ack.ids, ack.epochs) == (3, delivery.ids, delivery.epochs)


@given(rows=st.lists(items, min_size=1, max_size=6), data=st.data())
def test_a_delivery_may_tell_of_attempts(rows: list[DeliverItem], data: st.DataObject) -> None:
    payload = encode_deliver(9, rows)
    assert decode_deliver(payload).attempts is None
    attempts = data.draw(st.lists(st.integers(0, 0xFFFF), min_size=len(rows), max_size=len(rows)))
    delivery = decode_deliver(payload + pack_column("H", attempts))
    assert delivery.attempts == tuple(attempts)
    assert delivery.ends() == decode_deliver(payload).ends()
    with pytest.raises(RemoteProtocolError):
        decode_deliver(payload + bytes(2 * len(rows) - 1))


def test_answers_come_out_as_they_went_in_and_their_exceptions_are_in_order() -> None:
    exceptions = (ItemException(0, 1, 5), ItemException(3, 2, 0))
    assert decode_send_ok(encode_send_ok(SendOk(9, 2, exceptions))) == SendOk(9, 2, exceptions)
    assert decode_ack_ok(encode_ack_ok(AckOk(2, exceptions))) == AckOk(2, exceptions)
    with pytest.raises(RemoteProtocolError):
        decode_send_ok(encode_send_ok(SendOk(9, 2, exceptions[::-1])))


def test_a_length_before_the_handshake_cannot_make_either_end_buffer() -> None:
    huge = encode_frame(FrameType.PING, 1, bytes(MAX_HANDSHAKE_BYTES))[:16]
    for machine, error in ((ClientMachine(), BadHandshake), (ServerMachine(2**30), FrameTooLarge)):
        with pytest.raises(error):
            list(machine.receive_data(huge))


def test_after_an_error_the_machine_stays_broken() -> None:
    machine, greeting = client()
    broken = bytearray(encode_frame(FrameType.PONG, 2))
    broken[-1] ^= 1
    events = machine.receive_data(greeting + broken)
    assert isinstance(next(events), Connected)
    with pytest.raises(BadCrc):
        next(events)
    with pytest.raises(BadCrc):
        list(machine.receive_data(encode_frame(FrameType.PONG, 2)))


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(16), encode_frame(FrameType.PONG, 1)]
)
def test_what_is_no_broker_is_called_so(answer: bytes) -> None:
    machine = ClientMachine()
    machine.hello("client")
    for _ in range(2):
        with pytest.raises(BadHandshake, match="address"):
            list(machine.receive_data(answer))


def test_the_server_wants_a_hello_first() -> None:
    with pytest.raises(BadHandshake):
        list(ServerMachine(MAX_FRAME_BYTES).receive_data(encode_frame(FrameType.PING, 1)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ids": []},
        {"ids": [-1]},
        {"ids": ["1"]},
        {"ids": [1], "topic": "t", "keys": ["k"]},
        {"topic": "t"},
        {"ids": [1], "surprise": True},
    ],
)
def test_a_bad_request_is_answered_and_the_connection_kept(fields: dict[str, Any]) -> None:
    machine, greeting = server()
    data = encode_frame(FrameType.CANCEL, 2, encode_map(fields)) + encode_frame(200, 3)
    good = encode_frame(FrameType.CANCEL, 4, encode_map({"ids": [1]}))
    _, bad, unknown, last = machine.receive_data(greeting + data + good)
    assert isinstance(bad, NotUnderstood)
    assert bad.error.code == "bad_request"
    assert isinstance(unknown, NotUnderstood)
    assert unknown.error.code == "unknown_frame"
    assert last == Requested(4, Cancel(ids=[1]))
