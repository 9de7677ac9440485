"""Queues that delete themselves, at a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tickwheel import sync
from tickwheel.celery.names import queue_topic
from tickwheel.celery.transport.own_queues import OwnQueues
from tickwheel.celery.transport.topology import Queue, Topology
from tickwheel.testing import TestBroker

_numbers = count()


@pytest.fixture
def queue() -> str:
    return f"replies-{next(_numbers)}"


@pytest.fixture
def own(client: sync.Client, queue: str) -> Iterator[OwnQueues]:
    topology = Topology()
    topology.declare_queue(Queue(queue, 60_000, is_auto_deleted=True))
    return OwnQueues(client.url, client.session, topology)


def topics(client: sync.Client) -> set[str]:
    return {topic.name for topic in client.topics()}


def test_a_queue_for_replies_is_made_once(client: sync.Client, own: OwnQueues, queue: str) -> None:
    assert not own.offers(queue), "it is not ours"
    assert queue_topic(queue) not in topics(client)
    own.names.add(queue)
    assert own.offers(queue)
    assert queue_topic(queue) in topics(client)
    client.delete_topic(queue_topic(queue))
    assert own.offers(queue), "nothing is asked a second time"
    assert queue_topic(queue) not in topics(client)
    own.deleted(queue)
    assert own.offers(queue)
    assert queue_topic(queue) in topics(client)


def test_topics_go_with_their_queues(client: sync.Client, own: OwnQueues, queue: str) -> None:
    assert own.topics() == set()
    own.names.add(queue)
    assert own.topics() == {queue_topic(queue)}
    own.offers(queue)
    own.delete_topics(["is-not-there", queue_topic(queue)], 5.0)
    assert queue_topic(queue) not in topics(client)


def test_what_cannot_be_made_is_not_offered(shared: TestBroker, queue: str) -> None:
    topology = Topology()
    topology.declare_queue(Queue(queue, 60_000, is_auto_deleted=True))
    with shared.sync_client() as one:
        own = OwnQueues(one.url, one.session, topology)
        own.names.add(queue)
    assert not own.offers(queue)
    own.delete_topics(own.topics(), 5.0)
