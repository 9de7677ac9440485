"""After a lost connection the partition's leader is asked for until something comes of it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from tickwheel_broker.sharedlog.kafka import client
from tickwheel_broker.sharedlog.kafka.client import LeaderSearch


class Asked:
    """A client of librdkafka that notes when it is asked."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.at_s: list[float] = []
        self.fails = False

    def list_topics(self, topic: str, timeout: float) -> None:
        assert (topic, timeout) == ("t", 0.25)
        self.at_s.append(self.now_s)
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(client.time, "monotonic", lambda: found.now_s)
    return found


def search_for(seconds: float, search: LeaderSearch, asked: Asked) -> list[float]:
    asked.at_s, began_s = [], asked.now_s
    while asked.now_s < began_s + seconds:
        search.step(cast(Consumer, asked))
        asked.now_s += 0.125
    return [at_s - began_s for at_s in asked.at_s]


def test_it_asks_four_times_a_second_until_something_comes(asked: Asked) -> None:
    search, lost = LeaderSearch("t"), cast(Any, KafkaError(KafkaError._TRANSPORT))
    assert search_for(5, search, asked) == []
    search.lost(lost)
    assert search_for(1, search, asked) == [0.25, 0.5, 0.75]
    search.lost(lost)  # the broker that is away refuses the next connection, too
    asked.fails = True
    assert search_for(1, search, asked) == [0, 0.25, 0.5, 0.75]
    search.found()
    assert search_for(5, search, asked) == []


def test_it_gives_up_where_no_more_is_lost(asked: Asked) -> None:
    search = LeaderSearch("t")
    search.lost(KafkaError(KafkaError._TRANSPORT))
    assert len(search_for(60, search, asked)) == 39
