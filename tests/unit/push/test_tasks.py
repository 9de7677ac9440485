"""HTTP tasks: one group for all hosts, of which a slow one keeps no other one's tasks waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.push.fakes import ALLOWED, Group, Servers, always, clocks, endpoint
from tickwheel.protocol.breaker import FAILURES, FIRST_STEP_S
from tickwheel_push import hosts
from tickwheel_push.hosts import LEAST_WAIT_S, LONGEST_WAIT_S, SOON_S, Host, Hosts
from tickwheel_push.http.addresses import location_of
from tickwheel_push.http.answer import Answer, NoAnswer, Result
from tickwheel_push.http.request import Request
from tickwheel_push.tally import Tally
from tickwheel_push.tasks import MOST_IN_FLIGHT, Tasks


class Running:
    """The tasks of an endpoint, and all that they speak with."""

    def __init__(self, servers: Servers, **fields: Any) -> None:
        self.group = Group()
        self.servers = servers
        allow = fields.pop("allow_urls", ["https://*.example.com/*"])
        self.tasks = Tasks(
            endpoint=endpoint(name="tasks", allow_urls=allow, **fields),
            queue=self.group,
            exchange=servers,
            allowed=ALLOWED,
            tally=Tally().of("tasks"),
            clocks=clocks(),
        )

    def put(self, url: str, count: int = 1, **headers: str) -> None:
        self.group.put(count, headers={"tickwheel-url": url, **headers})


@asynccontextmanager
async def running(servers: Servers | None = None, **fields: Any) -> AsyncIterator[Running]:
    one = Running(servers or Servers(), **fields)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.tasks.run)
        yield one
        nursery.cancel_scope.cancel()


async def slow_hangs(request: Request) -> Result:
    if request.location.host.startswith("slow."):
        await trio.sleep(15)
        return NoAnswer("timeout", "")
    return Answer(200)


async def test_each_message_names_its_request(autojump_clock: MockClock) -> None:
    async with running() as one:
        one.put("https://a.example.com/x?y=1", **{"tickwheel-method": "PUT", "tickwheel-header-x-a": "1"})
        await wait_all_tasks_blocked()
        ((_, request),) = one.servers.seen
        assert (request.method, request.location.target) == ("PUT", "/x?y=1")
        assert dict(request.headers)["x-a"] == "1"
        assert one.group.acked() == [1]


async def test_one_that_can_never_go_is_a_dead_letter_that_says_why(autojump_clock: MockClock) -> None:
    async with running() as one:
        one.put("https://elsewhere.example.org/")
        one.group.put()
        await wait_all_tasks_blocked()
        assert one.servers.seen == []
        told = {what[1]: what[2] for what in one.group.done if what[0] == "give_up"}
        assert "allow" in told[1]
        assert "tickwheel-url" in told[2]


async def test_a_slow_host_keeps_no_other_ones_tasks_waiting(autojump_clock: MockClock) -> None:
    async with running(Servers(slow_hangs), max_in_flight=2) as one:
        one.put("https://slow.example.com/", 1_000)
        one.put("https://quick.example.com/", 20)
        await wait_all_tasks_blocked()
        assert one.servers.in_flight == 2
        assert len(one.group.acked()) == 20
        await trio.sleep(2 * SOON_S)  # some of those for the slow host are waited with for so long
        postponed = [what for what in one.group.done if what[0] == "postpone"]
        assert len(postponed) == 998
        assert not one.group.ready
        waits_ms = [what[2] for what in postponed]
        assert LEAST_WAIT_S * 1_000 <= min(waits_ms) < max(waits_ms) <= LONGEST_WAIT_S * 1_000
        assert len(set(waits_ms)) > 500  # they do not come back all at once


async def test_all_hosts_together_have_a_limit(autojump_clock: MockClock) -> None:
    async with running(Servers(slow_hangs), max_in_flight=1_000) as one:
        one.put("https://slow.example.com/", 2 * MOST_IN_FLIGHT)
        await wait_all_tasks_blocked()
        assert one.servers.in_flight == MOST_IN_FLIGHT
        assert len(one.group.ready) == MOST_IN_FLIGHT
        await trio.sleep(15)
        assert one.servers.in_flight > 0


async def test_a_host_that_fails_is_asked_by_probes(autojump_clock: MockClock) -> None:
    servers = Servers(always(Answer(500)))
    async with running(servers, max_in_flight=FAILURES) as one:
        one.put("https://down.example.com/", FAILURES)
        await wait_all_tasks_blocked()
        one.group.done.clear()
        one.put("https://down.example.com/", 5)
        await wait_all_tasks_blocked()
        assert {what[0] for what in one.group.done} == {"postpone"}
        assert min(what[2] for what in one.group.done) >= FIRST_STEP_S * 1_000
        await trio.sleep(FIRST_STEP_S)
        one.put("https://down.example.com/", 5)
        await wait_all_tasks_blocked()
        assert len(servers.seen) == FAILURES + 1


async def test_410_is_said_of_one_url(autojump_clock: MockClock) -> None:
    async with running(Servers(always(Answer(410), Answer(200)))) as one:
        one.put("https://a.example.com/old")
        await wait_all_tasks_blocked()
        one.put("https://a.example.com/new")
        await wait_all_tasks_blocked()
        assert one.group.done == [("give_up", 1, "HTTP 410"), ("ack", 2)]


async def test_cancelled_it_gives_back_what_was_not_answered(autojump_clock: MockClock) -> None:
    async with running(Servers(slow_hangs)) as one:
        one.put("https://slow.example.com/", 2)
        await wait_all_tasks_blocked()
    assert sorted(one.group.done) == [("give_back", 1), ("give_back", 2)]


def request(host: str) -> Request:
    return Request("POST", location_of(f"https://{host}/"), [], b"")


async def test_hosts_that_were_called_long_ago_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(hosts, "MOST_HOSTS", 3)
    known = Hosts(clocks())
    busy, failing = known.of(request("a.org"), 8), known.of(request("b.org"), 8)
    busy.gate.began()
    failing.gate.breaker.failed(0.0)
    for number in range(20):
        known.of(request(f"{number}.org"), 8)
    assert len(known) == 3
    assert known.of(request("a.org"), 8) is busy
    assert known.of(request("b.org"), 8) is failing


async def test_those_that_wait_have_turns_one_after_the_other() -> None:
    host = Host(2, clocks())
    host.gate.began()
    host.gate.began()
    for _ in range(200):
        host.took(4.0)  # so that a turn is about two seconds
    waits_s = [host.wait_s(100.0, 2) for _ in range(100)]
    assert waits_s[0] == LEAST_WAIT_S
    assert waits_s[1] - waits_s[0] > 1.9
    assert waits_s == sorted(waits_s)
    assert waits_s[-1] == LONGEST_WAIT_S
