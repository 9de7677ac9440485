"""Whether a message's properties meet a condition: the tree is made into functions once.

Each function takes the properties and gives a value: a truth is True, False, or None for unknown. It raises
NotConvertible where RocketMQ fails; what RocketMQ does not evaluate, because the answer is known without it, cannot
fail here either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from tickwheel_gateway.filters.conversions import (
    NotConvertible,
    double_key,
    to_boolean,
    to_double,
    to_integer,
)
from tickwheel_gateway.filters.tree import (
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
    Text,
    Truth,
    Width,
    Within,
)

Properties: TypeAlias = Mapping[str, str]
Value: TypeAlias = str | bool | Number | None
Evaluate: TypeAlias = Callable[[Properties], Value]
Decide: TypeAlias = Callable[[Properties], bool | None]
_Key: TypeAlias = int | tuple[float, float]

_HOLDS: Final[dict[Relation, Callable[[Any, Any], bool]]] = {
    Relation.GREATER: operator.gt,
    Relation.AT_LEAST: operator.ge,
    Relation.LESS: operator.lt,
    Relation.AT_MOST: operator.le,
}
_TURNED: Final = {
    Relation.GREATER: Relation.LESS,
    Relation.AT_LEAST: Relation.AT_MOST,
    Relation.LESS: Relation.GREATER,
    Relation.AT_MOST: Relation.AT_LEAST,
}
_FOUND: Final[dict[Test, Callable[[str, str], bool]]] = {
    Test.CONTAINS: operator.contains,
    Test.STARTS: str.startswith,
    Test.ENDS: str.endswith,
}


def decide(node: Condition) -> Decide:
    """The condition as a function."""
    match node:
        case Truth(value):
            return lambda properties: value
        case Bare(name):
            return lambda properties: False if name in properties else None
        case Not(operand):
            return _opposite(decide(operand))
        case Every(parts):
            return _row([decide(part) for part in parts], ends_it=False)
        case Some(parts):
            return _row([decide(part) for part in parts], ends_it=True)
        case Equal(left, right):
            return _equal(left, right)
        case Ordered(relation, left, right):
            return _ordered(relation, left, right)
        case Between():
            return _between(node)
        case Within(name, values, is_negated):
            return _within(name, values, is_negated)
        case Search():
            return _search(node)


def _evaluate(node: Operand) -> Evaluate:
    match node:
        case Text(value):
            return lambda properties: value
        case Number():
            return lambda properties: node
        case Name(name):
            return lambda properties: properties.get(name)
        case Minus():
            number = _number(node)
            return _nothing(node) if number is None else lambda properties: number
        case _:
            return decide(node)


def _number(node: Operand) -> Number | None:
    """Numbers are known from the start: properties are texts, and nothing is reckoned but the negative."""
    if isinstance(node, Number):
        return node
    inner = _number(node.operand) if isinstance(node, Minus) else None
    return None if inner is None else Number(-inner.value, inner.width)


def _nothing(node: Minus) -> Decide:
    """The negative of no number: NULL, but what is in it may fail."""
    inner = _evaluate(node.operand)

    def nothing(properties: Properties) -> None:
        inner(properties)

    return nothing


def _opposite(inner: Decide) -> Decide:
    def opposite(properties: Properties) -> bool | None:
        truth = inner(properties)
        return None if truth is None else not truth

    return opposite


def _row(parts: list[Decide], ends_it: bool) -> Decide:
    """AND ends at the first that is false, and OR at the first that is true."""

    def row(properties: Properties) -> bool | None:
        truth: bool | None = not ends_it
        for part in parts:
            found = part(properties)
            if found is ends_it:
                return ends_it
            if found is None:
                truth = None
        return truth

    return row


def _within(name: str, values: frozenset[str], is_negated: bool) -> Decide:
    def within(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in values) is not is_negated

    return within


def _search(node: Search) -> Decide:
    """Never unknown. For an empty text nothing is evaluated, so that nothing fails."""
    if not node.text:
        return lambda properties: False
    inner, searched, found, is_negated = (
        _evaluate(node.operand),
        node.text,
        _FOUND[node.test],
        node.is_negated,
    )

    def search(properties: Properties) -> bool:
        text = inner(properties)
        return isinstance(text, str) and found(text, searched) is not is_negated

    return search


def _equal(left: Operand, right: Operand) -> Decide:
    """The usual forms have functions of their own, which are faster."""
    number = _number(right)
    match left, right:
        case Name(name), Text(expected):

            def equal_text(properties: Properties) -> bool | None:
                text = properties.get(name)
                return None if text is None else text == expected

            return equal_text
        case Name(name), Truth(None):
            return lambda properties: name not in properties
        case Name(name), _ if number is not None:
            return _beside(name, operator.eq, number)
    first, second = _evaluate(left), _evaluate(right)
    return lambda properties: _are_equal(first(properties), second(properties))


def _are_equal(left: Value, right: Value) -> bool | None:
    """As Java would: a text becomes what it is compared with, and NULL is equal to NULL."""
    if left is None or right is None:
        return None if left is None and right is not None else left is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) and isinstance(right, str):
        raise NotConvertible("a truth at the left of a text")  # RocketMQ mistakes the left side for the text
    if isinstance(left, str) and isinstance(right, bool):
        return to_boolean(left) is right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Number) and isinstance(right, Number):
        first, second = _keys(left, right)
        return first == second
    number, text = (left, right) if isinstance(left, Number) else (right, left)
    assert isinstance(number, Number)
    assert isinstance(text, str)
    return _reader(number.width)(text) == _key(number)


def _ordered(relation: Relation, left: Operand, right: Operand) -> Decide:
    """Either side is a number, a name, or nothing."""
    first, second = _number(left), _number(right)
    holds = _HOLDS[relation]
    if first is not None and second is not None:
        truth = holds(*_keys(first, second))
        return lambda properties: truth
    match left, right:
        case Name(name), _ if second is not None:
            return _beside(name, holds, second)
        case _, Name(name) if first is not None:
            return _beside(name, _HOLDS[_TURNED[relation]], first)
        case Name(name), Name(other):
            return _two_names(holds, name, other)
    return _with_nothing(_evaluate(left), _evaluate(right))


def _two_names(holds: Callable[[Any, Any], bool], left: str, right: str) -> Decide:
    def two_names(properties: Properties) -> bool | None:
        first, second = properties.get(left), properties.get(right)
        if first is None or second is None:
            return None
        return holds(double_key(to_double(first)), double_key(to_double(second)))

    return two_names


def _beside(name: str, holds: Callable[[Any, Any], bool], number: Number) -> Decide:
    """A property at the left of a number."""
    read, key = _reader(number.width), _key(number)

    def beside(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else holds(read(text), key)

    return beside


def _with_nothing(left: Evaluate, right: Evaluate) -> Decide:
    """One side at least is NULL. The right one is evaluated, and may fail, only if the left one is not."""

    def with_nothing(properties: Properties) -> None:
        if left(properties) is not None:
            right(properties)

    return with_nothing


def _between(node: Between) -> Decide:
    """Two comparisons; but nothing is evaluated once, or such conditions inside one another would take for ever."""
    if isinstance(node.value, Minus) and _number(node.value) is None:
        return _nothing(node.value)
    first, second = Relation.AT_LEAST, Relation.AT_MOST
    if node.is_negated:
        first, second = Relation.LESS, Relation.GREATER
    parts = [_ordered(first, node.value, node.low), _ordered(second, node.value, node.high)]
    return _row(parts, ends_it=node.is_negated)


def _reader(width: Width) -> Callable[[str], _Key]:
    """What reads a text as such a number."""
    if width is Width.DOUBLE:
        return lambda text: double_key(to_double(text))
    return partial(to_integer, bits=width.value)


def _key(number: Number) -> _Key:
    return double_key(number.value) if number.width is Width.DOUBLE else int(number.value)


def _keys(left: Number, right: Number) -> tuple[int | float, int | float]:
    """What is compared: doubles if one of them is, so that a large integer is rounded."""
    if Width.DOUBLE in (left.width, right.width):
        return float(left.value), float(right.value)
    return left.value, right.value
