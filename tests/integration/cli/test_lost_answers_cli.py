"""Commands whose answer was lost with the connection: they print what they print without the loss, and what they do is
done once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.losing import LosingProxy
from tickwheel import sync
from tickwheel.errors import UnknownTopic
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.identity import IDENTIFIED
from tickwheel.protocol.receipts import Receipt, encode_receipt
from tickwheel_cli.main import root
from tickwheel_cli.messages import receive as receive_command
from tickwheel_cli.shared import session

HOUR = timedelta(hours=1)
SECRET = "whsec_" + "c2VjcmV0" * 4
_names = count()


class Place:
    """A topic, and a client by which a case is prepared; the topic's name is also that of a schedule."""

    def __init__(self, client: sync.Client) -> None:
        self.client = client
        self.topic = f"place-{next(_names)}"

    def made(self) -> None:
        """The topic."""
        self.client.create_topic(self.topic)

    def paused(self) -> None:
        """The topic, paused."""
        self.made()
        self.client.pause_topic(self.topic)

    def later(self) -> int:
        """A message that is due in an hour; its id."""
        return self.client.send(self.topic, b"1", key="k", delay=HOUR).id

    def due(self, **settings: Any) -> int:
        """A message that is due; its id."""
        self.client.create_topic(self.topic, **settings)
        return self.client.send(self.topic, b"1", key="k").id

    def delivered(self) -> int:
        """A message that the default group was given once, and gave back for later; its id."""
        message_id = self.due()
        with self.client.subscribe(self.topic) as subscription:
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            message.nack(HOUR, "not now")
        return message_id

    def fetched(self) -> str:
        """The receipt of a message that the default group was given."""
        self.due()
        fetched = self.client.fetch(self.topic, wait=timedelta(seconds=PATIENCE_S), lease=HOUR)
        (message,) = fetched
        return encode_receipt(self.topic, "default", Receipt(fetched.group_id, message.id, message.epoch))

    def dead(self) -> int:
        """A dead letter; its id."""
        self.due(max_attempts=1)
        with self.client.subscribe(self.topic) as subscription:
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            message.nack(error="no")
        (letter,) = self.client.browse(self.topic + ".dead")
        return letter.id

    def prepared(self) -> int:
        """A prepared message; its id."""
        return self.client.prepare(self.topic, b"1", key="k", delay=HOUR).id

    def scheduled(self) -> str:
        """A schedule; its name."""
        self.client.create_schedule(self.topic, self.topic, every=HOUR, body=b"1")
        return self.topic

    def endpoint(self) -> None:
        """An endpoint of the topic."""
        self.client.set_endpoint(self.topic, topic=self.topic, url="https://a.example", secrets=[SECRET])

    def endpoint_disabled(self) -> None:
        """An endpoint, disabled."""
        self.endpoint()
        self.client.disable_endpoint(self.topic)

    def tasks(self) -> None:
        """An endpoint for HTTP tasks."""
        self.client.set_endpoint(
            self.topic, topic=self.topic, allow_urls=["https://a.example/*"], secrets=[SECRET]
        )

    def schedule_paused(self) -> None:
        """A schedule, paused."""
        self.client.pause_schedule(self.scheduled())

    def group(self) -> None:
        """A group of the topic that is not done with a message."""
        self.due()
        self.client.create_group(self.topic, "g")

    def state(self) -> object:
        """What there is in the topic and its neighbours."""
        return [
            (topic.removeprefix(self.topic), one.key[:1], one.body, one.state, _groups(one.groups))
            for topic in (self.topic, self.topic + ".dead", self.topic + ".prepared")
            for one in self._browsed(topic)
        ]

    def _browsed(self, topic: str) -> Sequence[Any]:
        try:
            return self.client.browse(topic)
        except UnknownTopic:
            return []


