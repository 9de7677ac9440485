"""`tickwheel cluster init` beside brokers of Kafka that are still starting."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Self

import pytest
import trio
from confluent_kafka import KafkaError, KafkaException

from tickwheel_broker.sharedlog.kafka import topic
from tickwheel_broker.sharedlog.kafka.topic import TooFewBrokers, TopicSettings, create_topic
from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable

NOBODY, TOO_FEW = KafkaError._TRANSPORT, KafkaError.INVALID_REPLICATION_FACTOR


class Admin:
    """What a client of Kafka hears, one after the other; the last goes on for ever. ``looks``: how many brokers there
    are, or an error; ``makes``: why the topic is not made, or None."""

    looks: list[int]
    makes: list[int | None]

    def __init__(self, settings: dict[str, Any]) -> None:
        assert settings["allow.auto.create.topics"] is False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self, name: str | None = None, timeout: float = 0) -> Any:
        partitions = {0: SimpleNamespace(leader=1)}
        found = SimpleNamespace(brokers={}, topics={"t": SimpleNamespace(partitions=partitions)})
        if name is None:
            seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            if seen < 0:
                raise KafkaException(KafkaError(seen))
            found.brokers = dict.fromkeys(range(seen))
        return found

    def create_topics(self, new: list[Any], request_timeout: float) -> dict[str, Future[None]]:
        made: Future[None] = Future()
        error = self.makes.pop(0) if len(self.makes) > 1 else self.makes[0]
        if error is None:
            made.set_result(None)
        else:
            made.set_exception(KafkaException(KafkaError(error)))
        return {"t": made}


def create(
    monkeypatch: pytest.MonkeyPatch, looks: list[int], makes: list[int | None], wait_s: float
) -> list[str]:
    """What it waited for."""
    monkeypatch.setattr(topic, "AdminClient", Admin)
    monkeypatch.setattr(topic, "_STEP_S", 0.001)
    Admin.looks, Admin.makes = looks, makes
    said: list[str] = []

    async def main() -> None:
        assert await create_topic("k:9092", "t", TopicSettings(), wait_s=wait_s, on_wait=said.append)

    trio.run(main)
    return said


def test_it_waits_and_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    said = create(monkeypatch, [NOBODY, NOBODY, 1, 2, 2, 3], [TOO_FEW, TOO_FEW, None], 60)
    assert said == [
        "for Kafka, which does not answer",
        "for Kafka: 1 of 3 machines are there",
        "for Kafka: 2 of 3 machines are there",
        "for 3 machines of Kafka that take copies",
    ]


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SharedLogUnavailable):
        create(monkeypatch, [NOBODY], [None], 0.01)
    with pytest.raises(TooFewBrokers):
        create(monkeypatch, [2], [TOO_FEW], 0.01)
