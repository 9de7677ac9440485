"""A batch that takes longer than an append may take is appended all the same, as long as it moves."""

from __future__ import annotations

import pytest
import trio

pytest.importorskip("confluent_kafka")

from tickwheel_broker.sharedlog.kafka import log as kafka_log
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.shared_log import AppendFailed

TIMEOUT_S = 2.0


class SlowAnswers:
    def __init__(self, offsets: list[int], takes_s: float) -> None:
        self._offsets, self._takes_s = offsets, takes_s

    async def wait(self, timeout_s: float) -> list[int]:
        with trio.move_on_after(timeout_s):
            await trio.sleep(self._takes_s)
            return self._offsets
        raise AppendFailed("no answer in time")


class SlowProducer:
    """Takes ten records a second."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.is_given_up = False

    may_sleep = False

    def send(self, records: list[bytes]) -> SlowAnswers:
        first = len(self.taken)
        self.taken += records
        return SlowAnswers(list(range(first, len(self.taken))), len(records) / 10)

    def give_up(self) -> None:
        self.is_given_up = True


@pytest.fixture
def producer() -> SlowProducer:
    return SlowProducer()


@pytest.fixture
def log(producer: SlowProducer) -> KafkaLog:
    log = KafkaLog("127.0.0.1:1", "t", append_timeout_s=TIMEOUT_S)
    log._producer = producer  # type: ignore[assignment]
    return log


async def test_it_has_as_long_as_it_takes(
    log: KafkaLog, producer: SlowProducer, autojump_clock: object
) -> None:
    records = [b"%d" % number for number in range(100)]
    began_s = trio.current_time()
    assert await log.append(records) == list(range(100))
    assert producer.taken == records
    assert trio.current_time() - began_s > 4 * TIMEOUT_S
    assert not producer.is_given_up


async def test_what_does_not_move_is_given_up(
    log: KafkaLog, producer: SlowProducer, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "_AT_ONCE", 50)
    with pytest.raises(AppendFailed):
        await log.append([b"one"] * 100)
    assert producer.is_given_up
    assert len(producer.taken) == 50, "the rest is not sent"
