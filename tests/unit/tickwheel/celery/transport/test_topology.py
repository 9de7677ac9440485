"""Exchanges, queues and bindings as topics and groups."""

from __future__ import annotations

import pytest

from tickwheel.celery.names import exchange_topic, route_topic
from tickwheel.celery.transport.topology import Binding, Queue, Source, Topology, queue_of


@pytest.fixture
def topology() -> Topology:
    return Topology()


def topics(sources: list[Source]) -> list[str]:
    return [source.topic for source in sources]


def test_the_default_exchange_leads_to_the_queue(topology: Topology) -> None:
    assert topology.targets("", "mails") == ["mails"]
    assert topics(topology.sources("mails")) == ["mails"]


def test_a_queue_with_an_exchange_of_its_name_is_one_topic_that_senders_need_not_know(
    topology: Topology,
) -> None:
    assert topology.targets("celery", "celery") == ["celery"]
    topology.declare_exchange("celery", "direct", is_durable=True)
    topology.bind("celery", Binding("celery", "celery"))
    assert topology.targets("celery", "celery") == ["celery"]
    assert topics(topology.sources("celery")) == ["celery"]
    assert not topology.needs_readers("celery", "celery", "celery")


def test_a_durable_direct_exchange_leads_to_queues_that_the_sender_knows(topology: Topology) -> None:
    topology.declare_exchange("orders", "direct", is_durable=True)
    topology.bind("eu", Binding("orders", "paid"))
    topology.bind("us", Binding("orders", "paid"))
    topology.bind("all", Binding("orders", "sent"))
    assert topology.targets("orders", "paid") == ["eu", "us"]


def test_what_the_sender_does_not_know_goes_to_a_topic_that_the_queue_reads_too() -> None:
    sender, reader = Topology(), Topology()
    for one in (sender, reader):
        one.declare_exchange("orders", "direct", is_durable=True)
    reader.bind("eu", Binding("orders", "paid"))
    (target,) = sender.targets("orders", "paid")
    assert target == route_topic("orders", "paid")
    assert sender.needs_readers(target, "orders", "paid")
    assert topics(reader.sources("eu")) == ["eu", target]


@pytest.mark.parametrize(("kind", "is_durable"), [("fanout", True), ("topic", True), ("direct", False)])
def test_other_exchanges_are_topics_of_which_each_queue_is_a_group(kind: str, is_durable: bool) -> None:
    sender, reader = Topology(), Topology()
    for one in (sender, reader):
        one.declare_exchange("news", kind, is_durable=is_durable)
    reader.declare_queue(Queue("mine", expires_ms=60_000))
    reader.bind("mine", Binding("news", "a"))
    assert sender.targets("news", "a") == [exchange_topic("news")]
    (source,) = reader.sources("mine")
    assert (source.topic, source.group, source.is_shared) == (exchange_topic("news"), "mine", True)
    assert source.wants("a")
    assert source.wants("b") == (kind == "fanout")


@pytest.mark.parametrize(
    ("pattern", "key", "is_wanted"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#", "", True),
        ("#.c", "a.b.c", True),
        ("*.b", "x.b", True),
        ("a+b", "aab", False),
    ],
)
def test_patterns(topology: Topology, pattern: str, key: str, is_wanted: bool) -> None:
    topology.declare_exchange("news", "topic", is_durable=True)
    topology.declare_queue(Queue("mine", expires_ms=1))
    topology.bind("mine", Binding("news", pattern))
    (source,) = topology.sources("mine")
    assert source.wants(key) == is_wanted


def test_several_bindings_of_an_exchange_are_one_group(topology: Topology) -> None:
    topology.declare_exchange("news", "topic", is_durable=True)
    topology.declare_queue(Queue("mine", expires_ms=1))
    for key in ("a", "b.*"):
        topology.bind("mine", Binding("news", key))
    (source,) = topology.sources("mine")
    assert [source.wants(key) for key in ("a", "b.c", "c")] == [True, True, False]


def test_what_is_unbound_is_not_read(topology: Topology) -> None:
    topology.declare_exchange("news", "fanout", is_durable=True)
    topology.bind("mine", Binding("news", ""))
    assert len(topology.sources("mine")) == 2
    topology.unbind("mine", Binding("news", ""))
    assert topics(topology.sources("mine")) == ["mine"]
    topology.bind("mine", Binding("news", ""))
    topology.delete_exchange("news")
    assert topology.bindings() == []


def test_a_queue_that_deletes_itself_ends_by_itself_too() -> None:
    assert queue_of("a", {"auto_delete": True}, 60_000) == Queue("a", 60_000, True)
    assert queue_of("a", {"exclusive": True, "arguments": {"x-expires": 5_000}}, 60_000).expires_ms == 5_000
    assert queue_of("a", {"arguments": {"x-message-ttl": 7}}, 60_000) == Queue("a", 0, False, 7)
    assert not queue_of("a", {"durable": True}, 60_000).is_transient
