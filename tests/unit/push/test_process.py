"""The process that follows the endpoints: each is served, changed and let go of as the broker has it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from tests.unit.push.fakes import Group, Servers, always, endpoint
from tickwheel import Client, Endpoint
from tickwheel.client.admin.endpoints import EndpointList
from tickwheel.errors import EndpointChanged, Forbidden, NotConnected, TickwheelError, UnknownFrame
from tickwheel.protocol.endpoint_states import ToldState
from tickwheel_push import process
from tickwheel_push.http.answer import Answer, NoAnswer
from tickwheel_push.process import REFRESH_S, Push, Settings
from tickwheel_push.tally import Tally
from tickwheel_push.telling import AGAIN_S


class Broker:
    """Endpoints, and a group for each."""

    is_connected = True

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.groups: dict[str, Group] = {}
        self.tests = Group()
        self.revision = 1
        self.looks = 0
        self.error: TickwheelError | None = None
        self.refuses: TickwheelError | None = None
        self.disabled: list[tuple[str, str, int | None]] = []
        self.told: dict[str, tuple[str, str]] = {}
        self.tells = 0

    def set(self, **fields: Any) -> None:
        one = endpoint(**fields)
        known = self.endpoints.get(one.name)
        version = 1 if known is None else known.version + 1
        self.endpoints[one.name] = msgspec.structs.replace(one, version=version)
        self.groups.setdefault(one.name, Group())
        self.revision += 1

    def put_test(self, version: int = 1) -> None:
        """Of endpoint "a", just now."""
        headers = {"tickwheel-endpoint": "a", "tickwheel-endpoint-version": version}
        self.tests.put(headers=headers, deliver_at_ms=round(time.time() * 1_000))

    async def endpoints_since(self, revision: int) -> EndpointList | None:
        self.looks += 1
        if self.error is not None:
            raise self.error.copy()
        return (
            None if revision == self.revision else EndpointList(list(self.endpoints.values()), self.revision)
        )

    async def _tell_endpoints(self, states: Sequence[ToldState]) -> None:
        if self.error is not None:
            raise self.error.copy()
        self.told = {one.endpoint: (one.name, one.reason) for one in states}
        self.tells += 1

    async def disable_endpoint(self, name: str, reason: str, *, expected_version: int | None = None) -> None:
        self.disabled.append((name, reason, expected_version))
        if self.refuses is not None:
            raise self.refuses.copy()
        self.set(**{**msgspec.structs.asdict(self.endpoints[name]), "enabled": False})


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    one = Broker()
    monkeypatch.setattr(
        process,
        "Intake",
        lambda client, topic, group: (
            one.tests if group == "push" else one.groups[group.removeprefix("push.")]
        ),
    )
    return one


class Exchanging(Servers):
    """`Servers`, which are entered as an `Exchange` is."""

    async def __aenter__(self) -> Exchanging:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


@asynccontextmanager
async def running(
    broker: Broker, servers: Exchanging, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Push]:
    monkeypatch.setattr(process, "Exchange", lambda allowed, resolver, trusted: servers)
    push = Push(cast("Client", broker), Settings(), Tally())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(push.run)
        await trio.sleep(0.1)
        yield push
        nursery.cancel_scope.cancel()


def hosts(servers: Servers) -> list[str]:
    return [request.location.host for _, request in servers.seen]


async def test_endpoints_come_change_and_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging()
    broker.set(name="a", url="https://a.example.com/")
    async with running(broker, servers, monkeypatch) as push:
        broker.set(name="b", url="https://b.example.com/")
        broker.groups["a"].put()
        broker.groups["b"].put()
        await trio.sleep(2 * REFRESH_S)
        assert sorted(hosts(servers)) == ["a.example.com", "b.example.com"]
        broker.set(name="a", url="https://other.example.com/")
        del broker.endpoints["b"]
        broker.revision += 1
        await trio.sleep(2 * REFRESH_S)
        broker.groups["a"].put()
        broker.groups["b"].put()
        await trio.sleep(1)
        assert hosts(servers)[2:] == ["other.example.com"]
        assert len(broker.groups["b"].ready) == 1
        await push.look()
        assert push._tally._registry.get_sample_value("tickwheel_push_endpoints") == 1


async def test_one_that_may_not_be_seen_whole_any_more_is_left_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The token's grants have changed, and nothing of the endpoint."""
    servers = Exchanging()
    broker.set(name="a", url="https://a.example.com/")
    async with running(broker, servers, monkeypatch):
        for is_shortened, sent in ((False, 1), (True, 1), (False, 3)):
            broker.endpoints["a"] = msgspec.structs.replace(broker.endpoints["a"], is_shortened=is_shortened)
            broker.revision += 1
            await trio.sleep(2 * REFRESH_S)
            broker.groups["a"].put()
            await trio.sleep(1)
            assert len(servers.seen) == sent


