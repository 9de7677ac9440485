"""Large JSON in pieces: the same elements as of the whole, each piece small, and nothing decoded that is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.errors import HeadersTooLarge
from tickwheel_web.consuming.shapes import Settle
from tickwheel_web.large import pieces
from tickwheel_web.large.pieces import MAX_HEADERS_JSON_BYTES, PIECE_BYTES, check_fields, lines_of, pieces_of
from tickwheel_web.messages.shapes import Send
from tickwheel_web.problems import Refused

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(alphabet='a,}{[]" \\', max_size=6)),
    lambda inside: st.one_of(
        st.lists(inside, max_size=4), st.dictionaries(st.text(alphabet="ab,", max_size=2), inside, max_size=3)
    ),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def small_pieces() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", 16)
        yield


@pytest.mark.usefixtures("small_pieces")
@given(st.lists(VALUES, max_size=30), st.sampled_from([(",", ":"), (" ,\n ", ": ")]))
def test_the_pieces_have_the_elements_of_the_whole(values: list[Any], between: tuple[str, str]) -> None:
    data = json.dumps(values, separators=between).encode()
    found = [one for piece in pieces_of(data) for one in json.loads(piece)]
    assert found == values


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"1," * 20 + b"]",
        b"[" + b" " * 40 + b",1]",
        b"[1" + b" " * 40 + b"," + b" " * 40 + b",1]",
        b"[" + b"1," * 20 + b"}",
        b"[" + b"1," * 20,
        b"[" + b"1," * 20 + b"1]]",
    ],
)
def test_what_is_no_array_has_a_piece_that_is_none(data: bytes) -> None:
    found = list(pieces_of(data))
    with pytest.raises(msgspec.DecodeError):
        list(map(msgspec.json.decode, found))


@pytest.mark.parametrize(
    "element",
    [
        b'{"text":"a","headers":{"a":[{"b":1},{"b":2}]}}',
        b'"},{"',
        b"1",
        b'{"a":[1,2,3,4,5,6,7,8],"b":"},{"}',
        b"[[1,2],[3,4]]",
    ],
)
def test_pieces_are_small(element: bytes) -> None:
    data = b"[%b]" % b",".join([element] * (2_000_000 // len(element)))
    sizes = [len(piece) for piece in pieces_of(data)]
    assert max(sizes) <= 4 * PIECE_BYTES
    assert sum(sizes) == len(data) + len(sizes) - 1


def test_lines_are_whole() -> None:
    data = b"".join(b"%d\n" % number for number in range(100_000)) + b"end"
    found = list(lines_of(data))
    assert b"".join(found) == data
    assert len(found) > 5
    assert all(piece.endswith(b"\n") for piece in found[:-1])


def test_headers_that_are_never_allowed_are_not_decoded() -> None:
    headers = ",".join(f'"{number}":1' for number in range(MAX_HEADERS_JSON_BYTES // 8))
    with pytest.raises(HeadersTooLarge, match="bytes of JSON"):
        check_fields(Send, b'{"text":"x","headers":{%b}}' % headers.encode())


def test_fields_given_again_and_again_are_not_decoded() -> None:
    data = b'{"headers":{"a":[%b]},"headers":{},"text":""}' % b",".join([b"1"] * 60_000)
    with pytest.raises(Refused) as caught:
        check_fields(Send, data, "/3")
    assert (caught.value.code, caught.value.errors[0].pointer) == ("bad_json", "/3")


def test_a_list_that_is_too_long_is_not_decoded() -> None:
    with pytest.raises(Refused, match="more than 10,000") as caught:
        check_fields(Settle, b'{"ack":[%b]}' % b",".join([b'""'] * 60_000))
    assert caught.value.errors[0].pointer == "/ack"


def test_what_is_large_and_allowed_passes() -> None:
    check_fields(Send, b'{"body":[%b],"headers":{"a":1}}' % b",".join([b"1"] * 100_000))
    nack = b'{"receipt":"a","error":"%b"}' % (b"," * 20)
    check_fields(Settle, b'{"nack":[%b]}' % b",".join([nack] * 10_000))
    check_fields(Send, b"[1,2]")
