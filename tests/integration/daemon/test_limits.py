"""The limits of docs/limits.md over a real socket: a typed error before anything is closed, its count under the error's
code, and everybody else served meanwhile. What `test_daemon_bad_input.py` has is not here again."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.daemon.test_daemon_bad_input import code_of, error_of, send_payload, works
from tests.support.native.frames import COLUMN_KEYS
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection
from tickwheel.protocol.bodies.requests import (
    Cancel,
    CancelOk,
    Query,
    Subscribe,
    encode_body,
    encode_map,
    hello,
)
from tickwheel.protocol.bodies.settling import Change, MessageFilter, Transaction, TransactionAck
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST, MAX_PARTS_A_TRANSACTION, MAX_QUERY_ROWS
from tickwheel.sync import Client
from tickwheel_broker.logs import LINES_AT_ONCE, LINES_PER_S

MIB = 1 << 20
LIMITS = {
    "max_body_bytes": "64KiB",
    "max_frame_bytes": 2 * MIB,
    "max_receive_bytes": 2 * MIB,
    "max_connections": 12,
    "max_connections_per_address": 6,
    "max_topics": 8,
    "max_credit": 10,
    "frame_timeout": "1s",
    "idle_timeout": "20s",
}
HEADERS, ORDERS = 8, 32


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """What a test can reach."""
    return LIMITS


@pytest.fixture(scope="module")
def daemon(daemon: Daemon) -> Iterator[Daemon]:
    """Nothing that a client does is an error of the broker."""
    yield daemon
    assert not [event for event in daemon.events() if event["level"] == "error"]


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[RawConnection]:
    """Over the Unix socket, which is not counted by address."""
    with RawConnection(daemon.unix_url) as connection:
        yield connection.greet()


def refusals(daemon: Daemon) -> dict[str, int]:
    with Client(daemon.unix_url) as client:
        return client.stats().refusals


def wait_served(url: str) -> RawConnection:
    """A place that was given up is not free in the same moment."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = RawConnection(url)
        connection.send(encode_frame(FrameType.HELLO, 1, encode_body(hello("again"))))
        if connection.receive().type == FrameType.HELLO_OK:
            return connection
        connection.socket.close()
        assert time.monotonic() < deadline, "the places of closed connections were not given to others"
        time.sleep(0.02)


def columns_payload(topic_id: int, column: int, size: int) -> bytes:
    """A SEND of one message with one column of texts; of a message before it, it says nothing."""
    return struct.pack("<IIIIqIH", topic_id, 1, column, 50, 0, 1, size) + bytes(size) + b"x"


# -- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "most_bytes", "wire_code", "code"),
    [
        (COLUMN_KEYS, 255, 4, "key_too_long"),
        (HEADERS, 32_768, 5, "headers_too_large"),
        (ORDERS, 255, 6, "order_key_too_long"),
    ],
)
def test_keys_and_headers(
    daemon: Daemon, raw: RawConnection, column: int, most_bytes: int, wire_code: int, code: str
) -> None:
    topic_id = raw.open_topic()
    before = refusals(daemon).get(code, 0)
    fits = raw.ask(FrameType.SEND, columns_payload(topic_id, column, most_bytes))
    assert struct.unpack_from("<QII", fits.payload)[1:] == (1, 0)
    refused = raw.ask(FrameType.SEND, columns_payload(topic_id, column, most_bytes + 1))
    assert struct.unpack("<QIIIIQ", refused.payload)[1:5] == (0, 1, 0, wire_code)
    assert refusals(daemon)[code] == before + 1
    assert works(raw)


def test_bodies(daemon: Daemon, raw: RawConnection) -> None:
    topic_id = raw.open_topic()
    raw.ask(FrameType.SEND, send_payload(topic_id, [bytes(65_536), bytes(65_537), bytes(65_537)]))
    assert refusals(daemon)["body_too_large"] == 2


# -- connections -------------------------------------------------------------------------------------------------


def test_connections_of_one_address(daemon: Daemon, raw: RawConnection) -> None:
    opened = [RawConnection(daemon.url).greet() for _ in range(LIMITS["max_connections_per_address"])]
    with RawConnection(daemon.url) as one_more:
        error = error_of(one_more.receive())
        assert (error.code, error.retryable) == ("too_many_connections_from_address", True)
        assert one_more.is_closed()
    assert works(raw), "others are served"
    assert refusals(daemon)["too_many_connections_from_address"] == 1
    for connection in opened:
        assert works(connection)
        connection.socket.close()
    wait_served(daemon.url).socket.close()


