"""The whole of `tickwheel push`: follows the endpoints that the broker keeps, and serves each of them."""

from __future__ import annotations

import logging
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup

from tickwheel import Client, Endpoint, TickwheelError
from tickwheel.errors import EndpointChanged, UnknownEndpoint
from tickwheel.protocol import endpoint_tests
from tickwheel.protocol.endpoint_states import ToldState
from tickwheel_push.clocks import Clocks
from tickwheel_push.delivery import Asking
from tickwheel_push.http.addresses import AddressRefused, Allowed
from tickwheel_push.http.exchange import Exchange
from tickwheel_push.http.resolver import Resolver, SystemResolver
from tickwheel_push.intake import Intake, Queue
from tickwheel_push.tally import Tally
from tickwheel_push.target import Target
from tickwheel_push.tasks import Tasks
from tickwheel_push.telling import Telling, refused, served
from tickwheel_push.trials import Trials

REFRESH_S: Final = 1.0
DRAIN_S: Final = 30.0
AFTER_DEFECT_S: Final = 5.0

Server: TypeAlias = Target | Tasks

_log = logging.getLogger("tickwheel.push")


class Exchanging(Asking, Protocol):
    """Makes requests for one endpoint, within its block."""

    async def __aenter__(self) -> Exchanging: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What who runs the process decides."""

    allowed: Allowed = field(default_factory=Allowed)
    trusted: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    """Whose certificates of endpoints are believed."""
    refresh_s: float = REFRESH_S
    """So often it looks for other endpoints."""
    drain_s: float = DRAIN_S
    """So long it waits, when it ends, for answers to what is on its way."""
    resolver: Callable[[], Resolver] = SystemResolver
    """Makes one for each endpoint."""


class Surroundings:
    """What endpoints are served with. That of tests asks no network."""

    def __init__(self, settings: Settings, clocks: Clocks | None = None) -> None:
        self._settings = settings
        self.clocks = clocks or Clocks()

    def queue(self, client: Client, endpoint: Endpoint) -> Queue:
        """Where its messages come from."""
        return Intake(client, endpoint.topic, endpoint.group)

    def tests(self, client: Client, topic: str) -> Queue:
        """Where the tests of a topic's endpoints come from."""
        return Intake(client, endpoint_tests.tests_topic(topic), endpoint_tests.GROUP)

    def exchange(self, endpoint: Endpoint) -> Exchanging:
        """Who makes its requests."""
        settings = self._settings
        return Exchange(settings.allowed, settings.resolver(), settings.trusted)


