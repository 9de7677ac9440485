"""Topics of results that are left: which are deleted, and which are not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from tests.support.frameworks.celery_apps import app_of
from tickwheel import sync
from tickwheel.celery.commands import tickwheel
from tickwheel.celery.replies import ReplyTopics
from tickwheel.testing import broker

NOW, HOUR = timedelta(0), timedelta(hours=1)


@pytest.fixture(scope="module")
def client() -> Iterator[sync.Client]:
    with broker() as running, running.sync_client() as one:
        yield one


@pytest.fixture
def left(client: sync.Client) -> Iterator[str]:
    """A topic of results that nothing reads."""
    name = str(uuid.uuid4())
    client.send(name, b"{}")
    yield name
    if any(topic.name == name for topic in client.topics()):
        client.delete_topic(name)


def names(client: sync.Client) -> list[str]:
    return [topic.name for topic in client.topics()]


def test_what_is_left_is_deleted(client: sync.Client, left: str) -> None:
    client.send("mail", b"{}")
    assert ReplyTopics(client).sweep(NOW, dry_run=True) == [left]
    assert left in names(client)
    assert ReplyTopics(client).sweep(NOW) == [left]
    assert left not in names(client)
    assert "mail" in names(client)


def test_new_results_are_kept(client: sync.Client, left: str) -> None:
    assert ReplyTopics(client).sweep(HOUR) == []


def test_what_is_read_is_kept(client: sync.Client, left: str) -> None:
    with client.subscribe(left, group="celery"):
        assert ReplyTopics(client).sweep(NOW) == []
    assert ReplyTopics(client).sweep(HOUR) == []  # it was read just now


@pytest.mark.parametrize("delay", [None, HOUR])
def test_a_queue_of_tasks_is_kept(client: sync.Client, left: str, delay: timedelta | None) -> None:
    client.send(left, b"{}", headers={"celery-task": "mail.send", "celery-id": "1"}, delay=delay)
    assert ReplyTopics(client).sweep(NOW) == []


def test_the_command(client: sync.Client, left: str) -> None:
    app = app_of("sweep", client.url)
    assert run(app, "--idle", "1h") == "0 topics deleted\n"
    assert run(app, "--idle", "0s", "--dry-run") == f"{left}\n1 topic would be deleted\n"
    assert run(app, "--idle", "0s", "--json") == f'["{left}"]\n'
    assert "--idle" in run(app, "--idle", "soon", exit_code=2)


def run(app: Celery, *words: str, exit_code: int = 0) -> str:
    context = CLIContext(app=app, no_color=True, workdir=None)
    result = CliRunner().invoke(tickwheel, ["sweep", *words], obj=context)
    assert result.exit_code == exit_code, result.output
    return result.output
