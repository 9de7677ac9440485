"""Task messages with wrong types in headers, properties and bodies: a worker lives on, and has none of them again."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import tickwheel.sync
from tests.integration.celery.test_workers import Place
from tests.support.clients.strange import send_strange
from tests.support.processes.daemon_harness import Daemon
from tickwheel.celery.replies import ReplyTopics
from tickwheel.celery.transport.envelope import decode
from tickwheel.celery.waiting import Outcome, Queue, WaitingTasks
from tickwheel_bench.processes import wait_until

_WRONG: Final[list[Any]] = [
    True, -1, 1.5, 10**30, "", "\u0000wrong\n", "\ud800", "x" * 5_000, [], [None], [1, "2"], {}, {"a": [1]}, [[[]], {}],
]  # fmt: skip
_BODIES: Final[list[Any]] = [
    None, 1, "text", [], [[], {}], [[], {}, {}, {}], {}, {"args": 1}, [1, {}, {}], [[], 1, {}], [[], {}, 1],
    [[], {}, [1]], [[], {}, {"chord": 1}], [[], {}, {"callbacks": 1}], [[], {}, {"errbacks": [1]}],
    [[], {}, {"chain": {"a": 1}}], {"task": "note"}, {"task": [1], "id": 2, "args": [], "kwargs": {}},
]  # fmt: skip
_SEED: Final = 20_261_125


def mutants(good: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was changed, and the message. Each wrong value of each field; too many, of which a test takes some."""
    optional = (
        "stamps",
        "stamped_headers",
        "compression",
        "shadow",
        "group_index",
        "tickwheel_eta",
        "headers",
    )
    for name in {*good["headers"], *optional}:
        for value in _WRONG:
            yield f"header {name}: {value!r}"[:80], _with(good, "headers", name, value)
    for name in {*good["properties"], "expiration", "reply_to", "priority", "body_encoding", "type"}:
        for value in _WRONG:
            yield f"property {name}: {value!r}"[:80], _with(good, "properties", name, value)
    for name in ("content-type", "content-encoding", "headers", "properties"):
        for value in (*_WRONG, "application/x-none", "latin-17"):
            yield f"{name}: {value!r}"[:80], {**good, name: value}
    for body in _BODIES:
        encoded = base64.b64encode(json.dumps(body).encode()).decode()
        yield f"body {body!r}", {**good, "body": encoded}
    for text in ("no base64", "", base64.b64encode(b"{").decode(), base64.b64encode(b"\xff\xfe").decode()):
        yield f"body as it is {text!r}", {**good, "body": text}


def protocol_1(good: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same of the older protocol, where all stands in the body."""
    task = {"task": "note", "id": "one", "args": ["protocol 1"], "kwargs": {}, "retries": 0, "eta": None}
    for name in (*task, "expires", "timelimit", "chord", "utc", "callbacks"):
        for value in _WRONG:
            body = json.dumps({**task, name: value}).encode()
            encoded = base64.b64encode(body).decode()
            yield f"protocol 1, {name}: {value!r}"[:80], {**good, "headers": {}, "body": encoded}


def _with(good: dict[str, Any], part: str, name: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(good)
    changed[part][name] = value
    return changed


def good_message(daemon: Daemon, queue: str, place: Place) -> dict[str, Any]:
    """One as Celery sends it."""
    place.app.send_task("note", ["mutant"], queue=queue, ignore_result=True)
    with tickwheel.sync.Client(daemon.url) as client:
        (message,) = client.browse(queue)
        assert decode(message.body)["headers"]["task"] == "note"
        client.delete_topic(queue)
    found: dict[str, Any] = json.loads(message.body)
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_malformed_messages_do_not_end_a_worker(daemon: Daemon, place: Place, queue: str, pool: str) -> None:
    good = good_message(daemon, f"{queue}-model", place)
    chosen = random.Random(f"{_SEED}{pool}")
    bad = chosen.sample([*mutants(good)], 200) + chosen.sample([*protocol_1(good)], 40)
    with place.worker("--pool", pool, "-c", "2") as worker, tickwheel.sync.Client(daemon.url) as client:
        client.send_many(queue, [json.dumps(message).encode() for _, message in bad])
        send_strange(daemon.url, queue)
        place.send("note", "good")
        wait_until(lambda: "good" in place.lines(), lambda: worker.log.read_text()[-5_000:])
        # Each was run, or is a dead letter, and none waits or is tried again.
        wait_until(
            lambda: client.group(queue, "celery").backlog == 0, lambda: worker.log.read_text()[-5_000:]
        )
        log = worker.log.read_text()
        assert log.count(" ready.") == 1, log[-5_000:]
        assert client.group(queue, "celery").dead > 0
        assert "Unrecoverable" not in log
        assert "Connection to broker lost" not in log
        assert worker.process is not None
        assert worker.process.poll() is None
        assert worker.stop() == 0


def test_tasks_that_wait_beside_what_others_wrote(daemon: Daemon, queue: str, place: Place) -> None:
    count = send_strange(daemon.url, queue, deliver_at_ms=4_000_000_000_000)
    place.app.send_task(
        "note", ["later"], queue=queue, task_id="the-one", countdown=3_600, ignore_result=True
    )
    queues = [Queue(queue, queue)]
    with tickwheel.sync.Client(daemon.url) as client:
        waiting = WaitingTasks(client, queues)
        found = list(waiting)
        assert len(found) == count + 1
        assert [one.name for one in found if one.id == "the-one"] == ["note"]
        assert len(waiting.earliest(1_000)) == count + 1
        outcomes, cancelled = waiting.cancel([*{one.id for one in found}, "none"])
        assert outcomes["the-one"] is Outcome.CANCELLED
        assert outcomes["none"] is Outcome.UNKNOWN
        assert "the-one" in {one.id for one in cancelled}
        ReplyTopics(client).sweep(timedelta(hours=1), dry_run=True)


@pytest.fixture
def place(daemon: Daemon, queue: str, tmp_path: Path) -> Iterator[Place]:
    one = Place(daemon.url, queue, tmp_path)
    with one.app:
        yield one