class Push:
    """Serves all endpoints that its client may see whole."""

    def __init__(
        self, client: Client, settings: Settings, tally: Tally, surroundings: Surroundings | None = None
    ) -> None:
        self._client = client
        self._settings = settings
        self._surroundings = surroundings or Surroundings(settings)
        self._group: TaskGroup | None = None
        self._tally = tally
        self._revision = 0
        """Of the endpoints that are known; 0: they are to be asked for anew."""
        self._knows_endpoints = False
        self._serving: dict[str, tuple[Endpoint, Server]] = {}
        self._trying: dict[str, Trials] = {}
        """By topic."""
        self._running: Counter[str] = Counter()
        """By name, with those that are stopped and not yet at their ends."""
        self._there: set[str] = set()
        """Names of those that the broker has."""
        self._told: set[str] = set()
        """Names of those that have figures."""
        self._gone: dict[str, tuple[Endpoint, str]] = {}
        """Those that are not to be called, as they were when they said so, and what they said: the broker may not know
        it yet."""
        self._refused: dict[str, str] = {}
        """Why those are not served that may not be."""
        self._telling = Telling(client)
        self._stopping = anyio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether it knows the endpoints, and has a connection."""
        return self._knows_endpoints and self._client.is_connected

    async def look(self) -> None:
        """Brings the figures of this moment into the tally."""
        self._tally.serves(len(self._serving))
        self._tally.states(self.states)
        for _, server in self._serving.values():
            server.tell()

    @property
    def states(self) -> list[ToldState]:
        """What becomes of the messages of those that are not disabled."""
        clocks = self._surroundings.clocks
        found = {name: refused(name, reason) for name, reason in self._refused.items()}
        for name, (_, server) in self._serving.items():
            found[name] = served(name, server.failing, clocks)
        return [found[name] for name in sorted(found)]

    @property
    def asking(self) -> list[Endpoint]:
        """Those whose messages are asked for at this moment; the others have no room."""
        return [endpoint for endpoint, server in self._serving.values() if server.has_room]

    @property
    def asking_tests(self) -> list[str]:
        """Topics whose endpoints' tests are asked for at this moment."""
        return [topic for topic, trials in self._trying.items() if trials.has_room]

    def stop(self) -> None:
        """Takes nothing more, waits for what is on its way, and gives back what is left then."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it is to end."""
        return self._stopping.is_set()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Until it is stopped. ``ready``: called when the endpoints are served. Raises TickwheelError if it cannot
        learn them at all."""
        endpoints = await self._news()
        async with anyio.create_task_group() as group:
            self._group = group
            self._serve_these(endpoints or [], group)
            ready()
            with anyio.CancelScope() as following:
                group.start_soon(self._end, following)
                await self._follow()
            for server in [*(server for _, server in self._serving.values()), *self._trying.values()]:
                server.stop()
            group.cancel_scope.deadline = anyio.current_time() + self._settings.drain_s

    async def _end(self, following: anyio.CancelScope) -> None:
        await self._stopping.wait()
        following.cancel()

    # Following the endpoints ---------------------------------------------------------------------

    async def _follow(self) -> None:
        told = ""
        while True:
            try:
                await self.tell()
                await anyio.sleep(self._settings.refresh_s)
                await self.refresh()
                told = ""
            except TickwheelError as error:
                if error.code != told:
                    _log.warning("whether endpoints were changed is not known now: %s", error)
                told = error.code
                await anyio.sleep(self._settings.refresh_s)

    async def refresh(self) -> bool:
        """Looks for other endpoints now, while it runs; whether there were any. Raises TickwheelError."""
        endpoints = await self._news()
        if endpoints is None or self._group is None:
            return False
        self._serve_these(endpoints, self._group)
        return True

    async def tell(self) -> None:
        """Has the broker know what becomes of endpoints' messages. Raises TickwheelError."""
        await self._telling.tell(self.states)

    async def _news(self) -> list[Endpoint] | None:
        """All endpoints; None: they are as they were."""
        found = await self._client.endpoints_since(self._revision)
        if found is None:
            return None
        self._revision, self._knows_endpoints = found.revision, True
        return found.endpoints

    def _serve_these(self, endpoints: list[Endpoint], group: TaskGroup) -> None:
        """Begins, changes and ends what serves them. What is on its way comes to its end in any case."""
        there = {endpoint.name: endpoint for endpoint in endpoints}
        self._gone = {
            name: gone
            for name, gone in self._gone.items()
            if name in there and _is_same(gone[0], there[name])
        }
        refused_before, self._refused = self._refused, {}
        wanted = {name: endpoint for name, endpoint in there.items() if self._may_serve(endpoint)}
        for name, reason in self._refused.items():
            if refused_before.get(name) != reason:
                _log.warning("endpoint %r is not served, and its messages wait: %s", name, reason)
        for name, (known, server) in list(self._serving.items()):
            endpoint = wanted.get(name)
            if endpoint is None or not _is_continued(known, endpoint):
                server.stop()
                del self._serving[name]
            elif endpoint.version != known.version:
                server.change(endpoint)
                self._serving[name] = endpoint, server
        for name in wanted.keys() - self._serving.keys():
            self._start(wanted[name], group)
        self._try_these(endpoints, group)
        self._there = set(there)
        self._forget()

    def _try_these(self, endpoints: list[Endpoint], group: TaskGroup) -> None:
        """Also those that are disabled, or that may not be called: then that is what comes of a test."""
        tested: dict[str, dict[str, Endpoint]] = defaultdict(dict)
        for endpoint in endpoints:
            if endpoint.has_tests and endpoint.url and not endpoint.is_shortened:
                tested[endpoint.topic][endpoint.name] = endpoint
        for topic in self._trying.keys() - tested.keys():
            self._trying.pop(topic).stop()
        for topic, some in tested.items():
            if topic in self._trying:
                self._trying[topic].change(some)
                continue
            around = self._surroundings
            queue = around.tests(self._client, topic)
            trials = Trials(
                endpoints=some,
                queue=queue,
                exchange=around.exchange,
                allowed=self._settings.allowed,
                clocks=around.clocks,
            )
            self._trying[topic] = trials
            group.start_soon(self._try, topic, trials)

    async def _try(self, topic: str, trials: Trials) -> None:
        try:
            await trials.run()
        except Exception:  # a defect concerns these tests alone
            _log.exception("tests of endpoints of %r are not made for a while, because of a defect", topic)
            await anyio.sleep(AFTER_DEFECT_S)
        if self._trying.get(topic) is trials:
            del self._trying[topic]  # it has ended by itself
            self._revision = 0

    def _forget(self) -> None:
        """Endpoints that the broker has no more, when the last requests to them are over."""
        for name in self._told.difference(self._there, self._running):
            self._tally.forget(name)
            self._told.discard(name)

    def _may_serve(self, endpoint: Endpoint) -> bool:
        if not endpoint.enabled:
            return False
        if endpoint.name in self._gone:
            self._refused[endpoint.name] = self._gone[endpoint.name][1]
            return False
        try:
            if endpoint.is_shortened:
                raise AddressRefused("its secrets are not shown: the token needs push for its topic")
            if endpoint.url:
                self._settings.allowed.location(endpoint.url)
        except AddressRefused as error:
            self._refused[endpoint.name] = str(error)
            return False
        return True

    def _start(self, endpoint: Endpoint, group: TaskGroup) -> None:
        exchange = self._surroundings.exchange(endpoint)
        queue = self._surroundings.queue(self._client, endpoint)
        tally, allowed, clocks = (
            self._tally.of(endpoint.name),
            self._settings.allowed,
            self._surroundings.clocks,
        )
        server: Server
        if endpoint.url:
            server = Target(
                endpoint=endpoint,
                queue=queue,
                exchange=exchange,
                allowed=allowed,
                tally=tally,
                disable=self._disable,
                clocks=clocks,
            )
        else:
            server = Tasks(
                endpoint=endpoint, queue=queue, exchange=exchange, allowed=allowed, tally=tally, clocks=clocks
            )
        self._serving[endpoint.name] = endpoint, server
        self._running[endpoint.name] += 1
        self._told.add(endpoint.name)
        group.start_soon(self._serve, endpoint.name, server, exchange)

    async def _serve(self, name: str, server: Server, exchange: Exchanging) -> None:
        try:
            async with exchange:
                await server.run()
        except Exception:  # a defect concerns this endpoint alone
            _log.exception("endpoint %r is not served for a while, because of a defect", name)
            await anyio.sleep(AFTER_DEFECT_S)
        self._running -= Counter([name])
        self._forget()
        if self._serving.get(name, (None, None))[1] is server:
            del self._serving[name]  # it has ended by itself
            self._revision = 0  # so that it is begun anew, if it is still to be served

    async def _disable(self, endpoint: Endpoint, reason: str) -> None:
        """Nothing is sent to it until somebody enables it; the broker is told, if it lets us."""
        name = endpoint.name
        if name in self._gone:
            return
        self._refused[name] = f"disabled here: {reason}"
        self._gone[name] = endpoint, self._refused[name]
        _log.warning("endpoint %r is disabled: %s", name, reason)
        while True:
            try:
                await self._client.disable_endpoint(name, reason, expected_version=endpoint.version)
                return
            except (EndpointChanged, UnknownEndpoint):
                self._gone.pop(name, None)  # another one has been set meanwhile
                self._revision = 0
                return
            except TickwheelError as error:
                if not error.retryable:
                    _log.warning("endpoint %r is disabled here only: %s", name, error)
                    return
            await anyio.sleep(self._settings.refresh_s)


def _is_same(one: Endpoint, other: Endpoint) -> bool:
    """Whether nothing of it was changed. Versions of one that is made anew begin anew."""
    return (one.created_ms, one.version) == (other.created_ms, other.version)


def _is_continued(known: Endpoint, endpoint: Endpoint) -> bool:
    """Whether it is a later version of the same."""
    return (known.topic, known.created_ms, bool(known.url)) == (
        endpoint.topic,
        endpoint.created_ms,
        bool(endpoint.url),
    )
