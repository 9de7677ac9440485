"""Programs declare what they need when they start: again and again, several at once, after somebody has paused it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

import anyio
import pytest

import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import sync
from tickwheel.errors import ScheduleExists, TopicExists

pytestmark = pytest.mark.shared_daemon

AT_ONCE = 6
URL = "https://shop.example/hooks"
_numbers = count()


class Declared(NamedTuple):
    """A kind of thing that is declared, in all ways."""

    sdk: Callable[[sync.Client, str], Any]
    cli: Callable[[str], list[str]]
    path: Callable[[str], str]
    http: Callable[[str], dict[str, Any]]
    pause: Callable[[sync.Client, str], Any]
    """Somebody stops it."""
    state: Callable[[sync.Client, str], Any]
    """As it is; it stays so."""
    is_paused: Callable[[Any], bool]


KINDS = {
    "schedule": Declared(
        sdk=lambda client, name: client.create_schedule(name, "t", every=timedelta(hours=1), body=b"x"),
        cli=lambda name: ["schedules", "create", name, "--topic", "t", "--every", "1h", "--body", "x"],
        path=lambda name: f"/v1/schedules/{name}",
        http=lambda name: {"topic": "t", "every": "1h", "text": "x"},
        pause=lambda client, name: client.pause_schedule(name),
        state=lambda client, name: client.schedule(name, count=0),
        is_paused=lambda found: found.paused,
    ),
    "topic": Declared(
        sdk=lambda client, name: client.create_topic(name, rate=5, max_attempts=3),
        cli=lambda name: ["topics", "create", name, "--rate", "5", "--max-attempts", "3"],
        path=lambda name: f"/v1/topics/{name}",
        http=lambda name: {"settings": {"rate": 5, "max_attempts": 3}},
        pause=lambda client, name: client.pause_topic(name),
        state=lambda client, name: client.topic(name),
        is_paused=lambda found: found.paused,
    ),
    "group": Declared(
        sdk=lambda client, name: client.create_group(name, "g"),
        cli=lambda name: ["groups", "create", name, "g"],
        path=lambda name: f"/v1/topics/{name}/groups/g",
        http=lambda name: {},
        pause=lambda client, name: client.pause_topic(name),
        state=lambda client, name: (client.topic(name), client.group(name, "g")),
        is_paused=lambda found: found[0].paused,
    ),
    "endpoint": Declared(
        sdk=lambda client, name: client.set_endpoint(name, topic=name, url=URL, rate=5),
        cli=lambda name: ["endpoints", "set", name, "--topic", name, "--to", URL, "--rate", "5"],
        path=lambda name: f"/v1/endpoints/{name}",
        http=lambda name: {"topic": name, "url": URL, "rate": 5},
        pause=lambda client, name: client.disable_endpoint(name, "they are moving"),
        state=lambda client, name: client.endpoint(name),
        is_paused=lambda found: not found.enabled,
    ),
}


@pytest.fixture
def client(daemon: Daemon) -> Any:
    with sync.Client(daemon.url) as one:
        yield one


class Ways:
    """Declares one thing, once or by several programs at once."""

    def __init__(self, daemon: Daemon, shell: Shell, kind: Declared, name: str) -> None:
        self._url = daemon.url
        self._shell = shell
        self._kind = kind
        self._name = name

    def declare(self, way: str, times: int) -> None:
        """Fails if one of them is refused."""
        if way == "cli":
            started = [self._shell.start(*self._kind.cli(self._name)) for _ in range(times)]
            for one in started:
                _, said = one.communicate(timeout=PATIENCE_S)
                assert one.returncode == 0, said
            return
        call = {"sdk": self._by_sdk, "http": self._by_http}[way]
        with ThreadPoolExecutor(times) as pool:
            for done in [pool.submit(call) for _ in range(times)]:
                done.result(PATIENCE_S)

    def _by_sdk(self) -> None:
        with sync.Client(self._url) as client:
            self._kind.sdk(client, self._name)

    def _by_http(self) -> None:
        async def put() -> None:
            app = tickwheel.web.app(self._url)
            async with app.router.lifespan_context(app):
                answer = await Caller(app)("PUT", self._kind.path(self._name), self._kind.http(self._name))
                assert answer.status in (200, 201), answer.json

        anyio.run(put, backend="trio")


@pytest.mark.parametrize("way", ["sdk", "cli", "http"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_declaration_may_be_made_again(
    daemon: Daemon, shell: Shell, client: sync.Client, kind: str, way: str
) -> None:
    name, declared = f"declared-{next(_numbers)}", KINDS[kind]
    if kind == "group":
        client.create_topic(name)
    ways = Ways(daemon, shell, declared, name)
    ways.declare(way, AT_ONCE)
    made = declared.state(client, name)
    ways.declare(way, 1)
    assert declared.state(client, name) == made
    declared.pause(client, name)
    paused = declared.state(client, name)
    assert declared.is_paused(paused)
    ways.declare(way, 1)
    assert declared.state(client, name) == paused, "who declares it does not resume it"


def test_other_settings_are_refused_as_before(client: sync.Client) -> None:
    for name in ("running", "paused"):
        client.create_topic(name, rate=5)
        client.create_schedule(name, name, every=timedelta(hours=1))
        if name == "paused":
            client.pause_topic(name)
            client.pause_schedule(name)
        with pytest.raises(TopicExists):
            client.create_topic(name, rate=6)
        with pytest.raises(ScheduleExists):
            client.create_schedule(name, name, every=timedelta(hours=2))


def test_what_is_deleted_while_it_is_declared_over_http_is_made(
    daemon: Daemon, client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule, made and deleted by somebody between two requests, and a group, deleted before it is shown."""
    create, create_group = tickwheel.Client.create_schedule, tickwheel.Client.create_group
    left = {"schedule": 2, "group": 1}

    def happens(kind: str) -> bool:
        left[kind] -= 1
        return left[kind] >= 0

    async def raced(asked: tickwheel.Client, name: str, topic: str, **fields: Any) -> Any:
        if happens("schedule"):
            await create(asked, name, topic, every=timedelta(hours=2))
            try:
                return await create(asked, name, topic, **fields)
            finally:
                await asked.delete_schedule(name)
        return await create(asked, name, topic, **fields)

    async def deleted(asked: tickwheel.Client, topic: str, name: str, **fields: Any) -> bool:
        made = await create_group(asked, topic, name, **fields)
        if happens("group"):
            await asked.delete_group(topic, name)
        return made

    async def put() -> None:
        app = tickwheel.web.app(daemon.url)
        async with app.router.lifespan_context(app):
            call = Caller(app)
            schedule = await call("PUT", "/v1/schedules/raced", KINDS["schedule"].http("raced"))
            assert (schedule.status, schedule.json["every"]) == (201, "1h")
            group = await call("PUT", "/v1/topics/raced/groups/g", {})
            assert (group.status, group.json["name"]) == (201, "g")

    client.create_topic("raced")
    monkeypatch.setattr(tickwheel.Client, "create_schedule", raced)
    monkeypatch.setattr(tickwheel.Client, "create_group", deleted)
    anyio.run(put, backend="trio")
