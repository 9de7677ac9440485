"""Classes of the engine have the fields of their counterparts in wire protocol, broker and client."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any, Final

import msgspec
import pytest

from tests.support.run import figures
from tests.support.run.counterparts import COMPARED, COUNTERPARTS, Counterpart

NONE: Final = object()
"""Stands for the default of a field that has none."""


def class_of(name: str) -> Any:
    path, _, own = name.partition(":")
    parts = path.removesuffix(".py").split("/")
    if parts[1] == f"tickwheel_{parts[0]}":
        del parts[0]
    return getattr(import_module(".".join(parts)), own)


def fields_of(kind: Any) -> dict[str, Any]:
    """The defaults of a class by field, in order, also those of its base classes."""
    if dataclasses.is_dataclass(kind):
        return {
            field.name: NONE if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(kind)
        }
    if issubclass(kind, msgspec.Struct):
        return {
            field.name: NONE if field.default is msgspec.NODEFAULT else field.default
            for field in msgspec.structs.fields(kind)
        }
    return dict.fromkeys(kind.__annotations__, NONE)


def differences(pair: Counterpart) -> list[str]:
    """In what the fields of a pair differ beyond what its entry says; an entry that says too much differs, too."""
    engine, other = fields_of(class_of(pair.engine)), fields_of(class_of(pair.other))
    if not pair.has_units:
        engine = {name.removesuffix("_ms"): default for name, default in engine.items()}
    found = []
    if engine.keys() - other.keys() != set(pair.engine_only.split()):
        found.append(f"the engine has {sorted(engine.keys() - other.keys())} alone")
    if pair.other_only is not None and other.keys() - engine.keys() != set(pair.other_only.split()):
        found.append(f"the other has {sorted(other.keys() - engine.keys())} alone")
    both = [name for name in engine if name in other]
    if (both == [name for name in other if name in engine]) is not pair.is_ordered:
        found.append(f"is_ordered is {pair.is_ordered}")
    has_defaults = any(default is not NONE for default in other.values())
    if pair.other_defaults is not None and has_defaults:
        differing = {name for name in both if engine[name] != other[name]}
        if differing != set(pair.other_defaults.split()):
            found.append(f"the defaults of {sorted(differing)} differ")
    return found


@pytest.mark.parametrize("pair", COUNTERPARTS, ids=lambda pair: " ".join(pair.pair))
def test_the_engine_has_the_fields_of_its_counterparts(pair: Counterpart) -> None:
    assert differences(pair) == []
    assert pair.engine.startswith("timerlog/")
    assert not pair.other.startswith("timerlog/")
    if pair.base:
        assert class_of(pair.base) in class_of(pair.other).__mro__


def test_a_field_that_only_one_class_has_is_found() -> None:
    filters = next(pair for pair in COUNTERPARTS if pair.engine.endswith(":Filter"))
    assert differences(dataclasses.replace(filters, engine_only="states")) == ["the engine has [] alone"]
    assert differences(dataclasses.replace(filters, other_only="states")) == ["the other has [] alone"]
    assert differences(dataclasses.replace(filters, is_ordered=True)) == ["is_ordered is True"]
    assert "the defaults of" in differences(dataclasses.replace(filters, other_defaults=""))[0]


def test_each_pair_that_is_compared_would_be_counted() -> None:
    house = figures.look()
    assert {tuple(line.split()) for line in house.twins(known=frozenset())} >= COMPARED
