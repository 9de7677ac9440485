"""What may be put together, and what RocketMQ refuses before it has seen a message.

It looks only at literals as they stand: ``-5`` is no literal to it but an operation, whose value it does not know yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from tickwheel_gateway.filters.refusals import refusal
from tickwheel_gateway.filters.tree import (
    CONDITIONS,
    LITERALS,
    Bare,
    Between,
    Condition,
    Equal,
    Every,
    Minus,
    Name,
    Not,
    Number,
    Operand,
    Ordered,
    Relation,
    Search,
    Some,
    Test,
    Truth,
    Width,
    Within,
)

MAX_DEPTH: Final = 64
"""Of operators inside one another. A row of AND, or of OR, counts once, however long."""
_MAX_DIGITS: Final = 19
_NULL: Final = Truth(None)


def integer(digits: str) -> Number:
    """Raises Refused for more than 64 bits."""
    value = int(digits) if len(digits) <= _MAX_DIGITS else 1 << 63
    if value >= 1 << 63:
        raise refusal("an integer of more than 64 bits")
    return Number(value, Width.INT if value < 1 << 31 else Width.LONG)


def double(text: str) -> Number:
    """Raises Refused for zero as well: RocketMQ wants at least the least positive number."""
    value = float(text)
    if math.isinf(value) or not value:
        raise refusal("a number with a point that is zero, too small or too large")
    return Number(value, Width.DOUBLE)


def condition(operand: Operand) -> Condition:
    """The same as a condition. Raises Refused."""
    if isinstance(operand, Name):
        return Bare(operand.name)
    if not isinstance(operand, CONDITIONS):
        raise refusal("a value stands where a condition should")
    return operand


def minus(operand: Operand) -> Minus:
    """The operation, also before a number."""
    return Minus(operand, _deeper(operand))


def negation(operand: Operand) -> Not:
    """Raises Refused."""
    inner = condition(operand)
    return Not(inner, _deeper(inner))


def every(parts: tuple[Condition, ...]) -> Every:
    """Of two or more."""
    return Every(parts, _deeper(*parts))


def some(parts: tuple[Condition, ...]) -> Some:
    """Of two or more."""
    return Some(parts, _deeper(*parts))


def equal(left: Operand, right: Operand) -> Equal:
    """Raises Refused. TRUE and FALSE may be at the right of any literal, but at the left of none but themselves."""
    if _NULL in (left, right):
        raise refusal("nothing is equal to NULL: say IS NULL")
    if isinstance(left, Truth) and isinstance(right, LITERALS) and not isinstance(right, Truth):
        raise refusal("TRUE or FALSE compared with another kind of literal")
    return Equal(left, right, _deeper(left, right))


def is_null(operand: Operand) -> Equal:
    """Of anything."""
    return Equal(operand, _NULL, _deeper(operand))


def ordered(relation: Relation, left: Operand, right: Operand) -> Ordered:
    """Raises Refused."""
    _check_ordered(left, right)
    return Ordered(relation, left, right, _deeper(left, right))


def between(value: Operand, low: Operand, high: Operand, is_negated: bool) -> Between:
    """Raises Refused. Only where it is not negated must the ends be the right way round."""
    _check_ordered(value, low, high)
    if not is_negated and isinstance(low, Number) and isinstance(high, Number):
        if Width.DOUBLE in (low.width, high.width):
            is_reversed = float(high.value) < float(low.value)
        else:
            is_reversed = high.value < low.value
        if is_reversed:
            raise refusal("the ends of BETWEEN are the wrong way round")
    return Between(value, low, high, is_negated, _deeper(value, low, high))


def within(operand: Operand, values: Iterable[str], is_negated: bool) -> Within:
    """Raises Refused."""
    if not isinstance(operand, Name):
        raise refusal("the left side of IN is not the name of a property")
    return Within(operand.name, frozenset(values), is_negated)


def search(operand: Operand, test: Test, text: str, is_negated: bool) -> Search:
    """In anything, though it is only found in texts."""
    return Search(operand, test, text, is_negated, _deeper(operand))


def _check_ordered(*operands: Operand) -> None:
    for operand in operands:
        if isinstance(operand, (*LITERALS, *CONDITIONS)) and not isinstance(operand, Number):
            raise refusal("only numbers and properties come before or after one another")


def _deeper(*operands: Operand) -> int:
    depth = 1 + max(operand.depth for operand in operands)
    if depth > MAX_DEPTH:
        raise refusal(f"more than {MAX_DEPTH} operators inside one another")
    return depth
