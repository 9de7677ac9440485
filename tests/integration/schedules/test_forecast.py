"""What is due when, asked over the wire, with the command line and as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import tickwheel
from tests.support.clients.http_client import scrape
from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import BadRequest, BadTime
from tickwheel.protocol.bodies.requests import GetWheel, decode_request, encode_body
from tickwheel.protocol.frames import FrameType
from tickwheel_broker.background import forecasts
from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.clock.clock import ManualClock
from timerlog.store import Store
from timerlog.wheel import forecast

DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """The broker has metrics."""
    return {"http_listen": True, "http_port": 0}


@pytest.mark.promise("R50")
async def test_a_thousand_around_24_hours_are_counted_and_not_estimated(
    daemon: Daemon, topic: str, tmp_path: Path
) -> None:
    async with tickwheel.Client(daemon.url) as client:
        now_ms = (await client.stats()).now_ms
        at_ms = [now_ms + 86_340_000 + 120 * number for number in range(1_000)]
        sent = await client.send_many(topic, [b"x"] * 1_000, deliver_at=at_ms)
        horizons = [DAY - 2 * MINUTE, DAY, DAY + MINUTE + SECOND]
        found = await client.wheel(horizons=horizons)
        assert [row.label for row in found.forecast] == ["1438 min", "1 d", "86461 s"]
        expected = [sum(one <= row.until_ms for one in at_ms) for row in found.forecast]
        assert [row.messages for row in found.forecast] == [row.timers for row in found.forecast] == expected
        assert expected[0] == 0 < expected[1] < expected[2] == 1_000

        await client.cancel(ids=sent.ids()[:10])
        await client.reschedule(ids=list(sent.ids()[10:30]), delay=timedelta(hours=1))
        first, _, last = (await client.wheel(horizons=horizons)).forecast
        assert (first.timers, last.timers) == (20, 990)
        assert (await client.wheel()).forecast[-1].messages == 990
    found_metrics = scrape(str(daemon.wait_for_event("started")["http"]))
    assert found_metrics.value("messages_due", within="day") >= 20
    assert found_metrics.value("messages_due", within="later") == 990
    shell = Shell(tmp_path, daemon.url)
    (row,) = shell.json("wheel", "--within", "25h")["forecast"]
    assert (row["label"], row["messages"], row["leases"]) == ("25 h", 990, 0)
    assert "25 h" in shell.text("wheel", "--within", "25h", "--within", "2h")


async def test_horizons_that_cannot_be(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for bad in ([], [-SECOND], ["1h"], 7, DAY, [SECOND] * 65):
            with pytest.raises((tickwheel.BadArgument, BadTime)) as refused:
                await client.wheel(horizons=bad)  # type: ignore[arg-type]
            assert refused.value.advice


def test_a_wheel_without_horizons_is_asked_for_as_ever() -> None:
    assert encode_body(GetWheel()) == b""
    assert decode_request(FrameType.WHEEL, b"") == GetWheel()
    assert decode_request(FrameType.WHEEL, encode_body(GetWheel([7]))) == GetWheel([7])
    with pytest.raises(BadRequest):
        decode_request(FrameType.WHEEL, encode_body(GetWheel([-7])))


async def test_others_have_their_turn_while_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "STEP", 10)
    with closing(Store.open(tmp_path / "data", SMALL, NOW_MS)) as store:
        topic_id = store.topics.open("t", NOW_MS)
        store.produce.ingest(send(topic_id, [b"x"] * 500, times_ms=[NOW_MS + 1_000] * 500), NOW_MS)
        pump(store, NOW_MS)
        asked, turns = Forecasts(store.look, ManualClock()), 0
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(others)
            assert (await asked.picture([2**40]))["forecast"][0]["messages"] == 500
            nursery.cancel_scope.cancel()
        assert turns >= 500 // 10 - 1


async def test_who_watches_gets_a_count_again_that_was_dear(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store.open(tmp_path / "data", SMALL, NOW_MS)) as store:
        topic_id = store.topics.open("t", NOW_MS)
        asked = Forecasts(store.look, ManualClock())
        count = asked._count

        async def dear(horizons: Sequence[int] | None) -> tuple[dict[str, Any], float]:
            found, _ = await count(horizons)
            return found, 0.1

        monkeypatch.setattr(asked, "_count", dear)
        assert (await asked.recent())["forecast"][-1]["messages"] == 0
        store.produce.ingest(send(topic_id, [b"x"] * 5, times_ms=[NOW_MS + 1_000] * 5), NOW_MS)
        pump(store, NOW_MS)
        assert (await asked.recent())["forecast"][-1]["messages"] == 0
        await trio.sleep(0.1 * forecasts.COST_FACTOR)
        assert (await asked.recent())["forecast"][-1]["messages"] == 5