def _groups(groups: Sequence[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(one["group"], one["state"], one["epoch"]) for one in groups]


Prepare = Callable[[Place], object]


class Case(NamedTuple):
    """A command, the answer that is lost, what is prepared, and the arguments: TOPIC stands for the topic's name, ID
    for the id that the preparation returns. ``is_told_apart``: False where what was stored at the first try may be
    told as a duplicate (docs/guarantees.md)."""

    command: str
    lost: FrameType
    prepare: Prepare | None
    arguments: str
    stdin: str = ""
    is_told_apart: bool = True


_TRANSACTION = """
{"send": {"topic": "TOPIC", "body": "2", "in": "1h"}}
{"cancel": {"topic": "TOPIC", "key": "k"}}
"""
_LINES = """
{"body": "1", "in": "1h", "key": "a"}
{"body": "2", "in": "1h", "key": "b"}
"""
_F = FrameType
CASES = (
    Case("send", _F.SEND_OK, Place.made, "TOPIC body --in 1h"),
    Case("send", _F.SEND_OK, Place.made, "TOPIC body --in 1h --key k", is_told_apart=False),
    Case("send", _F.OPEN_TOPIC_OK, None, "TOPIC body --in 1h"),
    Case("send", _F.SEND_OK, Place.made, "TOPIC --from-file -", _LINES, is_told_apart=False),
    Case("receive", _F.ACK_OK, Place.due, "TOPIC --count 1"),
    Case("receive", _F.NACK_OK, Place.due, "TOPIC --count 1 --nack 1h"),
    Case("ack", _F.ACK_OK, Place.fetched, "TOPIC default ID"),
    Case("nack", _F.NACK_OK, Place.fetched, "TOPIC default ID --in 1h --error late"),
    Case("extend", _F.EXTEND_OK, Place.fetched, "TOPIC default ID --by 1h"),
    Case("cancel", _F.CANCEL_OK, Place.later, "ID"),
    Case("cancel", _F.CANCEL_OK, Place.later, "TOPIC --key k --key unknown"),
    Case("cancel", _F.CHANGE_OK, Place.later, "TOPIC --all"),
    Case("reschedule", _F.RESCHEDULE_OK, Place.later, "TOPIC --key k --in 2h"),
    Case("reschedule", _F.CHANGE_OK, Place.later, "TOPIC --all --in 2h"),
    Case("redeliver", _F.REDELIVER_OK, Place.delivered, "ID --in 2h"),
    Case("redeliver", _F.CHANGE_OK, Place.delivered, "TOPIC --all --in 2h"),
    Case("transaction", _F.TRANSACTION_OK, Place.later, "-", _TRANSACTION),
    Case("prepared send", _F.PREPARE_OK, Place.made, "TOPIC body --in 1h"),
    Case("prepared send", _F.PREPARE_OK, Place.made, "TOPIC body --in 1h --key k"),
    Case("prepared commit", _F.DECIDE_OK, Place.prepared, "ID"),
    Case("prepared rollback", _F.DECIDE_OK, Place.prepared, "ID"),
    Case("dead replay", _F.REPLAY_DEAD_OK, Place.dead, "TOPIC"),
    Case("dead purge", _F.CHANGE_OK, Place.dead, "TOPIC --yes"),
    Case("schedules create", _F.SET_SCHEDULE_OK, None, "TOPIC --topic TOPIC --every 1d --body 1"),
    Case("schedules set", _F.SET_SCHEDULE_OK, Place.scheduled, "TOPIC --priority 7"),
    Case("schedules pause", _F.SET_SCHEDULE_OK, Place.scheduled, "TOPIC"),
    Case("schedules resume", _F.SET_SCHEDULE_OK, Place.schedule_paused, "TOPIC"),
    Case("schedules trigger", _F.TRIGGER_SCHEDULE_OK, Place.scheduled, "TOPIC"),
    Case("schedules delete", _F.DELETE_SCHEDULE_OK, Place.scheduled, "TOPIC"),
    Case(
        "endpoints set",
        _F.SET_ENDPOINT_OK,
        None,
        f"TOPIC --topic TOPIC --to https://a.example --secret {SECRET}",
    ),
    Case("endpoints set", _F.SET_ENDPOINT_OK, Place.endpoint, "TOPIC --rate 5 --expected-version 1"),
    Case("endpoints disable", _F.ENABLE_ENDPOINT_OK, Place.endpoint, "TOPIC --reason 410"),
    Case("endpoints enable", _F.ENABLE_ENDPOINT_OK, Place.endpoint_disabled, "TOPIC"),
    Case("endpoints test", _F.TEST_ENDPOINT_OK, Place.endpoint, "TOPIC --wait 0s"),
    Case("endpoints delete", _F.DELETE_ENDPOINT_OK, Place.endpoint, "TOPIC --yes"),
    Case("endpoints task", _F.SEND_OK, Place.tasks, "https://a.example/x body --topic TOPIC --in 1h"),
    Case("topics create", _F.SET_TOPIC_OK, None, "TOPIC --shards 2 --rate 5"),
    Case("topics set", _F.SET_TOPIC_OK, Place.made, "TOPIC --rate 5"),
    Case("topics pause", _F.SET_TOPIC_OK, Place.made, "TOPIC"),
    Case("topics resume", _F.SET_TOPIC_OK, Place.paused, "TOPIC"),
    Case("topics delete", _F.DELETE_TOPIC_OK, Place.later, "TOPIC --yes"),
    Case("groups create", _F.CREATE_GROUP_OK, Place.made, "TOPIC g"),
    Case("groups delete", _F.DELETE_GROUP_OK, Place.group, "TOPIC g --yes"),
    Case("groups set", _F.SET_GROUP_OK, Place.group, "TOPIC g --ignore-ordering-keys"),
    Case("groups seek", _F.SEEK_GROUP_OK, Place.group, "TOPIC g --to latest --yes"),
    Case("purge", _F.PURGE_OK, None, "--dry-run"),
)
_BY_NO_COMMAND = {
    FrameType.RESERVE_IDS,  # by Spark's jobs
    FrameType.DROP,  # by the pipeline's archive, and the inbox
    FrameType.RETURN,  # by programs
}
_OTHERS = {
    *("show", "query", "browse", "stats", "wheel", "dead list", "schedules list", "schedules show"),
    *("schedules next", "schedules preview", "topics list", "topics show", "groups list", "groups show"),
    *(
        "figures",
        "top",
        "audit",
        "history",
        "events",
        "endpoints list",
        "endpoints show",
        "endpoints attempts",
    ),
    "fetch",  # it is not repeated
    "clients disconnect",  # what it closes is no part of the store
    *("web", "push", "work", "flight"),  # with clients of their own
    "gateway credentials add",  # writes a file
    *("inspect", "backup", "repair", "restore", "serve", "config", "simulate", "bench", "completion", "help"),
    *("tokens", "demo"),  # of files; with a broker of its own
    "cluster",  # of what Kafka has
    *("pipeline", "outbox"),  # with clients of their own
}
"""Commands and groups of them that ask a broker for no change themselves."""
_LOOKS = {
    *(
        "topic",
        "topics",
        "browse",
        "group",
        "groups",
        "message",
        "messages",
        "stats",
        "wheel",
        "query",
        "query_arrow",
    ),
    *("schedule", "schedules", "ping", "log_place", "fetch", "disconnect", "audit", "clients", "figures"),
    *(
        "endpoint",
        "endpoints",
        "endpoints_since",
        "endpoint_attempts",
        "history",
        "events",
        "preview_schedule",
    ),
}
"""Methods of the client that change nothing, or are not repeated."""


def _commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command, full = group.get_command(context, name), f"{path}{name}"
        assert command is not None
        if isinstance(command, click.Group) and full not in _OTHERS:
            yield from _commands(command, f"{full} ")
        else:
            yield full, command


def test_each_command_that_changes_something_is_here() -> None:
    commands = dict(_commands(root))
    assert commands.keys() == {case.command for case in CASES} | _OTHERS
    assert {FrameType(one + 1) for one in IDENTIFIED - _BY_NO_COMMAND} <= {case.lost for case in CASES}
    for name in _OTHERS:
        callback = commands[name].callback
        called = (
            re.findall(r"client\.(\w+)\(", inspect.getsource(inspect.unwrap(callback))) if callback else []
        )
        assert set(called) <= _LOOKS, name


def _run(case: Case, place: Place, url: str, arm: Callable[[], None]) -> object:
    """What is printed, the exit code, and what there is afterwards, without what differs from place to place."""
    message_id = None if case.prepare is None else case.prepare(place)
    arm()
    arguments = [
        {"TOPIC": place.topic, "ID": str(message_id)}.get(one, one)
        for one in f"{case.command} {case.arguments}".split()
    ]
    done = CliRunner().invoke(
        root, arguments, input=case.stdin.replace("TOPIC", place.topic), env={"TICKWHEEL_URL": url}
    )
    assert done.exit_code in (0, 1), (done.stdout, done.stderr, done.exception)
    text = f"{done.stdout}|{done.stderr}".replace(place.topic, "TOPIC")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-][\d:]+)", "TIME", text)
    text = re.sub(r"in [\d.]+ s \([\d,]+/s\)", "in S", text)
    text = re.sub(r"\b\d{4,}\b", "ID", text) if case.is_told_apart else ""
    return text, done.exit_code, place.state()


def test_the_same_is_printed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (session, receive_command):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", PATIENCE_S)
    directory = tmp_path_factory.mktemp("lost-cli") / "data"
    with (
        Daemon(directory, segment_bytes="64MiB") as daemon,
        LosingProxy(daemon.url) as proxy,
        sync.Client(daemon.url) as client,
    ):
        client.reserve_ids(1_000)  # an id has four digits, a count has less
        for case in CASES:

            def arm(lost: FrameType = case.lost) -> None:
                proxy.lose = lost

            expected = _run(case, Place(client), proxy.url, lambda: None)
            before = proxy.lost
            found = _run(case, Place(client), proxy.url, arm)
            assert found == expected, case
            assert proxy.lost == before + 1, case
