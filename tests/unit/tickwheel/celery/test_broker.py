"""The broker of an app, its client and its queues."""

from __future__ import annotations

import pytest
from kombu import Exchange, Queue

from tests.support.frameworks.celery_apps import app_of
from tickwheel.celery.broker import client_of, is_ours, queues_of
from tickwheel.errors import BadArgument, ConfigError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("tickwheel://127.0.0.1:7533", "tickwheel://127.0.0.1:7533"),
        ("tickwheel+unix:///run/tickwheel.sock", "tickwheel+unix:///run/tickwheel.sock"),
        ("tickwheels://broker.example:7411", "tickwheels://broker.example:7411"),
        ("tickwheel://a:7411;tickwheel://b:7411", "tickwheel://a:7411,b:7411"),
    ],
)
def test_the_client_has_the_url_of_the_app(url: str, shown: str) -> None:
    app = app_of("of-url", url)
    assert is_ours(app)
    assert client_of(app, "test").url == shown


def test_the_client_has_the_options_of_the_transport() -> None:
    with pytest.raises(BadArgument, match="keepalive"):
        client_of(
            app_of("options", "tickwheel://127.0.0.1:1", broker_transport_options={"keepalive": -1}), "test"
        )
    with pytest.raises(ConfigError, match="eta"):
        client_of(
            app_of("options", "tickwheel://127.0.0.1:1", broker_transport_options={"eta": "never"}), "test"
        )


def test_another_broker() -> None:
    app = app_of("another", "memory://")
    assert not is_ours(app)
    with pytest.raises(ConfigError):
        client_of(app, "test")


def test_queues_and_where_their_messages_lie() -> None:
    app = app_of("queues", "tickwheel://127.0.0.1:1")
    assert [(queue.name, queue.topic) for queue in queues_of(app)] == [("queues", "queues")]
    app = app_of("queues", "tickwheel://127.0.0.1:1")
    app.conf.task_queues = [Queue("plain"), Queue("hot", Exchange("heat", type="topic"), routing_key="hot.#")]
    found = {queue.name: queue.topic for queue in queues_of(app, ["by name", "plain"])}
    assert found.keys() == {"plain", "hot", "by name"}
    assert (found["plain"], found["hot"]) == ("plain", "x.heat")
    assert found["by name"].startswith("by-name--")
