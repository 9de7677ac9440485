"""Arguments that are not what was asked for: each gives a typed error that says what to pass instead."""

from __future__ import annotations

import difflib
import ipaddress
import math
import operator
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from numbers import Real
from typing import Any, Final

from tickwheel.protocol.errors import BadArgument, KeyTooLong
from tickwheel.protocol.limits import MAX_ID, MAX_KEY_BYTES

_SHOWN_CHARS: Final = 60
_TYPING_MISTAKE: Final = 0.6
_ID_ADVICE: Final = (
    f"Use an id that a send returned or that a message has: a whole number from 0 to {MAX_ID:,}."
)
_KEY_ADVICE: Final = "Use a text that is not empty, or None for no key."


def shown(value: object) -> str:
    """A value as it stands in a message: short, and whatever its own ``repr`` does."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def whole_or_none(value: object) -> int | None:
    """The number that an int, or another integer such as numpy's, is; None: it is something else, or a bool."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:
        return None


def whole(value: object, name: str, low: int, high: int, advice: str | None = None) -> int:
    """A whole number from ``low`` to ``high``. Raises BadArgument."""
    number = whole_or_none(value)
    if number is None or not low <= number <= high:
        raise BadArgument(
            f"{name} is {shown(value)}.", advice=advice or f"Use a whole number from {low:,} to {high:,}."
        )
    return number


def one_id(value: object, name: str = "id") -> int:
    """The id of a message. Raises BadArgument."""
    return whole(value, name, 0, MAX_ID, _ID_ADVICE)


def many_ids(values: object, name: str = "ids") -> list[int]:
    """A list of ids, checked before the first of them is sent. Raises BadArgument."""
    found = listed(values, name, "[17, 18]")
    if set(map(type, found)) <= {int} and (not found or (min(found) >= 0 and max(found) <= MAX_ID)):
        return found
    return [one_id(value, f"{name}[{index}]") for index, value in enumerate(found)]


def one_key(value: object, name: str = "key") -> str:
    """A key, as ``send`` takes it. Raises BadArgument, KeyTooLong."""
    if not isinstance(value, str) or not value:
        raise BadArgument(f"{name} is {shown(value)}.", advice=_KEY_ADVICE)
    size = len(encoded(value, name))
    if size > MAX_KEY_BYTES:
        raise KeyTooLong(f"{name} has {size:,} bytes; {MAX_KEY_BYTES:,} are allowed.")
    return value


def many_keys(values: object, name: str = "keys") -> list[str]:
    """A list of keys. Raises BadArgument, KeyTooLong."""
    return [
        one_key(value, f"{name}[{index}]") for index, value in enumerate(listed(values, name, '["a", "b"]'))
    ]


def listed(values: object, name: str, example: str) -> list[Any]:
    """What is iterated over, as a list; not the characters of a text, nor what has no order. Raises BadArgument."""
    if not isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set):
        try:
            iterator = iter(values)  # type: ignore[call-overload]
        except TypeError:
            pass
        else:
            return list(iterator)
    raise BadArgument(
        f"{name} is {shown(values)}, which is no list.", advice=f"Give a list: {name}={example}."
    )


def encoded(text: str, name: str) -> bytes:
    """A text as UTF-8. Raises BadArgument for half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument(
            f"{name} is {shown(text)}, which has half a surrogate pair and so no UTF-8.",
            advice="Such a text comes of bytes that were decoded with errors='surrogateescape': pass what was meant.",
        ) from None


def escaped(text: str) -> str:
    """A text that is UTF-8: half a surrogate pair, which names of files may have, as ``\\udcff``."""
    return text.encode(errors="backslashreplace").decode()


def text(value: object, name: str, advice: str = "Use a text.") -> str:
    """A text that can be sent. Raises BadArgument."""
    if not isinstance(value, str):
        raise BadArgument(f"{name} is {shown(value)}.", advice=advice)
    encoded(value, name)
    return value


def network_address(value: object, name: str) -> str:
    """An IP address, or ``unknown``. Raises BadArgument."""
    found = text(value, name)
    try:
        return found if found == "unknown" else str(ipaddress.ip_address(found))
    except ValueError:
        raise BadArgument(f"{name} is {shown(value)}.", advice="Use an IP address, or unknown.") from None


def flag(value: object, name: str) -> bool:
    """True or False. Raises BadArgument."""
    if not isinstance(value, bool):
        raise BadArgument(f"{name} is {shown(value)}.", advice="Use True or False.")
    return value


def seconds(value: object, name: str) -> float:
    """A length of time in seconds: zero, or more. Raises BadArgument."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(Exception):  # timedelta64 of numpy counts as a real number
            number = float(value)
    if number >= 0:
        return number
    raise BadArgument(f"{name} is {shown(value)}.", advice="Use seconds as a number: 30, or 0.5.")


def seconds_or_none(value: object, name: str) -> float | None:
    """The same; None: without end. Raises BadArgument."""
    return None if value is None else seconds(value, name)


def known(given: Mapping[str, object], names: Iterable[str], what: str) -> None:
    """Raises BadArgument for the first option that has none of the ``names``, with the one that was probably meant."""
    allowed = list(names)
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1, cutoff=_TYPING_MISTAKE)
            advice = f"Did you mean {near[0]}?" if near else f"Its options are {', '.join(allowed)}."
            raise BadArgument(f"{what} has no option {name!r}.", advice=advice)
