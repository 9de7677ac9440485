"""What a client says of itself, and what it is answered."""

from __future__ import annotations

from typing import Any

import pytest

from tickwheel_gateway.clients.settings import BadSettings, declared, merge
from tickwheel_gateway.config import Config, Group
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused


def producer(*topics: str) -> Any:
    settings = schema.TelemetryCommand().settings
    settings.client_type = schema.PRODUCER
    settings.publishing.SetInParent()
    for topic in topics:
        settings.publishing.topics.add(name=topic, resource_namespace="ns")
    return settings


def consumer(group: str, *topics: str, client_type: int = schema.PUSH_CONSUMER) -> Any:
    settings = schema.TelemetryCommand().settings
    settings.client_type = client_type
    settings.subscription.group.name = group
    for topic in topics:
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.expression = "a||b"
    return settings


def merged(settings: Any, config: Config) -> Any:
    answer = schema.TelemetryCommand().settings
    merge(settings, answer, config)
    return answer


def milliseconds(durations: Any) -> list[int]:
    return [schema.milliseconds(one) for one in durations]


def test_a_producer() -> None:
    settings = producer("orders", "%RETRY%billing")
    settings.access_point.addresses.add(host="broker.example", port=8_081)
    schema.set_milliseconds(settings.request_timeout, 5_000)
    settings.user_agent.hostname = "host"
    settings.metric.on = True
    settings.client_properties["any"] = "thing"
    said = declared(settings)
    assert (said.client_type, said.group, said.request_timeout_ms) == (schema.PRODUCER, "", 5_000)
    assert said.topics == {"orders", "%RETRY%billing"}
    found = merged(settings, Config(max_body_bytes=1_000))
    assert found.client_type == schema.PRODUCER
    assert found.access_point == settings.access_point
    assert found.request_timeout == settings.request_timeout
    assert found.user_agent == settings.user_agent
    assert found.HasField("metric")
    assert not found.metric.on
    policy = found.backoff_policy
    assert (policy.max_attempts, policy.WhichOneof("strategy")) == (3, "exponential_backoff")
    backoff = policy.exponential_backoff
    assert milliseconds([backoff.initial, backoff.max]) == [10, 1_000]
    assert backoff.multiplier == 2.0
    assert found.publishing.topics == settings.publishing.topics
    assert (found.publishing.max_body_size, found.publishing.validate_message_type) == (1_000, True)
    assert not found.client_properties


@pytest.mark.parametrize("client_type", [schema.PUSH_CONSUMER, schema.SIMPLE_CONSUMER])
def test_a_consumer(client_type: int) -> None:
    settings = consumer("billing", "orders", "mails", client_type=client_type)
    said = declared(settings)
    assert (said.client_type, said.group, said.topics) == (client_type, "billing", {"orders", "mails"})
    assert said.request_timeout_ms == 3_000
    config = Config(receive_batch_size=7, long_polling_max_ms=9_000, max_attempts=5, retry_delays_ms=(10, 20))
    found = merged(settings, config)
    assert not found.HasField("access_point")
    assert (found.backoff_policy.max_attempts, found.backoff_policy.WhichOneof("strategy")) == (
        5,
        "customized_backoff",
    )
    assert milliseconds(found.backoff_policy.customized_backoff.next) == [10, 20]
    ours = found.subscription
    assert ours.group == settings.subscription.group
    assert ours.subscriptions == settings.subscription.subscriptions
    assert (ours.HasField("fifo"), ours.fifo, ours.receive_batch_size) == (True, False, 7)
    assert schema.milliseconds(ours.long_polling_timeout) == 9_000
    assert not found.metric.on


def test_groups_of_their_own() -> None:
    config = Config(groups={"billing": Group(3, (1_000,)), "mails": Group(4)}, fifo_groups=("b*",))
    found = merged(consumer("billing", "orders"), config)
    assert (found.backoff_policy.max_attempts, found.subscription.fifo) == (3, True)
    assert milliseconds(found.backoff_policy.customized_backoff.next) == [1_000]
    found = merged(consumer("mails", "orders"), config)
    assert (found.backoff_policy.max_attempts, found.subscription.fifo) == (4, False)
    assert len(found.backoff_policy.customized_backoff.next) == 18


def neither() -> Any:
    settings = schema.TelemetryCommand().settings
    settings.client_type = schema.PRODUCER
    return settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (neither(), "neither publishing nor subscription"),
        (producer("no spaces"), "the name of a topic has letters"),
        (consumer("billing", ""), "the name of the topic is blank"),
        (consumer("", "orders"), "the name of the group is blank"),
        (producer(*["orders"] * 4_097), "4097 topics are more than 4096"),
        (consumer("billing", *["orders"] * 4_097), "4097 topics are more than 4096"),
        (consumer("billing", "orders", client_type=schema.PRODUCER), "has no subscription"),
    ],
)
def test_settings_that_no_client_sends(settings: Any, text: str) -> None:
    with pytest.raises(BadSettings, match=text):
        declared(settings)


@pytest.mark.parametrize(
    ("client_type", "code"),
    [
        (schema.PULL_CONSUMER, Code.NOT_IMPLEMENTED),
        (schema.LITE_PUSH_CONSUMER, Code.NOT_IMPLEMENTED),
        (schema.LITE_SIMPLE_CONSUMER, Code.NOT_IMPLEMENTED),
        (0, Code.UNRECOGNIZED_CLIENT_TYPE),
        (99, Code.UNRECOGNIZED_CLIENT_TYPE),
    ],
)
def test_clients_that_are_not_served(client_type: int, code: Code) -> None:
    with pytest.raises(Refused) as caught:
        declared(consumer("billing", "orders", client_type=client_type))
    assert caught.value.code == code
