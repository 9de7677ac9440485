"""The grammar of a filter in SQL.

From loose to tight: OR; AND; ``=``, ``<>`` and IS; comparisons; then the prefixes ``+``, ``-`` and NOT. All chain to
the left, so that ``a = 1 = TRUE`` is ``(a = 1) = TRUE``; and ``NOT a = 1`` is ``(NOT a) = 1``.
"""

from __future__ import annotations

from typing import Final

from tickwheel_gateway.filters import operators
from tickwheel_gateway.filters.operators import MAX_DEPTH
from tickwheel_gateway.filters.refusals import refusal
from tickwheel_gateway.filters.tokens import Kind, Token, Tokens
from tickwheel_gateway.filters.tree import Condition, Name, Operand, Relation, Test, Text, Truth

_RELATIONS: Final = {relation.value: relation for relation in Relation}
_TESTS: Final = {test.value: test for test in Test}
_PHRASES: Final = ("NOT", "BETWEEN", "IN", *_TESTS)
_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


def parse(text: str) -> Condition:
    """Raises Refused. As in RocketMQ, what follows a complete condition is not looked at, but must begin with a word.

    >>> parse("a = 1 and so on") == parse("a = 1 AND so")
    True
    """
    return operators.condition(_Parser(text).choice())


class _Parser:
    """One method for each level, but for those that need no method of their own: 5 calls a pair of parentheses."""

    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._open = 0
        """Parentheses around what is read now."""

    def choice(self) -> Operand:
        """OR of AND."""
        choices: list[Operand] = []
        while True:
            rows = [self._equality()]
            while self._takes("AND"):
                rows[-1] = operators.condition(rows[-1])
                rows.append(operators.condition(self._equality()))
            choices.append(_joined(rows))
            if not self._takes("OR"):
                break
        if len(choices) == 1:
            return choices[0]
        return operators.some(tuple(operators.condition(choice) for choice in choices))

    def _equality(self) -> Operand:
        left = self._comparison()
        while self._tokens.look().is_word("=", "<>", "IS"):
            word = self._tokens.take().text
            if word == "IS":
                is_negated = self._takes("NOT")
                self._expect("NULL")
                left = operators.is_null(left)
            else:
                is_negated = word == "<>"
                left = operators.equal(left, self._comparison())
            left = operators.negation(left) if is_negated else left
        return left

    def _comparison(self) -> Operand:
        left = self._operand()
        while (token := self._tokens.look()).is_word(*_RELATIONS, *_PHRASES):
            if token.text in _RELATIONS:
                self._tokens.take()
                left = operators.ordered(_RELATIONS[token.text], left, self._operand())
            else:
                left = self._phrase(left)
        return left

    def _phrase(self, left: Operand) -> Operand:
        """A comparison that begins with a keyword."""
        is_negated = self._takes("NOT")
        token = self._tokens.take()
        if token.is_word("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            return operators.between(left, low, self._operand(), is_negated)
        if token.is_word("IN"):
            self._expect("(")
            values = [self._text()]
            while self._takes(","):
                values.append(self._text())
            self._expect(")")
            return operators.within(left, values, is_negated)
        if token.is_word(*_TESTS):
            return operators.search(left, _TESTS[token.text], self._text(), is_negated)
        raise _unexpected(token)

    def _operand(self) -> Operand:
        """With its prefixes, of which the last one is the first to count."""
        prefixes: list[str] = []
        while (token := self._tokens.take()).is_word("+", "-", "NOT"):
            prefixes.append(token.text)
            if len(prefixes) > MAX_DEPTH:
                raise refusal(f"more than {MAX_DEPTH} prefixes")
        operand = self._choice_inside() if token.is_word("(") else _single(token)
        for prefix in reversed(prefixes):
            if prefix == "-":
                operand = operators.minus(operand)
            elif prefix == "NOT":
                operand = operators.negation(operand)
        return operand

    def _choice_inside(self) -> Operand:
        self._open += 1
        if self._open > MAX_DEPTH:
            raise refusal(f"more than {MAX_DEPTH} parentheses inside one another")
        operand = self.choice()
        self._expect(")")
        self._open -= 1
        return operand

    def _text(self) -> str:
        token = self._tokens.take()
        if token.kind is not Kind.TEXT:
            raise _unexpected(token)
        return token.text

    def _takes(self, word: str) -> bool:
        """Whether it was the next word."""
        if not self._tokens.look().is_word(word):
            return False
        self._tokens.take()
        return True

    def _expect(self, word: str) -> None:
        token = self._tokens.take()
        if not token.is_word(word):
            raise _unexpected(token)


def _joined(rows: list[Operand]) -> Operand:
    return rows[0] if len(rows) == 1 else operators.every(tuple(map(operators.condition, rows)))


def _single(token: Token) -> Operand:
    """A literal or a name."""
    if token.kind is Kind.NAME:
        return Name(token.text)
    if token.kind is Kind.TEXT:
        return Text(token.text)
    if token.kind is Kind.INTEGER:
        return operators.integer(token.text.rstrip("lL"))
    if token.kind is Kind.FLOAT:
        return operators.double(token.text)
    if token.is_word(*_TRUTHS):
        return Truth(_TRUTHS[token.text])
    raise _unexpected(token)


def _unexpected(token: Token) -> Exception:
    what = "the end" if token.kind is Kind.END else repr(token.text[:40])
    return refusal(f"{what} at character {token.at + 1} is not what should be there")
