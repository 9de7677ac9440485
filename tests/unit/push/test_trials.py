"""Tests of endpoints: one request each, whatever comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.unit.push.fakes import ALLOWED, Group, Servers, always, clocks, endpoint
from tickwheel import Endpoint
from tickwheel.errors import NotConnected
from tickwheel_push.http.answer import Answer, NoAnswer, Result
from tickwheel_push.trials import LOOK_AGAIN_MS, UNKNOWN_S, Trials

SHOP = endpoint(name="shop", version=3)


def headers_of(name: str = "shop", version: int = 3) -> dict[str, Any]:
    return {"ce-type": "tickwheel.test", "tickwheel-endpoint": name, "tickwheel-endpoint-version": version}


@asynccontextmanager
async def running(group: Group, servers: Servers, *endpoints: Endpoint) -> AsyncIterator[Trials]:
    named = {one.name: one for one in endpoints}
    trials = Trials(
        endpoints=named,
        queue=group,
        exchange=lambda one: nullcontext(servers),
        allowed=ALLOWED,
        clocks=clocks(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trials.run)
        await trio.lowlevel.checkpoint()
        yield trials
        nursery.cancel_scope.cancel()


async def test_what_was_answered_is_told_though_the_process_ends(autojump_clock: MockClock) -> None:
    """Given back, it would be made a second time."""
    group, servers = Group(), Servers(always(Answer(200)))
    group.takes_s = 1.0
    async with running(group, servers, SHOP):
        group.put(headers=headers_of(), deliver_at_ms=1_000_000)
        await trio.sleep(0.5)
    assert group.done == [("ack", 1)]


async def test_what_could_not_be_told_in_time(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    group, servers = Group(), Servers(always(Answer(200)))
    group.takes_s = 60.0
    async with running(group, servers, SHOP):
        group.put(headers=headers_of(), deliver_at_ms=1_000_000)
        await trio.sleep(0.5)
    assert group.done == []
    assert "the broker was not told what came of test 1 of 'orders': no answer in time" in caplog.text


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (Answer(200), None),
        (Answer(204), None),
        (Answer(302), "HTTP 302"),
        (Answer(410, excerpt=b"gone"), "HTTP 410 gone"),
        (Answer(503), "HTTP 503"),
        (NoAnswer("dns", "no such name"), "dns: no such name"),
    ],
)
async def test_what_was_answered(result: Result, error: str | None, autojump_clock: MockClock) -> None:
    group, servers = Group(), Servers(always(result))
    async with running(group, servers, SHOP):
        group.put(headers=headers_of(), deliver_at_ms=1_000_000)
        await trio.sleep(1)
        assert group.done == [("ack", 1) if error is None else ("retry", 1, 0, error)]
        ((_, request),) = servers.seen
        headers = dict(request.headers)
        assert (headers["ce-type"], headers["host"]) == ("tickwheel.test", "hooks.example.com")
        assert "tickwheel-endpoint" not in headers
        group.put(headers=headers_of(), attempt=2)
        await trio.sleep(1)
        assert group.done[1:] == [("ack", 2)]
        assert len(servers.seen) == 1, "when it comes again there is no second request"


async def test_also_one_that_is_disabled_and_of_several_the_one_that_is_meant(
    autojump_clock: MockClock,
) -> None:
    group, servers = Group(), Servers()
    off = endpoint(name="off", enabled=False, url="https://off.example.com/")
    async with running(group, servers, SHOP, off):
        group.put(headers=headers_of("off", 1))
        await trio.sleep(1)
        assert [request.location.host for _, request in servers.seen] == ["off.example.com"]


@pytest.mark.parametrize("known", [[], [endpoint(name="shop", version=2, url="https://old.example.com/")]])
async def test_one_that_is_not_known_yet(known: list[Endpoint], autojump_clock: MockClock) -> None:
    group, servers = Group(), Servers()
    async with running(group, servers, *known) as trials:
        group.put(headers=headers_of(), deliver_at_ms=1_000_000)
        await trio.sleep(1)
        assert group.done == [("postpone", 1, LOOK_AGAIN_MS)]
        trials.change({"shop": SHOP})
        group.put(headers=headers_of(), deliver_at_ms=1_000_000)
        await trio.sleep(1)
        assert group.done[1:] == [("ack", 2)]
        trials.change({})
        await trio.sleep(UNKNOWN_S)
        group.put(headers=headers_of(), deliver_at_ms=1_000_000)
        await trio.sleep(1)
        assert group.done[2:] == [("retry", 3, 0, "refused: there is no such endpoint any more")]
        assert [request.location.host for _, request in servers.seen] == ["hooks.example.com"]


async def test_a_url_that_may_not_be_called(autojump_clock: MockClock) -> None:
    group, servers = Group(), Servers()
    async with running(group, servers, endpoint(name="shop", url="http://a.example.com/")):
        group.put(headers=headers_of(version=1))
        await trio.sleep(1)
        ((what, _, delay_ms, error),) = group.done
        assert (what, delay_ms, servers.seen) == ("retry", 0, [])
        assert error.startswith("refused: ")


@pytest.mark.parametrize("late_s", [599, 601])
async def test_one_that_waited_for_too_long(late_s: int, autojump_clock: MockClock) -> None:
    group, servers = Group(), Servers()
    async with running(group, servers, SHOP):
        group.put(headers=headers_of(), deliver_at_ms=(1_000 - late_s) * 1_000)
        await trio.sleep(0.1)
        late = ("retry", 1, 0, "refused: nothing took the test in time")
        assert group.done == [("ack", 1) if late_s < 600 else late]
        assert len(servers.seen) == (late_s < 600)


async def test_a_broker_that_is_away_and_an_end_in_the_middle(autojump_clock: MockClock) -> None:
    async def slow(request: object) -> Answer:
        await trio.sleep(10)
        return Answer(200)

    group = Group()
    async with running(group, Servers(slow), SHOP):
        group.put(headers=headers_of())
        await trio.sleep(5)
        group.error = NotConnected()
        await trio.sleep(10)
        group.error = None
        assert group.done == []
        group.put(headers=headers_of())
        await trio.sleep(8)
    assert group.done == [("give_back", 2)], "another one makes it"


async def test_stopped_it_waits_for_answers(autojump_clock: MockClock) -> None:
    async def slow(request: object) -> Answer:
        await trio.sleep(10)
        return Answer(200)

    group = Group()
    trials = Trials(
        endpoints={"shop": SHOP},
        queue=group,
        exchange=lambda one: nullcontext(Servers(slow)),
        allowed=ALLOWED,
        clocks=clocks(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trials.run)
        group.put(headers=headers_of())
        await trio.sleep(1)
        trials.stop()
    assert group.done == [("ack", 1)]
