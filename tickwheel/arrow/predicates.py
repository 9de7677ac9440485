"""Conditions as tests of one column of an Arrow batch: what is filtered where the files are need not travel.

A value that is NULL passes no condition but ``is null``, as in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.moments import parse_moment

Mask: TypeAlias = npt.NDArray[np.bool_]

_PATTERNS: Final = frozenset({"starts_with", "ends_with", "match_substring"})


@dataclass(frozen=True, slots=True)
class Predicate:
    """``column`` compared with ``value`` by a function of Arrow, or ``is_null``, ``is_in``."""

    column: str
    function: str
    value: Any = None
    negated: bool = False

    def passes(self, array: Any) -> Mask:
        """Which values pass."""
        if pa.types.is_dictionary(array.type):
            return self._passes_names(array)
        if self.function == "is_null":
            is_null = _mask(array.is_null())
            return ~is_null if self.negated else is_null
        if self.function == "is_in":
            found = pc.is_in(array, value_set=pa.array(self.value, _value_type(array.type, *self.value)))
        elif self.function in _PATTERNS:
            found = getattr(pc, self.function)(array, pattern=self.value)
        else:
            found = getattr(pc, self.function)(
                array, pa.scalar(self.value, _value_type(array.type, self.value))
            )
        passed = _mask(pc.invert(found) if self.negated else found)
        return passed & _mask(array.is_valid()) if array.null_count else passed

    def _passes_names(self, array: Any) -> Mask:
        """Names are compared once each, not once a row."""
        names = array.dictionary
        index = array.indices
        if self.function == "is_null":
            is_null = _mask(array.dictionary_decode().is_null())
            return ~is_null if self.negated else is_null
        of_name = self.passes(names)
        known = _mask(index.is_valid())
        if not len(of_name):
            return np.zeros(len(array), bool)
        passed: Mask = of_name[np.asarray(index.fill_null(0))] & known
        return passed


_OPERATORS: Final = {
    "=": ("equal", False),
    "!=": ("equal", True),
    "<": ("less", False),
    "<=": ("less_equal", False),
    ">": ("greater", False),
    ">=": ("greater_equal", False),
    "in": ("is_in", False),
    "not in": ("is_in", True),
    "is null": ("is_null", False),
    "is not null": ("is_null", True),
    "starts with": ("starts_with", False),
    "not starts with": ("starts_with", True),
    "ends with": ("ends_with", False),
    "not ends with": ("ends_with", True),
    "contains": ("match_substring", False),
    "not contains": ("match_substring", True),
}
_OPERATOR_OF: Final = {
    **{meaning: operator for operator, meaning in _OPERATORS.items()},
    # Of values that are not NULL, and no column has NaN.
    ("less", True): ">=",
    ("less_equal", True): ">",
    ("greater", True): "<=",
    ("greater_equal", True): "<",
}
Condition: TypeAlias = tuple[str, str] | tuple[str, str, Any]


def conditions(*wanted: Condition) -> str:
    """The value of the option ``filters``: rows must meet all of these.

    >>> conditions(("state", "=", "acked"), ("epoch", ">", 3), ("key", "is not null"))
    '[["state","=","acked"],["epoch",">",3],["key","is not null"]]'
    """
    return msgspec.json.encode(wanted).decode()


def condition(predicate: Predicate) -> Condition:
    """What `parse_conditions` makes the same predicate of, or a predicate that the same values pass."""
    operator = _OPERATOR_OF[predicate.function, predicate.negated]
    if predicate.function == "is_null":
        return predicate.column, operator
    return predicate.column, operator, predicate.value


def parse_conditions(text: str, columns: dict[str, str]) -> tuple[Predicate, ...]:
    """Predicates from the option ``filters``. ``columns``: names and Spark types. Raises ``SourceError``."""
    try:
        listed = msgspec.json.decode(text, type=list[list[Any]])
    except (msgspec.MsgspecError, RecursionError):
        raise SourceError("The option filters is not a JSON list of lists.") from None
    return tuple(_predicate(one, columns) for one in listed)


def _predicate(one: list[Any], columns: dict[str, str]) -> Predicate:
    shown = msgspec.json.encode(one).decode()
    is_spelt = len(one) in (2, 3) and isinstance(one[0], str) and isinstance(one[1], str)
    if not is_spelt or one[1] not in _OPERATORS:
        raise SourceError(
            f"{shown} is no condition.", advice=f"Write [column, operator, value]: {', '.join(_OPERATORS)}."
        )
    column, (function, negated) = one[0], _OPERATORS[one[1]]
    kind = columns.get(column)
    if kind is None or (kind == "binary" and function != "is_null"):
        raise SourceError(f"{shown}: there is no column {column!r} to filter by.")
    if function == "is_null":
        if len(one) == 3:
            raise SourceError(f"{shown}: nothing is compared here.")
        return Predicate(column, function, None, negated)
    values = one[2] if len(one) == 3 and function == "is_in" else one[2:]
    if not isinstance(values, list) or not values:
        raise SourceError(f"{shown}: there is no value to compare with.")
    values = [_moment(value) if kind == "timestamp" else value for value in values]
    if not all(fits(value, kind) for value in values) or (function in _PATTERNS and kind != "string"):
        raise SourceError(
            f"{shown}: the value does not fit a column of type {kind}.",
            advice="Times are ISO 8601 with a zone: 2031-05-01T12:00:00Z.",
        )
    return Predicate(column, function, values if function == "is_in" else values[0], negated)


def _moment(value: Any) -> Any:
    try:
        return parse_moment(value)
    except (AttributeError, ValueError):
        return value


def _mask(found: Any) -> Mask:
    """The same as numpy has it, where NULL is false. Arrow itself copies bit by bit."""
    bits = found.fill_null(False) if found.null_count else found
    packed = np.frombuffer(bits.buffers()[1], np.uint8)
    unpacked = np.unpackbits(packed, count=bits.offset + len(bits), bitorder="little")
    mask: Mask = unpacked[bits.offset :].view(np.bool_)
    return mask


def _value_type(kind: Any, *values: Any) -> Any:
    """Times are compared as Spark has them, to the microsecond. Where no value is finer than the column, the column is
    not converted."""
    if not pa.types.is_timestamp(kind) or all(value.microsecond % 1_000 == 0 for value in values):
        return kind
    return pa.timestamp("us", "UTC")


def fits(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "timestamp":
            return isinstance(value, datetime) and value.tzinfo is not None
        case "bigint":
            return type(value) is int and -(1 << 63) <= value < 1 << 63
        case "int":
            return type(value) is int and -(1 << 31) <= value < 1 << 31
    return False
