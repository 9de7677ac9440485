"""What type checkers know of settings, and bodies that are JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest

from tickwheel import Client, sync, testing
from tickwheel.client.admin import topics
from tickwheel.client.admin.transactions import Transaction
from tickwheel.client.options import (
    CatchUp,
    EndpointFormat,
    Overlap,
    SendOptions,
    SendTime,
    TopicSettings,
)
from tickwheel.errors import BadArgument, BadEndpoint, BadSchedule, RemoteProtocolError


def test_the_settings_of_a_topic_are_those_that_are_taken() -> None:
    named = {*topics.DURATIONS, *(f"{name}_ms" for name in topics.DURATIONS), *topics.NUMBERS}
    assert set(TopicSettings.__annotations__) == named
    for method in (Client.create_topic, Client.set_topic):
        assert get_args(get_type_hints(method)["settings"]) == (TopicSettings,)


def test_the_options_of_send_json_are_those_of_send() -> None:
    hints = options_of(Client.send)
    assert {**get_type_hints(SendOptions), "headers": hints["headers"]} == hints


def test_the_options_of_a_send_in_a_transaction_are_those_of_send() -> None:
    hints = options_of(Transaction.send)
    assert get_args(hints.pop("when")) == (SendTime,)
    assert {**hints, **get_type_hints(SendTime)} == options_of(Client.send)
    with testing.broker() as broker, broker.sync_client() as client, client.transaction() as parts:
        for wrong in ("dely", "keys", "order_keys"):
            with pytest.raises(TypeError, match=wrong):
                parts.send("t", b"x", **{wrong: None})  # type: ignore[arg-type]


def options_of(send: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: hint for name, hint in get_type_hints(send).items() if name not in ("topic", "body", "return")
    }


def test_choices_are_those_that_the_broker_takes() -> None:
    with testing.broker() as broker, broker.sync_client() as client:
        wrong: Any = "other"
        for overlap in get_args(Overlap):
            for catch_up in get_args(CatchUp):
                name = f"{overlap}-{catch_up}"
                client.create_schedule(name, "t", every=timedelta(days=1), overlap=overlap, catch_up=catch_up)
                found = client.schedule(name)
                assert (found.overlap, found.catch_up) == (overlap, catch_up)
        for options in ({"overlap": wrong}, {"catch_up": wrong}):
            with pytest.raises(BadSchedule):
                client.create_schedule("x", "t", every=timedelta(days=1), **options)
        for format in get_args(EndpointFormat):
            assert (
                client.set_endpoint(format, topic="t", url="https://a.example/", format=format).format
                == format
            )
        with pytest.raises(BadEndpoint):
            client.set_endpoint("x", topic="t", url="https://a.example/", format=wrong)


def test_json_there_and_back() -> None:
    given = {"order": 17, "at": datetime(2031, 5, 1, tzinfo=UTC), "of": ["ada", None, 1.5]}
    with testing.broker() as broker, broker.sync_client() as client:
        sent = client.send_json("t", given, key="k", headers={"x": 1})
        assert client.send_json("t", given, key="k", headers={"x": 1}).id == sent.id
        client.send("t", b"no json")
        broker.settle()
        first, second = client.fetch("t", count=2)
        assert first.json() == {**given, "at": "2031-05-01T00:00:00Z"}
        assert first.headers == {"content-type": "application/json", "x": 1}
        with pytest.raises(RemoteProtocolError, match="no JSON"):
            second.json()
        later = client.send_json(
            "t", [1], delay=timedelta(hours=1), headers={"content-type": "application/x+json"}
        )
        found = client.message(id=later.id)
        assert found is not None
        assert (found.state, found.headers) == ("scheduled", {"content-type": "application/x+json"})


@pytest.mark.parametrize("value", [object(), {1j: 1}, float], ids=["object", "name", "type"])
def test_what_cannot_be_json(value: object) -> None:
    with (
        testing.broker() as broker,
        sync.Client(broker.url) as client,
        pytest.raises(BadArgument, match="JSON"),
    ):
        client.send_json("t", value)