def test_connections_in_all(daemon: Daemon) -> None:
    opened = [wait_served(daemon.unix_url) for _ in range(LIMITS["max_connections"])]
    for url in (daemon.unix_url, daemon.url):
        with RawConnection(url) as one_more:
            assert code_of(one_more.receive()) == "too_many_connections"
            assert one_more.is_closed()
    for connection in opened:
        connection.socket.close()
    wait_served(daemon.unix_url).socket.close()
    assert refusals(daemon)["too_many_connections"] >= 2


# -- frames that never end ---------------------------------------------------------------------------------------


def trickle(connection: RawConnection, data: bytes) -> None:
    """A byte at a time, for as long as somebody listens."""
    for byte in data:
        try:
            connection.send(bytes([byte]))
        except ConnectionError:
            return
        time.sleep(0.02)
        if connection.has_answer():
            return


def test_a_frame_that_trickles_in(daemon: Daemon, raw: RawConnection) -> None:
    trickle(raw, encode_frame(FrameType.SEND, 1, bytes(5_000)))
    assert code_of(raw.receive()) == "frame_timeout"
    assert raw.is_closed()
    assert refusals(daemon)["frame_timeout"] >= 1


def test_whole_frames_are_not_hurried(raw: RawConnection) -> None:
    """Each frame in two pieces, the second with the begin of the next one: something has always begun."""
    topic_id = raw.open_topic()
    stream = encode_frame(FrameType.SEND, 7, send_payload(topic_id, [b"x" * 100])) * 60
    began_s = time.monotonic()
    for start in range(0, len(stream), 160):
        raw.send(stream[start : start + 160])
        time.sleep(0.025)
    assert {raw.receive().type for _ in range(60)} == {FrameType.SEND_OK}
    assert time.monotonic() - began_s > 1.2, "longer than frame_timeout"


def test_room_for_large_frames_is_shared_and_comes_back(daemon: Daemon, raw: RawConnection) -> None:
    """Three that begin a large frame want twice the room that there is: one after the other they are ended, and small
    requests of others are answered all the while."""
    large = encode_frame(FrameType.SEND, 1, bytes(2 * MIB - 100))
    holders = [wait_served(daemon.unix_url) for _ in range(3)]
    for holder in holders:
        holder.send(large[:1_000])
    for holder in holders:
        while not holder.has_answer():
            assert works(raw)
        assert code_of(holder.receive()) == "frame_timeout"
        holder.socket.close()
    with wait_served(daemon.unix_url) as good:
        good.send(large)
        assert code_of(good.receive()) == "bad_frame", "it arrived whole and was looked at"


# -- subscriptions and requests ----------------------------------------------------------------------------------


def test_credit(daemon: Daemon, raw: RawConnection) -> None:
    refused = raw.request(FrameType.SUBSCRIBE, Subscribe("t", "g", 11, 1))
    assert code_of(refused) == "credit_too_large"
    assert raw.request(FrameType.SUBSCRIBE, Subscribe("t", "g", 10, 1)).type == FrameType.SUBSCRIBE_OK
    assert refusals(daemon)["credit_too_large"] == 1


def test_a_subscription_never_holds_more_than_its_credit(raw: RawConnection) -> None:
    topic_id = raw.open_topic("credited")
    raw.ask(FrameType.SEND, send_payload(topic_id, [b"x"] * 50))
    raw.request(FrameType.SUBSCRIBE, Subscribe("credited", "g", 10, 10))
    held = 0
    while held < 10:
        held += struct.unpack_from("<I", raw.receive().payload, 4)[0]
    assert held == 10
    assert works(raw), "the next frame is the answer to PING and not another delivery"


