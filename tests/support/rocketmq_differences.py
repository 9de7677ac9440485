"""What clients of RocketMQ observe here and there, compared: each difference is known and has a reason, or it is a
defect."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

Observed: TypeAlias = dict[tuple[Any, ...], dict[str, Any]]
"""By step and what was looked at; the same observation several times in the order in which it was made."""


class Known(NamedTuple):
    """A difference that is meant."""

    step: int
    what: str
    reason: str
    ours: dict[str, Any] | None = None
    """What is observed here; None: it is not compared, because it is left to chance there."""


PYTHON = [
    Known(1, "unknown topic", "the client says of both that it has no route, as an Exception without code"),
    Known(
        6,
        "recall garbage",
        "50001 there; here it is said whose fault it is",
        {"outcome": {"error": "BadRequestException", "code": 40_000}},
    ),
    Known(6, "25 h", "there is no longest delay here, unless it is set", {"outcome": "ok"}),
    Known(
        6,
        "recall late",
        "50001 there; here it is said that it was too late",
        {"outcome": {"error": "BadRequestException", "code": 40_000}},
    ),
    Known(10, "fails: waits", "up to 20 s later than asked there", {"waits_s": [1, 5]}),
    Known(10, "raises: waits", "up to 20 s later than asked there", {"waits_s": [1]}),
    Known(
        12,
        "no SQL",
        "50001 there; here the expression is named",
        {"outcome": {"error": "BadRequestException", "code": 40_010}},
    ),
    Known(13, "again", "left to its lease there; here it comes again at once", {"bodies": ["unfinished"]}),
]
"""Of the client for Python."""


def observed(lines: Iterable[str]) -> Observed:
    """Of what a conformance program has printed."""
    found: Observed = {}
    for line in lines:
        if not line.strip():
            continue
        values = json.loads(line)
        name: tuple[Any, ...] = (
            values.pop("step"),
            values.pop("what"),
            values.get("size"),
            values.get("body"),
        )
        while name in found:
            name = (*name, "again")
        found[name] = values
    return found


def differences(theirs: Observed, ours: Observed, known: Iterable[Known]) -> list[str]:
    """What is not the same, and not known to be so; and what is known to differ, and does not differ so."""
    expected = {(one.step, one.what): one for one in known}
    said = []
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        there, here = theirs.get(name), ours.get(name)
        one = expected.get((name[0], name[1]))
        if one is None:
            if there != here:
                said.append(f"{name}: {there} there, {here} here")
        elif one.ours is not None and here != one.ours:
            said.append(f"{name}: {here} here, and {one.ours} was expected ({one.reason})")
    return said
