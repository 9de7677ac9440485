"""One Kafka for all tests of a module, and a topic for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.cluster.kafka import running_kafka
from tickwheel_bench.cluster.kafka import Kafka

_numbers = itertools.count(1)


class Topic(NamedTuple):
    """The name of one that is not there yet."""

    servers: str
    name: str


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    yield from running_kafka(tmp_path_factory)


@pytest.fixture
def topic(kafka: Kafka) -> Topic:
    return Topic(kafka.servers, f"topic-{next(_numbers)}")
