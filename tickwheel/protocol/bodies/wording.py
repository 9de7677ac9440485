"""What is wrong with a request, in words of ours: msgspec's are for programmers in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

_TYPES: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_EXPECTED: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<given>[^`]+)`")
_BOUND: Final = re.compile(r"Expected `(?:int|float)` (?P<sign>>=|<=|>|<) (?P<bound>\S+)")
_LENGTH: Final = re.compile(
    r"Expected `(?P<type>str|array|object)` of length (?P<sign>>=|<=)? ?(?P<bound>\d+)"
)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_VALUE: Final = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_PLACED: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_PLACE: Final = re.compile(r"\(byte (?P<byte>\d+)\)")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_SIGNS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_UNITS: Final = {"str": "characters", "array": "items", "object": "fields"}


class Fault(NamedTuple):
    """What is wrong, and where it is wrong below the place that was told."""

    detail: str
    missing: str = ""
    """The name of the field that is not there."""


def of_shape(kind: Any, error: msgspec.ValidationError) -> str:
    """What is wrong with a value that is to be of a shape, as a sentence."""
    what, path = placed(str(error))
    return worded(kind, what, path).detail


def placed(message: str) -> tuple[str, str]:
    """What msgspec says, and where (`.filter.state`, `[0].key`; empty: the whole)."""
    found = _PLACED.match(message)
    assert found is not None
    return found["what"].rstrip("."), (found["path"] or "$").removeprefix("$")


def worded(kind: Any, what: str, path: str) -> Fault:
    """``what`` msgspec has found at ``path`` (`.filter.state`, `[0].key`; empty: the whole) of a shape."""
    hint = _hint_at(kind, path)
    name = next((one[0] or "An item" for one in reversed(_STEP.findall(path))), "The request")
    if found := _EXPECTED.fullmatch(what):
        wanted = " or ".join(dict.fromkeys(_type(one) for one in found["wanted"].split(" | ")))
        return Fault(f"{name} is {_type(found['given'])}, and must be {wanted}.{_example(hint)}")
    if found := _MISSING.fullmatch(what):
        field = found["name"]
        return Fault(f"{field} is missing.{_example(_hint_at(hint, f'.{field}'))}", field)
    if found := _BOUND.fullmatch(what):
        return Fault(f"{name} must be {_SIGNS[found['sign']]} {found['bound']}.")
    if found := _LENGTH.fullmatch(what):
        sign = _SIGNS.get(found["sign"] or "", "exactly")
        return Fault(f"{name} must have {sign} {found['bound']} {_UNITS[found['type']]}.")
    if found := _VALUE.fullmatch(what):
        values = ", ".join(map(str, _values(hint)))
        return Fault(f"{name} is {found['value']}. There is {values}.")
    if "matching regex" in what:
        return Fault(f"{name} is not written as it must be.{_example(hint)}")
    if "out of range" in what:
        return Fault(f"{name} is too large a number.")
    return Fault(f"{what}.")  # what a reader of ours has said


def of_json(error: Exception) -> str:
    """Why these bytes are no JSON, as a sentence."""
    if isinstance(error, UnicodeDecodeError):
        return "This is no JSON: it is no UTF-8."
    if isinstance(error, RecursionError):
        return "The JSON is nested too deeply."
    told = str(error)
    if "utf-8" in told.lower():  # of msgspec from 0.23 on
        return "This is no JSON: it is no UTF-8."
    if "truncated" in told:
        return "This is no JSON: it ends too early."
    place = _PLACE.search(told)
    if place is None:
        return "This is no JSON."
    if "trailing" in told:
        return f"This is no JSON: there is more behind its end, at byte {place['byte']}."
    return f"This is no JSON: byte {place['byte']} cannot stand there."


def _type(name: str) -> str:
    return _TYPES.get(name, "a text")


def _hint_at(kind: Any, path: str) -> Any:
    """The type hint of a place in a shape, as far as the fields lead."""
    for name, _ in _STEP.findall(path):
        if not name:
            items = [get_args(one) for one in _flat(kind) if get_origin(one) is list]
            kind = items[0][0] if items and items[0] else kind
            continue
        for one in _flat(kind):
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                names = dict(zip(one.__struct_encode_fields__, one.__struct_fields__, strict=True))
                if name in names:
                    kind = get_type_hints(one, include_extras=True)[names[name]]
                    break
    return kind


def _flat(hint: Any) -> Iterator[Any]:
    """A hint, and those of a union and of what is annotated."""
    yield hint
    if get_origin(hint) is not Literal and get_origin(hint) not in (list, dict):
        for part in get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint):
            yield from _flat(part)


def _values(hint: Any) -> list[Any]:
    return [value for one in _flat(hint) if get_origin(one) is Literal for value in get_args(one)]


def _example(hint: Any) -> str:
    """What may be written instead, as far as the shape says it."""
    for one in _flat(hint):
        for meta in get_args(one)[1:] if get_origin(one) is Annotated else ():
            if isinstance(meta, msgspec.Meta):
                if meta.description:
                    return f" Write {meta.description.replace('`', '')}."
                if meta.examples:
                    return f" Write it as {msgspec.json.encode(meta.examples[0]).decode()}."
    return ""
