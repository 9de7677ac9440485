"""What Java reads out of texts: properties have texts as values, and RocketMQ converts them with what Java has."""

from __future__ import annotations

import math
import re
from typing import Final

_INTEGER: Final = re.compile(r"[+-]?\d+")
"""Of any script, as in Java."""
_FEW_DIGITS: Final = 18
"""So many fit into 64 bits in any case."""
_BLANK: Final = "".join(map(chr, range(0x21)))
_DECIMAL: Final = re.compile(
    r"([+-]?(?:NaN|Infinity))"
    r"|([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)


class NotConvertible(Exception):
    """A value is not what it is compared with. The message does not match, whatever else is said of it."""


def to_integer(text: str, bits: int) -> int:
    """``Integer.valueOf`` or ``Long.valueOf``. Raises NotConvertible.

    >>> to_integer("+007", 32)
    7
    """
    is_usual = len(text) <= _FEW_DIGITS and text.isascii() and text.isdecimal()
    value = int(text) if is_usual else _unusual_integer(text)
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise NotConvertible(f"more than {bits} bits")
    return value


def _unusual_integer(text: str) -> int:
    """Digits beyond the basic plane are no digits to Java. Python refuses to read thousands of digits at once."""
    if _INTEGER.fullmatch(text) is None or max(text) > "\uffff":
        raise NotConvertible("no integer")
    sign = text[0] if text[0] in "+-" else ""
    digits = text[len(sign) :]
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0")
    if len(digits) > _FEW_DIGITS + 1:
        raise NotConvertible("an integer too long")
    return int(sign + (digits or "0"))


def to_double(text: str) -> float:
    """``Double.valueOf``. Raises NotConvertible.

    >>> to_double(" 1.5e3f "), to_double("0x1.8p1"), to_double("1e999")
    (1500.0, 3.0, inf)
    """
    found = _DECIMAL.fullmatch(text.strip(_BLANK))
    if found is None:
        raise NotConvertible("no number")
    if found[3] is None:
        return float(found[1] or found[2])
    try:
        return float.fromhex(found[3])
    except OverflowError:
        return -math.inf if found[3].startswith("-") else math.inf
    except ValueError as error:  # more digits than there is memory for
        raise NotConvertible("no number") from error


def to_boolean(text: str) -> bool:
    """``Boolean.valueOf``: what is not true is false.

    >>> to_boolean("TRUE"), to_boolean("yes")
    (True, False)
    """
    return text.lower() == "true"


def double_key(value: float) -> tuple[float, float]:
    """Sorts as ``Double.compareTo``: NaN is equal to itself and more than all else, and -0.0 is less than 0.0."""
    return (math.inf, 2.0) if math.isnan(value) else (value, math.copysign(1.0, value))