@pytest.mark.parametrize(
    ("frame_type", "body"),
    [
        (FrameType.CANCEL, {"ids": [1] * (MAX_IDS_A_REQUEST + 1)}),
        (FrameType.CANCEL, {"topic": "t", "keys": ["k"] * (MAX_IDS_A_REQUEST + 1)}),
        (FrameType.QUERY, {"sql": "x" * 100_001, "limit": 1, "timeout_ms": 1}),
        (FrameType.QUERY, {"sql": "select 1", "limit": MAX_QUERY_ROWS + 1, "timeout_ms": 1}),
        (FrameType.QUERY, {"sql": "select 1", "limit": 1, "timeout_ms": 3_600_001}),
        (FrameType.BROWSE, {"topic": "t", "limit": 10_001}),
        (FrameType.RESERVE_IDS, {"count": (1 << 24) + 1}),
    ],
)
def test_requests_that_ask_for_too_much(
    daemon: Daemon, raw: RawConnection, frame_type: FrameType, body: dict[str, object]
) -> None:
    before = refusals(daemon).get("bad_request", 0)
    assert code_of(raw.ask(frame_type, encode_map(body))) == "bad_request"
    assert refusals(daemon)["bad_request"] == before + 1
    assert works(raw)


def test_ids_of_a_transaction_count_together(raw: RawConnection) -> None:
    half = list(range(1, MAX_IDS_A_REQUEST // 2 + 2))
    nowhere = 4_000_000
    acks = [{"group_id": nowhere, "ids": half, "epochs": half}] * 2
    assert (
        code_of(raw.ask(FrameType.TRANSACTION, encode_map({"id": b"t" * 16, "acks": acks}))) == "bad_request"
    )
    few = Transaction(b"t" * 16, acks=[TransactionAck(nowhere, [1], [1])])
    assert code_of(raw.request(FrameType.TRANSACTION, few)) == "unknown_group"


def test_a_query_that_takes_too_long(daemon: Daemon, raw: RawConnection) -> None:
    pytest.importorskip("duckdb")
    sql = "select count(*) from range(1000000000) a, range(1000000000) b"
    assert code_of(raw.request(FrameType.QUERY, Query(sql, 1, 300))) == "query_timeout"
    assert refusals(daemon)["query_timeout"] == 1


def test_others_have_their_turn_while_many_ids_are_looked_at(raw: RawConnection) -> None:
    """The answers come in another order: that is how one can see it."""
    many = Cancel(ids=list(range(1_000_000, 1_000_000 + MAX_IDS_A_REQUEST)))
    raw.send(encode_frame(FrameType.CANCEL, 1, encode_body(many)) + encode_frame(FrameType.PING, 2))
    first, last = raw.receive(), raw.receive()
    assert (first.correlation, last.correlation) == (2, 1)
    assert last.payload == encode_body(CancelOk(["not_found"] * MAX_IDS_A_REQUEST))


def test_requests_that_take_long_are_limited_by_waiting(raw: RawConnection) -> None:
    """More of them than are worked on at a time are all answered, some later."""
    raw.open_topic("many")
    change = encode_body(Change("cancel", "many", MessageFilter()))
    raw.send(b"".join(encode_frame(FrameType.CHANGE, n, change) for n in range(1, 101)))
    assert {raw.receive().correlation for _ in range(100)} == set(range(1, 101))


def test_parts_of_a_transaction(raw: RawConnection) -> None:
    send = send_payload(raw.open_topic("t"), [b""])
    many = Transaction(id=b"p" * 16, sends=[send] * 1_000)
    assert raw.request(FrameType.TRANSACTION, many).type == FrameType.TRANSACTION_OK
    body = {"id": b"q" * 16, "sends": [send] * (MAX_PARTS_A_TRANSACTION + 1)}
    assert code_of(raw.ask(FrameType.TRANSACTION, encode_map(body))) == "bad_request"
    assert works(raw)


def test_who_is_refused_again_and_again_does_not_fill_the_disk_with_lines(fresh_daemon: Daemon) -> None:
    count = 3_000
    with RawConnection(fresh_daemon.url).greet() as raw:
        frame = encode_frame(FrameType.SEND, 1, send_payload(77, [b"x"]))
        raw.send(frame * count)
        began_s = time.monotonic()
        for _ in range(count):
            assert code_of(raw.receive()) == "unknown_topic"
        took_s = time.monotonic() - began_s
    fresh_daemon.stop()
    events = fresh_daemon.events()
    lines = [event for event in events if event["event"] == "request refused"]
    assert LINES_AT_ONCE <= len(lines) <= LINES_AT_ONCE + LINES_PER_S * (took_s + 5)
    left_out = sum(event.get("left_out", 0) for event in events)
    assert len(lines) + left_out == count, "what is left out is counted"
