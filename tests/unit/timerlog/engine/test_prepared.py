"""Prepared messages, and what only looks like one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, SMALL
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.names import PREPARED_HEADER
from timerlog.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path, SMALL, NOW_MS)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({"mine": 1}),
        msgspec.msgpack.encode({PREPARED_HEADER: 5}),
        msgspec.msgpack.encode({PREPARED_HEADER: {"deliver_at_ms": "soon"}}),
        msgspec.msgpack.encode({PREPARED_HEADER: {"deliver_at_ms": float("inf")}}),
        msgspec.msgpack.encode({PREPARED_HEADER: {"deliver_at_ms": 1 << 63}}),
    ],
)
def test_what_was_sent_to_the_topic_of_prepared_ones_is_none(store: Store, headers: bytes) -> None:
    store.topics.open("t", NOW_MS)
    topic = store.prepared.open("t", {}, NOW_MS)
    message = Outbound(b"made up", b"", headers, b"", 50)
    store.commit.write(bytes(16), [store.produce.judge(send_payload(topic, [message]), NOW_MS)], [], NOW_MS)
    assert store.prepared.decide([1], commit=True, now_ms=NOW_MS) == (["not_found"], [0])
