"""The process of a query: what it does when its time is nearly over, and the history of a message from it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import msgspec
import pytest

from tests.support.native.driver import NOW_MS
from tests.support.native.frames import send
from tests.support.stores.queried import job
from tickwheel.protocol.frames import FrameType
from timerlog.query.worker import Bell, Job, Life, run_job
from timerlog.store import Store


def life_job(store: Store, message_id: int, timeout_s: int = 60) -> Job:
    asked = job(store, "", NOW_MS, answer_type=FrameType.HISTORY_OK, timeout_s=timeout_s)
    return msgspec.structs.replace(asked, work=Life(message_id, store.log.appended_position, 100))


@pytest.fixture
def alarm() -> Iterator[None]:
    """What the process did with it before comes back."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_it_is_told_that_its_time_is_nearly_over_and_ends_some_seconds_later(store: Store) -> None:
    bell = Bell(life_job(store, 1, timeout_s=100))
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 70 < left_s <= 80
    assert not bell.has_rung
    signal.raise_signal(signal.SIGALRM)
    assert bell.has_rung
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert 20 < signal.alarm(0) <= 25


def test_a_history_is_a_frame_like_any_answer(store: Store) -> None:
    topic_id = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic_id, [b"x"], times_ms=[NOW_MS + 60_000]), NOW_MS)
    for is_late, missing in ((False, []), (True, ["time"])):
        frame = run_job(life_job(store, 1), lambda is_late=is_late: is_late)  # type: ignore[misc]
        assert frame[8] == FrameType.HISTORY_OK
        history = msgspec.msgpack.decode(frame[16:])["history"]
        assert ([event["event"] for event in history["events"]], history["missing"]) == (["sent"], missing)
    assert msgspec.msgpack.decode(run_job(life_job(store, 2))[16:]) == {"history": None}
