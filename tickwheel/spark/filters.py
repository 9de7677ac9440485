"""Spark's filters as predicates of ours. What cannot be decided here exactly as Spark would is left to Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tickwheel.arrow.predicates import Predicate, fits

_COMPARISONS: Final = {
    "EqualTo": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "match_substring",
}


def take_filters(filters: Iterable[Any], columns: dict[str, str]) -> tuple[list[Predicate], list[Any]]:
    """(what we filter, what is left to Spark) of Spark's filters. ``columns``: names and Spark types."""
    taken, left = [], []
    for one in filters:
        predicate = _predicate(one, columns)
        if predicate is None:
            left.append(one)
        else:
            taken.append(predicate)
    return taken, left


def _predicate(one: Any, columns: dict[str, str]) -> Predicate | None:
    """By the filter's name, so that this needs no pyspark."""
    name = type(one).__name__
    if name == "Not":
        inner = _predicate(one.child, columns)
        if inner is None or inner.negated:
            return None
        return Predicate(inner.column, inner.function, inner.value, negated=True)
    attribute = one.attribute
    kind = columns.get(attribute[0]) if len(attribute) == 1 else None
    if kind is None or kind == "binary":
        return None
    if name == "IsNull":
        return Predicate(attribute[0], "is_null")
    if name == "IsNotNull":
        return Predicate(attribute[0], "is_null", negated=True)
    if name == "In":
        values = list(one.value)
        good = values and all(fits(value, kind) for value in values)
        return Predicate(attribute[0], "is_in", values) if good else None
    if name in _COMPARISONS and fits(one.value, kind):
        return Predicate(attribute[0], _COMPARISONS[name], one.value)
    return None
