"""Pairs of a filter in SQL and a message's properties, with RocketMQ's own answers to them.

``python -m tests.support.rocketmq.filter_pairs CLASSPATH`` makes the answers anew: see the README in
tests/support/rocketmq/rocketmq_filter.
"""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ANSWERS: Final = Path(__file__).resolve().parents[2] / "unit/gateway/filters/answers.json.xz"
PAIRS: Final = 20_000
SEED: Final = 5_3_3
SETS: Final = 1_200
NAMES: Final = ("a", "b", "c", "d", "A", "$e", "_f1", "inn", "TAGS", "KEYS", "__SHARDINGKEY")
TEXTS: Final = ("x", "y", "xy", "", "it's", "5", "true", "naïve", "--", "/*", "5.0", "a\nb", "日本")
VALUES: Final = (
    *("5", "5", "5", "-5", "+5", "05", "6", "4", "5.5", "5.", ".5", " 5", "5 ", "1e3", "1E+3", "1000"),
    *("0", "-0"),
    *("0.0", "-0.0", "+0.0", "NaN", "-NaN", "Infinity", "-Infinity", "nan", "inf", "0x1p3", "0x.8P+3"),
    *("0x5", "8"),
    *("5f", "5D", "5L", "5e", "e5", "1_0", "1,5", "--5", "+", "-", ".", "1e400", "-1e400", "4.9e-324"),
    *("1e-400",),
    *("٥", "５", "𝟓", "٥.٥", "\xa05", "\t5\x01", "\u20035", "3000000000", "2147483647", "2147483648"),
    *("-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "9007199254740993", "0" * 30 + "7", "7", "1" * 40, "0.1"),
    *("0.10000000000000001",),
    *("true", "TRUE", "True", "tRuE", "false", "tru", "true ", "yes", "null", "NULL", "ﬁ", "TRUE\u0345"),
    *("x", "x", "y", "xy", "yx", "", "it's", "naïve", "a\nb", "日本", "🙂", "--", "/*"),
)
INTEGERS: Final = (
    *("5", "5", "5", "0", "1", "6", "7", "8", "1000", "5L", "6l", "2147483647", "2147483648", "3000000000"),
    *("9223372036854775807", "9007199254740993", "2147483648L"),
)
FLOATS: Final = (
    *("5.5", "5.0", "5.", ".5", "1e3", "1E+3", "1.e3", ".1e1", "0.1", "5e0", "4.9e-324"),
    *("1.7976931348623157e308",),
    *("9007199254740992.0", "007.5", "2147483648.0"),
)
REFUSED_NUMBERS: Final = (
    *("0.0", "0.", "0e0", "1e309", "1e-400", "2.4e-324", "9223372036854775808", "1" * 40, "00", "0L"),
    *("007", "5LL"),
    *("5.5L", "5a", "1.5.5", "0x10", "5e", "1_0"),
)
KEYWORDS: Final = (
    *("NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"),
    *("CONTAINS", "STARTSWITH", "ENDSWITH", "LIKE"),
)
SYMBOLS: Final = (
    *("=", "<>", ">", ">=", "<", "<=", "(", ")", ",", "+", "-"),
    *("!=", "==", "*", "/", ";", ".", "< =", "||"),
)
ODD: Final = "'\"\\\x00\x0b\x0c\u00a0\u2028ſK\ufeff\uffffé🙂@#%&?[]{}|~^`:/*-\n\r\t"


@dataclass(frozen=True, slots=True)
class Pair:
    """``answer``: T matches, F does not, E is refused."""

    expression: str
    properties: dict[str, str]
    answer: str


class Grammar:
    """Words in the order of the grammar. What is wild may stand where RocketMQ refuses it."""

    def __init__(self, chance: random.Random, wild: float) -> None:
        self._chance = chance
        self._wild = wild

    def condition(self, depth: int) -> list[str]:
        kind = self._chance.random()
        if depth <= 0 or kind < 0.45:
            return self._simple(depth)
        if kind < 0.75:
            words = self.condition(depth - 1)
            for _ in range(self._chance.choice((1, 1, 2, 3))):
                words += [self._chance.choice(("AND", "OR")), *self.condition(depth - 1)]
            return words
        if kind < 0.85:
            return ["NOT", "(", *self.condition(depth - 1), ")"]
        if kind < 0.95:
            return ["(", *self.condition(depth - 1), ")"]
        return ["NOT", *self.condition(depth - 1)]

    def _simple(self, depth: int) -> list[str]:
        negation = self._chance.choice(([], ["NOT"]))
        match self._chance.randrange(11):
            case 0 | 1:
                return [*self._any(depth), self._chance.choice(("=", "<>")), *self._any(depth)]
            case 2 | 3 | 4:
                relation = self._chance.choice(("<", "<=", ">", ">=", "="))
                return [*self._number(depth), relation, *self._number(depth)]
            case 5:
                return [*self._number(depth), *negation, "BETWEEN", *self._number(0), "AND", *self._number(0)]
            case 6:
                texts = [self._text() for _ in range(self._chance.choice((1, 2, 3, 6)))]
                left = self._any(depth) if self._is_wild() else [self._name()]
                return [*left, *negation, "IN", "(", *", ".join(texts).split(" "), ")"]
            case 7:
                test = self._chance.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
                left = self._any(depth) if self._chance.random() < 0.3 else [self._name()]
                return [*left, *negation, test, self._text()]
            case 8:
                return [*self._any(depth), "IS", *negation, "NULL"]
            case 9:
                return [self._name()]
            case _:
                return [self._name(), "=", self._chance.choice(("TRUE", "FALSE", self._text()))]

    def _any(self, depth: int) -> list[str]:
        kind = self._chance.random()
        if kind < 0.4:
            return [self._name()]
        if kind < 0.6:
            return self._number(depth)
        if kind < 0.75:
            return [self._text()]
        if kind < 0.85:
            return [self._chance.choice(("TRUE", "FALSE", "NULL" if self._is_wild() else "TRUE"))]
        if depth > 0:
            return ["(", *self.condition(depth - 1), ")"]
        return [self._chance.choice(("NOT", "-", "+")), *self._any(depth)]

    def _number(self, depth: int) -> list[str]:
        if self._is_wild():
            return [self._chance.choice(REFUSED_NUMBERS)] if self._chance.random() < 0.5 else self._any(depth)
        kind = self._chance.random()
        if kind < 0.45:
            return [self._name()]
        if kind < 0.75:
            return [self._chance.choice(INTEGERS)]
        if kind < 0.9:
            return [self._chance.choice(FLOATS)]
        if kind < 0.92:
            return ["-", *self._any(depth)]
        return [self._chance.choice(("-", "+")), *self._number(depth)]

    def _name(self) -> str:
        return self._chance.choice(NAMES[:4] if self._chance.random() < 0.8 else NAMES)

    def _text(self) -> str:
        return "'" + self._chance.choice(TEXTS).replace("'", "''") + "'"

    def _is_wild(self) -> bool:
        return self._chance.random() < self._wild


def expressions(chance: random.Random) -> Iterator[str]:
    """Without an end: six of ten as RocketMQ takes them, mostly, and then near misses, and words in any order."""
    while True:
        kind = chance.random()
        words = Grammar(chance, wild=0.0 if kind < 0.6 else 0.15).condition(chance.choice((0, 0, 1, 1, 2, 3)))
        if kind > 0.95:
            words = _soup(chance)
        elif kind > 0.8:
            words = _damaged(chance, words)
        expression = _spaced(chance, words)
        if kind > 0.97 and expression:
            at = chance.randrange(len(expression) + 1)
            expression = expression[:at] + chance.choice(ODD) + expression[at + chance.randrange(2) :]
        yield expression


def _soup(chance: random.Random) -> list[str]:
    words = (*KEYWORDS, *SYMBOLS, *NAMES, *INTEGERS[:6], *FLOATS[:4], *REFUSED_NUMBERS, "'x'", "''", "'")
    return [chance.choice(words) for _ in range(chance.randrange(8))]


def _damaged(chance: random.Random, words: list[str]) -> list[str]:
    """One word is missing, twice there, exchanged or new."""
    at = chance.randrange(len(words))
    new = chance.choice((*KEYWORDS, *SYMBOLS, *NAMES[:3], *REFUSED_NUMBERS[:6], "'x'"))
    match chance.randrange(4):
        case 0:
            return words[:at] + words[at + 1 :]
        case 1:
            return [*words[:at], words[at], *words[at:]]
        case 2:
            return [*words[:at], new, *words[at + 1 :]]
        case _:
            return [*words[:at], new, *words[at:]]


def _spaced(chance: random.Random, words: Iterable[str]) -> str:
    """Mostly with one blank between words; keywords in any case, and comments here and there."""
    parts: list[str] = []
    for word in words:
        if word in KEYWORDS and chance.random() < 0.3:
            word = "".join(chance.choice((letter.lower(), letter)) for letter in word)
        parts.append(word)
        kind = chance.random()
        if kind < 0.94:
            parts.append(" ")
        elif kind < 0.97:
            blanks = (
                "  ",
                "\t",
                "\n",
                "\r\n",
                "\f",
                "/**/",
                "/* ' */",
                "/***/",
                "-- c\n",
                "--\r",
                " -- c",
                "/*/ x */",
                "/*",
            )
            parts.append(chance.choice(blanks))
    return "".join(parts)


def _properties(chance: random.Random) -> dict[str, str]:
    names = [name for name in NAMES[:4] if chance.random() < 0.75]
    names += [name for name in NAMES[4:] if chance.random() < 0.2]
    return {name: chance.choice(VALUES) for name in names}


def stored() -> Iterator[Pair]:
    """As RocketMQ answered them."""
    data = json.loads(lzma.decompress(ANSWERS.read_bytes()))
    for expression, at, answers in data["answers"]:
        for place, answer in enumerate(answers):
            yield Pair(expression, data["properties"][(at + place) % len(data["properties"])], answer)


def make(class_path: str) -> None:
    """Asks RocketMQ, and stores what it answers. What it refuses counts once, and all else with two messages."""
    chance = random.Random(SEED)
    sets = [_properties(chance) for _ in range(SETS)]
    source = expressions(chance)
    distinct = list(dict.fromkeys(next(source) for _ in range(PAIRS)))
    places = [chance.randrange(SETS) for _ in distinct]
    asked = [
        (expression, sets[(at + place) % SETS])
        for expression, at in zip(distinct, places, strict=True)
        for place in range(2)
    ]
    answers = _ask(class_path, asked)
    rows, count = [], 0
    for index, (expression, at) in enumerate(zip(distinct, places, strict=True)):
        answer = "".join(answers[index * 2 : index * 2 + 2])
        answer = ("E" if "E" in answer else answer)[: PAIRS - count]
        rows.append((expression, at, answer))
        count += len(answer)
        if count == PAIRS:
            break
    text = json.dumps({"properties": sets, "answers": rows}, ensure_ascii=False, separators=(",", ":"))
    ANSWERS.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _ask(class_path: str, pairs: Iterable[tuple[str, dict[str, str]]]) -> list[str]:
    lines = []
    for expression, properties in pairs:
        fields = [expression, *(part for item in properties.items() for part in item)]
        lines.append("\t".join(b64encode(field.encode()).decode() for field in fields))
    command = ["java", "-cp", class_path, "FilterOracle"]
    ran = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    return ran.stdout.split()


if __name__ == "__main__":
    make(sys.argv[1])
