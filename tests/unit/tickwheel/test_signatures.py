"""What holds for all of the public interface: the blocking twin takes the same arguments, and times have two forms."""

from __future__ import annotations

import inspect
import os
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_type_hints

import msgspec
import pytest

import tickwheel
from tests.support.run.cases import table
from tickwheel import Client, stats, sync, testing
from tickwheel.client import options as _options
from tickwheel.client.admin import groups as _groups
from tickwheel.client.consumer.subscription import SubscribeOptions
from tickwheel.errors import BadArgument
from tickwheel.protocol.bodies.base import Request
from tickwheel_broker.config.fields import FIELDS, PUSH_SECTION

OWN_WAY = {"subscribe_as", "fetch_as", "forget", "manners", "converse", "security", "connect_timeout_s"}
"""For the blocking client itself."""


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(inspect.unwrap(function)).parameters.values()
    return {one.name: (one.kind, one.default) for one in found}


@table("name", [name for name in dir(Client) if not name.startswith("_") and name not in OWN_WAY])
def test_the_blocking_client_takes_the_same_arguments(name: str) -> None:
    asynchronous, blocking = getattr(Client, name), getattr(sync.Client, name)
    if not callable(asynchronous):
        assert isinstance(blocking, property)
        return
    taken = parameters(blocking)
    if any(kind is inspect.Parameter.VAR_KEYWORD for kind, _ in taken.values()) and "args" in taken:
        return  # overloads, which mypy holds to
    assert taken == parameters(asynchronous)


def test_the_options_of_a_client_are_those_of_its_class() -> None:
    given = set(parameters(Client.__init__)) - {"self", "url"}
    assert given == set(_options.ClientOptions.__annotations__)


def test_the_settings_of_a_broker_in_this_process_are_those_of_the_configuration_file() -> None:
    kinds: dict[str, Any] = {"duration": str, "size": int | str, "count": int}
    typed = get_type_hints(_options.BrokerSettings)
    # The directory is given by itself; only daemons are nodes of clusters; and push is a process of its own.
    assert list(typed) == [
        name
        for name, field in FIELDS.items()
        if name != "data_dir" and field.section not in ("Cluster", PUSH_SECTION)
    ]
    for name, hint in typed.items():
        field = FIELDS[name]
        wanted = (str, str | os.PathLike[str])
        if field.choices:
            wanted = (Literal[field.choices],)
        elif field.unit != "plain":
            wanted = (kinds[field.unit],)
        elif field.is_switch:
            wanted = (bool,)
        assert hint in wanted, name
    for function in (tickwheel.embedded, testing.broker):
        (settings,) = [
            one for one in inspect.signature(function).parameters.values() if one.kind is one.VAR_KEYWORD
        ]
        assert "BrokerSettings" in str(settings.annotation)


def test_an_option_that_is_misspelt_names_the_one_that_was_meant() -> None:
    with pytest.raises(BadArgument, match="Did you mean timeout"):
        sync.Client(timeuot=3)  # type: ignore[call-arg]
    with pytest.raises(BadArgument, match="Did you mean auto_key"):
        sync.connect(autokey=True)  # type: ignore[call-arg]


def public_classes() -> set[type]:
    classes = {
        one
        for module in (tickwheel, stats, sync, _groups)
        for name, one in vars(module).items()
        if isinstance(one, type) and not name.startswith("_") and one.__module__.startswith("tickwheel")
    }
    return {one for one in classes if not issubclass(one, BaseException | Request | SubscribeOptions)}


@table("cls", sorted(public_classes(), key=lambda cls: f"{cls.__module__}.{cls.__qualname__}"))
def test_what_has_milliseconds_has_a_datetime_or_timedelta_beside_them(cls: type) -> None:
    names = {name for base in cls.__mro__ for name in (*vars(base), *getattr(base, "__annotations__", {}))}
    in_ms = {name for name in names if name.endswith("_ms") and not name.startswith("_")}
    beside = {name for name in in_ms if isinstance(getattr(cls, name.removesuffix("_ms"), None), property)}
    assert in_ms == beside


def test_moments_are_aware_and_end_with_the_year_9999() -> None:
    row = stats.Forecast("day", 86_400_000, 1)
    assert row.until == datetime(1970, 1, 2, tzinfo=UTC)
    assert msgspec.structs.replace(row, until_ms=1 << 60).until == datetime.max.replace(tzinfo=UTC)
    assert stats.WheelLevel(1, 4_096, 0, 0, []).slot == timedelta(milliseconds=4_096)
