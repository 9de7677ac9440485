"""The database's clock decides, also while ours is wrong: somebody has set it since they were compared."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.support.outbox.messages import PATIENCE_S, get, message_table, rows, send

SERVERS = ["postgresql", "mariadb"]
HOUR_NS = 3_600_000_000_000


@pytest.fixture(params=["an hour fast", "an hour slow"])
def by_ns(request: pytest.FixtureRequest) -> int:
    return HOUR_NS if request.param == "an hour fast" else -HOUR_NS


def set_clock(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + by_ns)


@pytest.mark.parametrize("database_url", SERVERS, indirect=True)
async def test_nothing_is_early(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with message_table(database_url, batch_size=1) as table:
        send(table, "later", delay=timedelta(minutes=30))
        async with table.hub() as hub, hub.subscribe() as stream:
            set_clock(monkeypatch, HOUR_NS)
            send(table, "now")
            message = await get(stream)
            assert message["message"] == "now"
            assert await stream.receive(0.5) is None
            assert hub.stats.looks < 100
            await message.nack()
            assert (await get(stream)).epoch == 2  # at once, and not in an hour


@pytest.mark.parametrize("database_url", SERVERS, indirect=True)
def test_claims_go_by_the_database(database_url: str, by_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with message_table(database_url, ack_wait_ms=60_000) as table:
        right_ns = time.time_ns()
        set_clock(monkeypatch, by_ns)
        send(table, "now")
        send(table, "later", delay=timedelta(minutes=30))
        (message,) = table.claim()
        assert message["message"] == "now"
        until = dict(rows(table, "id", "time_next"))[message.id]
        assert 0 < until - right_ns < 60_000_000_000 + PATIENCE_S * 1e9
        assert len(table.claim()) == 0
