"""Names that stand twice in one object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel_web.repeated import repeated_name

NAMES = st.sampled_from(["key", "body", "delay", "headers", "é", 'a"b', "a b"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False)),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.lists(st.tuples(NAMES, inside), max_size=4).map(tuple)
    ),
    max_leaves=12,
)


def written(value: Any, blank: str, *, ascii_only: bool) -> str:
    """An object is a tuple of its members here."""
    if isinstance(value, tuple):
        members = [
            f"{written(name, blank, ascii_only=ascii_only)}{blank}:{written(one, blank, ascii_only=ascii_only)}"
            for name, one in value
        ]
        return "{" + f",{blank}".join(members) + blank + "}"
    if isinstance(value, list):
        return "[" + f",{blank}".join(written(one, blank, ascii_only=ascii_only) for one in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def has_repeated(value: Any) -> bool:
    """Read plainly."""
    if isinstance(value, tuple):
        names = [name for name, _ in value]
        kept = [one for name, one in value if name != "body"]
        return len(set(names)) < len(names) or any(map(has_repeated, kept))
    return isinstance(value, list) and any(map(has_repeated, value))


@given(VALUES, st.sampled_from(["", " ", "\n", "\t "]), st.booleans())
def test_it_finds_what_a_plain_reader_finds(value: Any, blank: str, ascii_only: bool) -> None:
    data = written(value, blank, ascii_only=ascii_only).encode()
    assert (repeated_name(data) is not None) == has_repeated(value)


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple), max_size=5))
def test_lines(values: list[Any]) -> None:
    data = "\n".join(written(value, " ", ascii_only=True) for value in values).encode()
    assert (repeated_name(data, is_lines=True) is not None) == any(map(has_repeated, values))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"key": "a", "key": "a"}', "key"),
        (b'{"key": "a", "\\u006bey": "b"}', "key"),
        (b'[{"key": 1}, {"text": 1, "text": 2}]', "text"),
        (b'{"headers": {"a": 1, "a": 1}}', "a"),
        (b'{"body": {"a": 1, "a": 1}}', None),
        (b'{"body": {"a": 1, "a": 1}, "body": 1}', "body"),
        (b'{"body": "\xff", "number": ' + b"9" * 5_000 + b"}", None),
        (b"[]", None),
        (b"{}", None),
    ],
)
def test_which(data: bytes, name: str | None) -> None:
    assert repeated_name(data) == name
