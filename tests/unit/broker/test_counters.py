"""Whatever is refused is counted by its error code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tickwheel.protocol.errors import BadRequest, TooManyTopics
from tickwheel.protocol.frames import FrameReader, FrameType
from tickwheel_broker.counters import Counters
from timerlog.store import Store

LARGE = bytes(20_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close(clean=False)


def test_each_refusal_is_counted_under_its_code() -> None:
    counters, reader = Counters(), FrameReader(1 << 16)
    for correlation, error in enumerate([TooManyTopics(), BadRequest("No."), TooManyTopics()], 1):
        reader.feed(counters.refusal(correlation, error))
        frame = reader.next_frame()
        assert frame is not None
        assert (frame.type, frame.correlation) == (FrameType.ERROR, correlation)
    assert counters.refusals == {"too_many_topics": 2, "bad_request": 1}


def test_messages_refused_one_by_one_are_counted_and_duplicates_are_not(store: Store) -> None:
    topic_id = store.topics.open("orders", NOW_MS, create=True)
    frames = [
        send(topic_id, [b"good", LARGE, b"good", LARGE], correlation=1),
        send(topic_id, [b"good"] * 3, times_ms=[-1, 0, 1 << 60], correlation=2),
        send(topic_id, [b"good"] * 2, correlation=3),
        send(topic_id, [b"a", b"b", b"c"], keys=[b"k", b"k", b"x" * 256], correlation=4),
    ]
    taken = store.produce.ingest(b"".join(frames), NOW_MS)
    assert taken.exceptions == 2 + 2 + 0 + 2
    counters = Counters()
    counters.refused_messages(taken.replies)
    assert counters.refusals == {"body_too_large": 2, "bad_time": 2, "key_too_long": 1}
    assert store.produce.ingest(frames[2], NOW_MS).exceptions == 0