async def test_one_that_cannot_be_served_waits_and_harms_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging()
    broker.set(name="plain", url="http://a.example.com/")
    broker.set(name="port", url="https://a.example.com:22/")
    broker.set(name="hidden", is_shortened=True)
    broker.set(name="off", enabled=False)
    broker.set(name="fine", url="https://fine.example.com/")
    async with running(broker, servers, monkeypatch):
        for group in broker.groups.values():
            group.put()
        await trio.sleep(10)
        assert hosts(servers) == ["fine.example.com"]
        assert [name for name, group in broker.groups.items() if not group.ready] == ["fine"]
        assert {
            name: (state, reason.partition(" (")[0]) for name, (state, reason) in broker.told.items()
        } == {
            "fine": ("delivering", ""),
            "hidden": ("not_served", "its secrets are not shown: the token needs push for its topic"),
            "plain": ("not_served", "only https is allowed"),
            "port": ("not_served", "port 22 is not allowed"),
        }


async def test_the_broker_is_told_what_becomes_of_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Also in the figures; a test that fails is no failure of the endpoint."""
    servers = Exchanging(always(Answer(500)))
    broker.set(name="a", has_tests=True)
    async with running(broker, servers, monkeypatch) as push:

        def figure(state: str) -> float | None:
            labels = {"endpoint": "a", "state": state}
            return push._tally._registry.get_sample_value("tickwheel_push_endpoint_state", labels)

        broker.put_test()
        await trio.sleep(2 * REFRESH_S)
        assert len(servers.seen) == 1, "the test"
        assert broker.told == {"a": ("delivering", "")}
        servers.answer = always(Answer(503, excerpt=b"come back later"))
        broker.groups["a"].put()
        await trio.sleep(2 * REFRESH_S)
        assert broker.told == {"a": ("failing", "HTTP 503")}
        await push.look()
        assert [figure(state) for state in ("delivering", "failing", "not_served")] == [0, 1, 0]
        servers.answer = None
        broker.groups["a"].put()
        await trio.sleep(100)
        assert broker.told == {"a": ("delivering", "")}


async def test_it_is_told_again_now_and_then(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A broker that was started anew knows nothing; one that does not understand it is not asked again."""
    broker.set(name="a")
    async with running(broker, Exchanging(), monkeypatch):
        told = broker.tells
        broker.told = {}
        await trio.sleep(2 * AGAIN_S)
        assert broker.told == {"a": ("delivering", "")}
        assert broker.tells - told <= 2
        broker.error = UnknownFrame()
        await trio.sleep(2 * AGAIN_S)
        broker.error, told = None, broker.tells
        broker.groups["a"].put()
        await trio.sleep(2 * AGAIN_S)
        assert broker.groups["a"].acked() == [1], "it goes on"
        assert broker.tells == told


async def test_one_that_is_gone_is_disabled_and_begun_anew_when_it_is_enabled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging(always(Answer(410), Answer(200)))
    broker.set(name="a")
    async with running(broker, servers, monkeypatch):
        broker.groups["a"].put(2)
        broker.groups["a"].put()
        await trio.sleep(10)
        assert {(name, version) for name, _, version in broker.disabled} == {("a", 1)}
        assert len(broker.disabled) == 1
        seen = len(servers.seen)
        broker.groups["a"].put()
        await trio.sleep(10)
        assert len(servers.seen) == seen
        broker.set(name="a")
        await trio.sleep(2 * REFRESH_S)
        assert len(servers.seen) == seen + 1


async def test_one_that_is_made_again_after_it_was_gone_is_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging(always(Answer(410), Answer(200)))
    broker.set(name="a", created_ms=1)
    async with running(broker, servers, monkeypatch):
        broker.groups["a"].put()
        await trio.sleep(10)
        assert [version for _, _, version in broker.disabled] == [1]
        del broker.endpoints["a"]
        broker.set(name="a", created_ms=2)
        assert broker.endpoints["a"].version == 1
        broker.groups["a"].put()
        await trio.sleep(10)
        assert len(servers.seen) == 2


async def test_a_broker_that_is_away_hears_of_it_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    broker.refuses = NotConnected()
    broker.set(name="a")
    async with running(broker, Exchanging(always(Answer(410))), monkeypatch):
        broker.groups["a"].put()
        await trio.sleep(10)
        assert broker.endpoints["a"].enabled
        broker.refuses = None
        await trio.sleep(10)
        assert not broker.endpoints["a"].enabled


