"""Settings of `tickwheel flight`: where it is, and who may reach it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel.client.url import TcpAddress, UnixAddress, on_host
from tickwheel.errors import ConfigError
from tickwheel_broker.config.flight import flight_url, told_flight_url
from tickwheel_broker.config.load import from_arguments, load
from tickwheel_broker.config.settings import Settings


@table(
    ("settings", "told"),
    [
        ({}, ""),
        ({"flight": True}, "grpc://127.0.0.1:7416"),
        ({"flight": True, "flight_listen": "[::1]:1"}, "grpc://[::1]:1"),
        ({"flight": True, "flight_listen": "[::]:1"}, "grpc://:1"),
        ({"flight": True, "flight_listen": "0.0.0.0:7416", "tls_certificate": "x"}, "grpc+tls://:7416"),
        ({"flight_advertise": "tables.example:443", "tls_certificate": "x"}, "grpc+tls://tables.example:443"),
        ({"flight_advertise": "grpc+tls://tables.example:443"}, "grpc+tls://tables.example:443"),
        ({"flight_advertise": "grpc://sidecar:1", "tls_certificate": "x"}, "grpc://sidecar:1"),
    ],
)
def test_what_clients_are_told(settings: dict[str, Any], told: str) -> None:
    assert told_flight_url(Settings(**settings)) == told


def test_where_it_listens() -> None:
    assert flight_url(Settings()) == "grpc://127.0.0.1:7416"
    assert flight_url(Settings(flight_listen="[::1]:0", tls_certificate="x")) == "grpc+tls://[::1]:0"


@table(
    ("told", "address", "found"),
    [
        ("grpc://:7416", TcpAddress("broker.example", 7411), "grpc://broker.example:7416"),
        ("grpc+tls://:7416", TcpAddress("::1", 7411), "grpc+tls://[::1]:7416"),
        ("grpc://:7416", UnixAddress("/run/x.sock"), "grpc://127.0.0.1:7416"),
        ("grpc://a:1", TcpAddress("b", 7411), "grpc://a:1"),
        ("", TcpAddress("b", 7411), ""),
    ],
)
def test_the_host_is_that_of_the_broker(told: str, address: Any, found: str) -> None:
    assert on_host(told, address) == found


def test_an_address_that_others_reach_needs_tls() -> None:
    with pytest.raises(
        ConfigError, match=r"flight_listen is '0\.0\.0\.0:7416'.*which other machines may reach"
    ):
        load(environment={}, flags={"flight": True, "flight_listen": "0.0.0.0:7416"})
    assert load(environment={}, flags={"flight_listen": "0.0.0.0:7416"}).settings.flight is False
    assert load(environment={}, flags={"flight": True, "flight_listen": "0.0.0.0:1", "insecure": True})


@table("told", ["7416", "http://a:1", "grpc://", "grpc://a", "grpc+tls://a:70000", "grpc://grpc://a:1"])
def test_addresses_that_nobody_reaches(told: Any) -> None:
    with pytest.raises(ConfigError, match="flight_advertise"):
        load(environment={}, flags={"flight_advertise": told})


@table("place", ["", "7416", "a:b", "a:70000"])
def test_places_that_are_none(place: Any) -> None:
    with pytest.raises(ConfigError, match="flight_listen"):
        load(environment={}, flags={"flight_listen": place})


def test_it_reaches_the_broker_by_a_socket_of_its_own() -> None:
    settings, _ = from_arguments(data_dir="d", flight=True), None
    assert settings.unix_socket == "d/flight.sock"
