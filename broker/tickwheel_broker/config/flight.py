"""Settings of `tickwheel flight` that are texts: what they mean, and where clients are sent."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

from tickwheel_broker.config.places import is_loopback, place_of
from tickwheel_broker.config.settings import Settings

_SCHEMES: Final = ("grpc://", "grpc+tls://")


def flight_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with them, whether Arrow Flight is wanted or not."""
    for name, place in (
        ("flight_listen", settings.flight_listen),
        ("flight_advertise", _told_place(settings)),
    ):
        try:
            if getattr(settings, name):
                place_of(place)
        except ValueError as error:
            yield f"{name} ({origins[name]}): {error}"
    if not settings.flight_listen:
        yield f"flight_listen ({origins['flight_listen']}) is empty: nothing to listen on"


def is_flight_exposed(settings: Settings) -> bool:
    """Whether other machines may read by Arrow Flight."""
    try:
        return settings.flight and not is_loopback(place_of(settings.flight_listen)[0])
    except ValueError:
        return False


def told_flight_url(settings: Settings) -> str:
    """Where a client of this broker reads by Arrow Flight; empty: nowhere. Without a host it is the broker's.

    >>> told_flight_url(Settings(flight=True, flight_listen="0.0.0.0:7416"))
    'grpc://:7416'
    """
    if not settings.flight and not settings.flight_advertise:
        return ""
    if settings.flight_advertise.startswith(_SCHEMES):
        return settings.flight_advertise
    if settings.flight_advertise:
        return f"{_scheme(settings)}://{settings.flight_advertise}"
    host, port = place_of(settings.flight_listen)
    return f"{_scheme(settings)}://{'' if _is_any(host) else _bracketed(host)}:{port}"


def flight_url(settings: Settings) -> str:
    """Where the process listens."""
    host, port = place_of(settings.flight_listen)
    return f"{_scheme(settings)}://{_bracketed(host)}:{port}"


def _scheme(settings: Settings) -> str:
    return "grpc+tls" if settings.tls_certificate else "grpc"


def _told_place(settings: Settings) -> str:
    """Host and port of `flight_advertise`."""
    told = settings.flight_advertise
    return next((told.removeprefix(scheme) for scheme in _SCHEMES if told.startswith(scheme)), told)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_any(host: str) -> bool:
    """Whether it means all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