async def test_endpoints_that_are_no_more_leave_nothing_behind(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging(always(Answer(500), Answer(410), NoAnswer("dns", ""), Answer(410), Answer(200)))
    broker.set(name="kept")
    async with running(broker, servers, monkeypatch) as push:
        await trio.sleep(2)
        await push.look()
        before = push._tally.text()
        for number in range(50):
            broker.set(name=f"a{number}")
            broker.groups[f"a{number}"].put(2)
            await trio.sleep(2 * REFRESH_S)
            await push.look()
            assert f'endpoint="a{number}"' in push._tally.text()[0].decode()
            del broker.endpoints[f"a{number}"]
            broker.revision += 1
            await trio.sleep(2 * REFRESH_S)
        await push.look()
        assert push._tally.text() == before
        assert not push._gone


@pytest.mark.parametrize(("refused", "goes_on"), [(Forbidden(), False), (EndpointChanged(), True)])
async def test_when_the_broker_does_not_disable_it(
    refused: TickwheelError,
    goes_on: bool,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    """Not allowed: it is left alone all the same. Changed meanwhile: it is another one, which may be there."""
    servers = Exchanging(always(Answer(410), Answer(200)))
    broker.refuses = refused
    broker.set(name="a", max_in_flight=1)
    async with running(broker, servers, monkeypatch):
        broker.groups["a"].put(2)
        await trio.sleep(10)
        assert len(servers.seen) == (2 if goes_on else 1)
        broker.set(name="a", max_in_flight=1)
        await trio.sleep(10)
        assert len(servers.seen) == 2


async def test_a_defect_concerns_one_endpoint_and_passes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging()
    broker.set(name="a", url="https://a.example.com/")
    broker.set(name="b", url="https://b.example.com/")

    async def breaks(count: int, wait_s: float, lease_s: float) -> Any:
        raise ZeroDivisionError

    own = broker.groups["a"].take
    broker.groups["a"].take = breaks  # type: ignore[method-assign]
    async with running(broker, servers, monkeypatch):
        broker.groups["a"].put()
        broker.groups["b"].put()
        await trio.sleep(1)
        assert hosts(servers) == ["b.example.com"]
        broker.groups["a"].take = own  # type: ignore[method-assign]
        await trio.sleep(10)
        assert hosts(servers) == ["b.example.com", "a.example.com"]


async def test_a_broker_that_is_away_ends_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging()
    broker.set(name="a")
    async with running(broker, servers, monkeypatch) as push:
        broker.error = NotConnected()
        await trio.sleep(100)
        broker.error = None
        broker.set(name="a", url="https://b.example.com/")
        await trio.sleep(2 * REFRESH_S)
        broker.groups["a"].put()
        await trio.sleep(1)
        assert hosts(servers) == ["b.example.com"]
        assert push.is_ready


async def test_stopped_it_waits_for_answers_and_gives_the_rest_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def slow(request: Any) -> Answer:
        await trio.sleep(5 if request.body == b"short" else 1_000)
        return Answer(200)

    servers = Exchanging(slow)
    monkeypatch.setattr(process, "Exchange", lambda allowed, resolver, trusted: servers)
    broker.set(name="a", max_in_flight=2)
    push = Push(cast("Client", broker), Settings(drain_s=30), Tally())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(push.run)
        await trio.sleep(0.1)
        broker.groups["a"].put(body=b"short")
        broker.groups["a"].put(body=b"long")
        await trio.sleep(1)
        push.stop()
    assert trio.current_time() < 40
    assert broker.groups["a"].done == [("ack", 1), ("give_back", 2)]


async def test_tests_are_taken_when_there_are_some(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging()
    broker.set(name="a", url="https://a.example.com/")
    broker.set(name="hidden", is_shortened=True, has_tests=True)
    async with running(broker, servers, monkeypatch):
        await trio.sleep(2 * REFRESH_S)
        assert broker.tests.asked == []
        broker.set(name="a", url="https://a.example.com/", has_tests=True, enabled=False)
        broker.put_test(version=2)
        await trio.sleep(2 * REFRESH_S)
        assert (hosts(servers), broker.tests.acked()) == (["a.example.com"], [1])
        broker.set(name="a", url="https://b.example.com/", has_tests=True, enabled=False)
        await trio.sleep(2 * REFRESH_S)
        broker.put_test()
        await trio.sleep(1)
        assert hosts(servers)[1:] == ["b.example.com"]
        del broker.endpoints["a"]
        broker.revision += 1
        await trio.sleep(2 * REFRESH_S)
        broker.put_test()
        await trio.sleep(10)
        assert len(broker.tests.ready) == 1


async def test_a_defect_of_tests_passes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = Exchanging()
    broker.set(name="a", has_tests=True)

    async def breaks(count: int, wait_s: float, lease_s: float) -> Any:
        raise ZeroDivisionError

    own = broker.tests.take
    broker.tests.take = breaks  # type: ignore[method-assign]
    async with running(broker, servers, monkeypatch):
        broker.groups["a"].put()
        await trio.sleep(1)
        assert broker.groups["a"].acked() == [1]
        broker.tests.take = own  # type: ignore[method-assign]
        broker.put_test()
        await trio.sleep(10)
        assert broker.tests.acked() == [1]
