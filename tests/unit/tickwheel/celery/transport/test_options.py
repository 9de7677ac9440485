"""The options of the transport, and where the broker is."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import kombu
import pytest

import tickwheel.celery
from tickwheel.celery.transport.options import Options, options_of, url_of
from tickwheel.errors import ConfigError

assert tickwheel.celery.TRANSPORT


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("tickwheel://", "tickwheel://127.0.0.1:7411"),
        ("tickwheel://broker.example", "tickwheel://broker.example:7411"),
        ("tickwheel://broker.example:17", "tickwheel://broker.example:17"),
        ("tickwheel://[::1]:17", "tickwheel://[::1]:17"),
        ("tickwheels://broker.example", "tickwheels://broker.example:7411"),
        ("tickwheel+unix:///run/tickwheel.sock", "tickwheel+unix:///run/tickwheel.sock"),
        ("tickwheel://a;tickwheel://b", "tickwheel://a:7411"),
    ],
)
def test_the_address(given: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TICKWHEEL_URL", raising=False)
    assert url_of(kombu.Connection(given)) == url


def test_an_empty_address_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKWHEEL_URL", "tickwheel://elsewhere:17")
    assert url_of(kombu.Connection("tickwheel://")) == "tickwheel://elsewhere:17"
    assert url_of(kombu.Connection("tickwheel://here")) == "tickwheel://here:7411"


@pytest.mark.parametrize("given", ["tickwheel://me:secret@here", "tickwheel://here/vhost"])
def test_an_address_with_what_means_nothing_here(given: str) -> None:
    with pytest.raises(ConfigError) as raised:
        url_of(kombu.Connection(given))
    assert "secret" not in str(raised.value)


def test_options_of_others_are_left_alone() -> None:
    assert options_of({"queue_order_strategy": "priority", "max_retries": 3}) == Options()


def test_what_is_given() -> None:
    options = options_of(
        {"timezone": "Europe/Paris", "visibility_timeout": 60, "token": "t", "publish": "pipelined"}
    )
    assert options.timezone == ZoneInfo("Europe/Paris")
    assert options.visibility_timeout == 60
    assert options.client == {"token": "t"}
    assert options_of({}, {"ca_certs": "/ca.pem", "cert_reqs": 2}).client == {"ca_file": "/ca.pem"}


@pytest.mark.parametrize(
    "given",
    [
        {"eta": "redis"},
        {"publish": True},
        {"timezone": "Mars/Olympus"},
        {"visibility_timeout": 0},
        {"reconnect_timeout": "soon"},
    ],
)
def test_bad_options_say_what_to_use(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Use "):
        options_of(given)
