"""What a filter in SQL is made of, once it is read.

An operand has a value, which for a condition is true, false or unknown (NULL). A name has the text of the property;
minus before anything but a number is NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, TypeAlias


class Width(Enum):
    """How Java keeps a number, and thus as what the text is read that it is compared with."""

    INT = 32
    LONG = 64
    DOUBLE = 0


class Relation(Enum):
    """Which of two numbers comes first."""

    GREATER = ">"
    AT_LEAST = ">="
    LESS = "<"
    AT_MOST = "<="


class Test(Enum):
    """Where a text is looked for in another."""

    CONTAINS = "CONTAINS"
    STARTS = "STARTSWITH"
    ENDS = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Text:
    """A literal."""

    value: str
    depth: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: int | float
    width: Width
    depth: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE or NULL: each is a literal and a condition."""

    value: bool | None
    depth: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Name:
    """The property's text; NULL without the property."""

    name: str
    depth: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Bare:
    """A name as a condition: false where there is such a property, because a text is not TRUE."""

    name: str
    depth: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Minus:
    """The negative number, or NULL."""

    operand: Operand
    depth: int


@dataclass(frozen=True, slots=True)
class Not:
    """The other truth."""

    operand: Condition
    depth: int


@dataclass(frozen=True, slots=True)
class Every:
    """AND, of two or more."""

    parts: tuple[Condition, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Some:
    """OR, of two or more."""

    parts: tuple[Condition, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Equal:
    """``=``, and IS NULL, whose right side is NULL."""

    left: Operand
    right: Operand
    depth: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """``>`` and its like."""

    relation: Relation
    left: Operand
    right: Operand
    depth: int


@dataclass(frozen=True, slots=True)
class Between:
    """Both ends count as between."""

    value: Operand
    low: Operand
    high: Operand
    is_negated: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Within:
    """IN."""

    name: str
    values: frozenset[str]
    is_negated: bool
    depth: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Search:
    """CONTAINS and its like."""

    operand: Operand
    test: Test
    text: str
    is_negated: bool
    depth: int


Condition: TypeAlias = Truth | Bare | Not | Every | Some | Equal | Ordered | Between | Within | Search
Operand: TypeAlias = Condition | Text | Number | Name | Minus
Literal: TypeAlias = Text | Number | Truth

CONDITIONS: Final = (Truth, Bare, Not, Every, Some, Equal, Ordered, Between, Within, Search)
LITERALS: Final = (Text, Number, Truth)
