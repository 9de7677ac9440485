"""Names of queues and exchanges as topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.celery.names import exchange_topic, queue_group, queue_topic, route_topic
from tickwheel.protocol.limits import MAX_TOPIC_NAME_CHARS, is_valid_name


@pytest.mark.parametrize(
    "name", ["celery", "high-priority", "mails.eu", "0f9a1c7e-4d5e-4b43-9a57-2d5b6f0c1b11"]
)
def test_a_name_that_can_be_a_topic_stays(name: str) -> None:
    assert queue_topic(name) == queue_group(name) == name


def test_others_become_a_readable_part_and_a_hash() -> None:
    topic = queue_topic("celery@host.celery.pidbox")
    assert topic.startswith("celery-host.celery.pidbox--")
    assert topic != queue_topic("celery/host.celery.pidbox")
    assert exchange_topic("celeryev") == "x.celeryev"
    assert exchange_topic("a b").startswith("x.a-b--")
    assert route_topic("reply.celery.pidbox", "42").startswith("r.reply.celery.pidbox-42--")


@pytest.mark.parametrize(
    "name", ["x.celeryev", "orders.dead", "orders.prepared", "a--0123456789abcdef", "r.a"]
)
def test_a_queue_cannot_take_the_topic_of_something_else(name: str) -> None:
    assert queue_topic(name) != name
    assert not queue_topic(name).startswith(("x.", "r."))


@given(st.lists(st.text(max_size=200), min_size=2, max_size=2, unique=True))
def test_every_name_has_a_topic_of_its_own(names: list[str]) -> None:
    topics = [queue_topic(name) for name in names] + [exchange_topic(name) for name in names]
    assert len(set(topics)) == 4
    for topic in topics + [queue_group(name) for name in names]:
        assert is_valid_name(topic)
        assert len(topic) <= MAX_TOPIC_NAME_CHARS
