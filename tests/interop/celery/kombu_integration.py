"""Kombu's integration tests for a transport, as its own ``t/integration/test_redis.py`` has them: three fixtures."""

from __future__ import annotations

import os

import kombu
import pytest

from .common import (  # type: ignore[import-not-found]
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

URL = os.environ["TEST_BROKER"]
DEAD = "tickwheel://127.0.0.1:1"


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(DEAD)


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"{DEAD};{URL}")


class test_BasicFunctionality(BasicFunctionality):  # type: ignore[misc]
    pass


class test_ExchangeTypes(BaseExchangeTypes):  # type: ignore[misc]
    pass


class test_Priority(BasePriority):  # type: ignore[misc]
    pass


class test_TimeToLive(BaseTimeToLive):  # type: ignore[misc]
    pass


class test_Message(BaseMessage):  # type: ignore[misc]
    pass


class test_Failover(BaseFailover):  # type: ignore[misc]
    pass
