"""What clients of RocketMQ observe there and here, compared: each difference is known and has a reason, or it is a
defect. It does not matter in which language a client is.

A program prints a line of JSON for each observation: ``step`` and ``what`` name it, all others are its fields. What a
call has come to is "ok", or the class and the code of its error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

Observed: TypeAlias = dict[tuple[Any, ...], dict[str, Any]]
"""By step and what was looked at; the same observation several times in the order in which it was made."""

LANGUAGES: Final = frozenset({"go", "java", "node", "python"})
ABSENT: Final = "(nothing)"
"""In place of a field that a program did not print."""

FAILED: Final = "failed"
"""What a step is that did not come to its end. That is never the same."""

TOLERANCE_S: Final = 2
"""So far times may be apart, in fields that end with ``_s``: machines are busy."""


class Between(NamedTuple):
    """Left to chance, within bounds; in lists, each of them."""

    low: float
    high: float

    def holds(self, value: Any) -> bool:
        if isinstance(value, list):
            return all(map(self.holds, value))
        return isinstance(value, (int, float)) and self.low <= value <= self.high


class OneOf(NamedTuple):
    """Left to chance, among these."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values


class Known(NamedTuple):
    """A difference that is meant, in one field of an observation."""

    step: int
    what: str
    field: str
    theirs: Any
    ours: Any
    reason: str
    of: frozenset[str] = LANGUAGES
    """The clients that observe it."""


def observed(lines: Iterable[str]) -> Observed:
    """Of what a conformance program has printed."""
    found: Observed = {}
    for line in lines:
        if not line.strip():
            continue
        values = json.loads(line)
        step, what = values.pop("step"), values.pop("what")
        name: tuple[Any, ...] = (step, what, *(values[one] for one in ("size", "body") if one in values))
        while name in found:
            name = (*name, "again")
        found[name] = {field: _without_words(value) for field, value in values.items()}
    return found


def differences(theirs: Observed, ours: Observed, known: Iterable[Known]) -> list[str]:
    """What is not the same, and not known to be so; and what is known to differ, and does not differ so."""
    expected = {(one.step, one.what, one.field): one for one in known}
    said, met = [], []
    for name, field, there, here in _pairs(theirs, ours):
        one = expected.get((name[0], name[1], field))
        if name[1] == FAILED:
            said.append(f"{name} {field}: {there} there, {here} here")
        elif one is None:
            if not _is_same(there, here, field):
                said.append(f"{name} {field}: {there} there, {here} here")
        else:
            met.append(one)
            if not (_fits(there, one.theirs, field) and _fits(here, one.ours, field)):
                said.append(
                    f"{name} {field}: {there} there, {here} here; {one.theirs} and {one.ours} were known"
                    f" ({one.reason})"
                )
    said += [f"known, and not observed: {one}" for one in expected.values() if one not in met]
    return said


def _pairs(theirs: Observed, ours: Observed) -> Iterator[tuple[tuple[Any, ...], str, Any, Any]]:
    """All fields, there and here."""
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        there, here = theirs.get(name), ours.get(name)
        if there is None or here is None:
            yield name, "observed", _presence(there), _presence(here)
            continue
        yield name, "observed", True, True
        for field in [*there, *(field for field in here if field not in there)]:
            yield name, field, there.get(field, ABSENT), here.get(field, ABSENT)


def _presence(values: Mapping[str, Any] | None) -> Any:
    return ABSENT if values is None else True


def _without_words(value: Any) -> Any:
    """An error is its code; where the client has none, its class. Texts may differ."""
    if isinstance(value, dict) and value.keys() == {"error", "code"}:
        return value["error"] if value["code"] is None else value["code"]
    return value


def _fits(value: Any, wanted: Any, field: str) -> bool:
    if isinstance(wanted, (Between, OneOf)):
        return wanted.holds(value)
    return _is_same(value, wanted, field)


def _is_same(one: Any, other: Any, field: str) -> bool:
    if not field.endswith("_s"):
        return bool(one == other)
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_is_same(one[key], other[key], field) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(_is_same, one, other, [field] * len(one)))
        case ((int() | float()), (int() | float())):
            return abs(one - other) <= TOLERANCE_S
    return bool(one == other)
