"""One client for each token: opened when it is needed, closed when it is not, and never more than so many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tickwheel import Client
from tickwheel.errors import (
    BadToken,
    LoginRequired,
    NotConnected,
    ShuttingDown,
    TooManyAttempts,
    TooManyConnections,
)
from tickwheel.sharing.attempts import MAX_WRONG
from tickwheel.sharing.clients import Clients


class Fake:
    """A client that counts."""

    def __init__(self, token: str, place: Place) -> None:
        self.token = token
        self._place = place

    @property
    def is_connected(self) -> bool:
        return self.token in self._place.connected

    async def __aenter__(self) -> Fake:
        await trio.sleep(0.1)
        if self.token.startswith("bad"):
            raise BadToken
        self._place.open.append(self.token)
        self._place.connected.add(self.token)
        self._place.made += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.open.remove(self.token)


class Place:
    """What is open, and the clients under test."""

    def __init__(self, **options: Any) -> None:
        self.open: list[str] = []
        self.made = 0
        self.connected: set[str] = set()
        self.named: list[str] = []
        self.clients = Clients(open_client=self._make, **options)

    def _make(self, token: str, address: str) -> Client:
        self.named.append(address)
        return cast(Client, Fake(token, self))

    async def use(self, token: str, seconds: float = 0.0, address: str = "192.0.2.1") -> None:
        """As a request does."""
        async with self.clients.client(token, address) as client:
            assert cast(Any, client).token == token
            await trio.sleep(seconds)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    found = Place(idle_s=60, most=2)
    async with found.clients.running():
        yield found
    assert found.open == []


async def test_one_client_serves_all_requests_of_a_token(place: Place, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(place.use, "a", 1)
            nursery.start_soon(place.use, "", 1)
    assert (place.made, sorted(place.open)) == (2, ["", "a"])


async def test_one_that_is_there_is_had_at_once(place: Place, autojump_clock: MockClock) -> None:
    use = place.clients.client("a", "192.0.2.1")
    assert use.at_once() is None, "none was asked for"
    assert place.made == len(place.clients) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.use, "a")
        await wait_all_tasks_blocked()
        assert use.at_once() is None, "it is being opened"
    assert cast(Any, use.at_once()).token == "a"
    assert place.clients.client("b", "192.0.2.1").at_once() is None
    await trio.sleep(200)
    assert place.open == ["a"], "it is in use"
    await use.__aexit__(None, None, None)
    await trio.sleep(59)
    assert place.open == ["a"]
    await trio.sleep(2)
    assert place.open == []
    assert use.at_once() is None, "it was idle"


async def test_one_that_was_had_at_once_makes_no_room(place: Place, autojump_clock: MockClock) -> None:
    await place.use("b")
    await place.use("a")
    use = place.clients.client("b", "192.0.2.1")
    assert use.at_once() is not None
    await place.use("c")
    await wait_all_tasks_blocked()
    assert sorted(place.open) == ["b", "c"], "the one that was used longest ago made room"
    await use.__aexit__(None, None, None)


async def test_it_is_closed_when_it_was_idle(place: Place, autojump_clock: MockClock) -> None:
    await place.use("a")
    await trio.sleep(59)
    await place.use("a", 200)  # in use it is not idle
    assert place.open == ["a"]
    await trio.sleep(59)
    assert place.open == ["a"]
    await trio.sleep(2)
    assert (place.open, place.made, len(place.clients)) == ([], 1, 0)
    await place.use("a")
    assert place.made == 2


async def test_the_one_that_was_used_longest_ago_makes_room(place: Place, autojump_clock: MockClock) -> None:
    for token in ("a", "b", "a", "c"):
        await place.use(token)
    await wait_all_tasks_blocked()
    assert sorted(place.open) == ["a", "c"]


async def test_there_are_not_more_than_so_many(place: Place, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.use, "a", 5)
        nursery.start_soon(place.use, "b", 5)
        await trio.sleep(1)
        with pytest.raises(TooManyConnections, match="2 different tokens"):
            await place.use("c")
        await place.use("a")
    await place.use("c")


async def test_a_token_that_is_refused_is_tried_anew(place: Place, autojump_clock: MockClock) -> None:
    for _ in range(2):
        with pytest.raises(BadToken):
            await place.use("bad")
        assert len(place.clients) == 0


async def test_after_a_refusal_the_next_request_has_a_new_client(
    place: Place, autojump_clock: MockClock
) -> None:
    async def refused() -> None:
        async with place.clients.client("a", "192.0.2.1"):
            raise BadToken

    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.use, "a", 5)
        await trio.sleep(1)
        with pytest.raises(BadToken):
            await refused()
        await place.use("a")
        assert place.made == 2
        assert place.open == ["a", "a"]  # the other request still has the old one
    await wait_all_tasks_blocked()
    assert place.open == ["a"]


async def test_only_inside_of_its_block() -> None:
    with pytest.raises(ShuttingDown):
        await Place().use("a")
    with pytest.raises(ShuttingDown, match="asleep"):
        await Place(not_running=lambda: ShuttingDown("The cat is asleep.")).use("a")


async def test_whether_there_is_a_connection() -> None:
    place = Place()
    async with place.clients.running():
        assert place.clients.is_connected, "there is none that could have one"
        await place.use("a")
        await place.use("b")
        assert place.clients.is_connected
        place.connected -= {"a"}
        assert place.clients.is_connected
        place.connected -= {"b"}
        assert not place.clients.is_connected


async def test_a_broker_that_would_know_us_without_a_token() -> None:
    place = Place(needs_token=True)
    async with place.clients.running():
        with pytest.raises(LoginRequired):
            await place.use("")
        await place.use("a")


async def test_a_client_for_each_address_where_the_broker_believes_it(autojump_clock: MockClock) -> None:
    for names, made in ((False, 1), (True, 2)):
        place = Place(names_addresses=names)
        async with place.clients.running():
            for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
                await place.use("a", address=address)
        assert (place.made, place.named) == (made, ["192.0.2.1", "192.0.2.2"][:made])


async def test_wrong_tokens_of_one_address_are_its_own_affair(autojump_clock: MockClock) -> None:
    place = Place()
    async with place.clients.running():
        await place.use("known")
        for number in range(MAX_WRONG):
            with pytest.raises(BadToken):
                await place.use(f"bad {number}")
        with pytest.raises(TooManyAttempts, match=r"5 failed log-ins from 192\.0\.2\.1; wait 60 s"):
            await place.use("new")
        await place.use("new", address="192.0.2.2")
        await trio.sleep(61)  # all clients are closed
        for number in range(MAX_WRONG):
            with pytest.raises(BadToken):
                await place.use(f"bad {number}")
        await place.use("known")
        assert place.open == ["known"]


async def test_what_is_wrong_with_the_broker_is_no_guess() -> None:
    def out_of_order(token: str, address: str) -> Client:
        raise NotConnected

    clients = Clients(open_client=out_of_order)
    async with clients.running():
        for number in range(2 * MAX_WRONG):
            with pytest.raises(NotConnected):
                async with clients.client(f"token {number}", "192.0.2.1"):
                    pytest.fail("there is no client")
