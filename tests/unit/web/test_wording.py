"""What a wrong request is told: sentences of ours, with a pointer to what is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tickwheel_web import reading
from tickwheel_web.consuming.shapes import Receive, Settle
from tickwheel_web.endpoints import Endpoint
from tickwheel_web.messages.shapes import BrowseQuery, CancelQuery, ChangeAll, Send
from tickwheel_web.problems import Refused, problem_of, title_of
from tickwheel_web.push.shapes import NewEndpoint
from tickwheel_web.querying.shapes import Question
from tickwheel_web.schedules.shapes import NewSchedule
from tickwheel_web.shapes import ConfirmQuery, PageQuery
from tickwheel_web.table import ENDPOINTS
from tickwheel_web.transactions.shapes import Transaction

LIBRARY = re.compile(r"Expected|`|\^|got |regex|malformed|enum|Object |msgspec|Input data")


def refused(kind: Any, data: bytes) -> Refused:
    with pytest.raises(Refused) as found:
        reading.decode(kind, data)
    return found.value


@pytest.mark.parametrize(
    ("kind", "given", "pointer", "detail"),
    [
        (Send, {"text": 5}, "/text", "text is a whole number, and must be a text."),
        (
            *(Send, {"text": "x", "delay": 5}, "/delay"),
            "delay is a whole number, and must be a text. Write 30s, 1h30m, 250ms, 90d, or PT30S.",
        ),
        (Send, {"text": "x", "priority": 256}, "/priority", "priority must be at most 255."),
        (Send, {"text": "x", "priority": -1}, "/priority", "priority must be at least 0."),
        (Send, {"text": "x", "priority": 1 << 70}, "/priority", None),
        (Send, {"text": None}, "/text", "text is null, and must be a text."),
        (Send, {"text": "x", "headers": []}, "/headers", "headers is a list, and must be an object."),
        (
            *(Send, {"text": "x", "deliver_at": 1_900_000_000}, "/deliver_at"),
            "A time is a number. Write it as 2031-05-01T09:00:00+02:00, or with Z for UTC.",
        ),
        (Send, [], "", "The request is a list, and must be an object."),
        (ChangeAll, {"filter": {}}, "", "action is missing."),
        (
            *(ChangeAll, {"action": "x", "filter": {}}, "/action"),
            "action is 'x'. There is cancel, reschedule, redeliver.",
        ),
        (ChangeAll, {"action": "cancel", "filter": {"due_from": "x"}}, "/filter/due_from", None),
        (ChangeAll, {"action": "cancel", "filter": {"state": ["x"]}}, "/filter/state/0", None),
        (Settle, {"ack": [5]}, "/ack/0", None),
        (Settle, {"nack": [{"delay": "1s"}]}, "/nack/0", None),
        (Receive, {"max": "x"}, "/max", "max is a text, and must be a whole number."),
        (Question, {"sql": ""}, "/sql", "sql must have at least 1 characters."),
        (
            Question,
            {"sql": "x", "format": "xml"},
            "/format",
            "format is 'xml'. There is json, ndjson, csv, arrow.",
        ),
        (Transaction, {"sends": {}}, "/sends", "sends is an object, and must be a list."),
        (NewSchedule, {"topic": "t", "every": 5}, "/every", None),
        (
            NewEndpoint,
            {"topic": "t", "url": "x"},
            "/url",
            'url is not written as it must be. Write it as "https://shop.example/hooks".',
        ),
    ],
)
def test_what_is_wrong_with_a_body(kind: Any, given: Any, pointer: str, detail: str | None) -> None:
    error = refused(kind, json.dumps(given).encode())
    assert (error.status, [one.pointer for one in error.errors]) == (400, [pointer])
    assert detail is None or error.detail == detail
    assert not LIBRARY.search(error.detail), error.detail


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "This is no JSON: it ends too early."),
        (b'{"text": ', "This is no JSON: it ends too early."),
        (b"hi=1", "This is no JSON: byte 0 cannot stand there."),
        (b'{"text": "x"} x', "This is no JSON: there is more behind its end, at byte 15."),
        (b'{"text": "\xff"}', "This is no JSON: it is no UTF-8."),
        (b'{"headers": {"a": ' + b"[" * 200_000, "The JSON is nested too deeply."),
    ],
)
def test_what_is_no_json(data: bytes, detail: str) -> None:
    error = refused(Send, data)
    assert (error.code, error.detail) == ("bad_json", detail)


@pytest.mark.parametrize(
    ("kind", "given", "pointer"),
    [
        (PageQuery, {"limit": "0"}, "?limit"),
        (PageQuery, {"limit": "x"}, "?limit"),
        (ConfirmQuery, {}, "?confirm"),
        (CancelQuery, {"stop": "yes"}, "?stop"),
        (BrowseQuery, {"state": "gone"}, "?state"),
        (BrowseQuery, {"due_from": "17"}, "?due_from"),
    ],
)
def test_what_is_wrong_with_a_parameter(kind: Any, given: dict[str, str], pointer: str) -> None:
    with pytest.raises(Refused) as found:
        reading.converted(kind, given)
    assert [one.pointer for one in found.value.errors] == [pointer]
    assert not LIBRARY.search(found.value.detail), found.value.detail


_WRONG: list[Any] = [None, True, 5, -1, 1.5, "", "x", [], [None], {}, {"x": 1}, [[{}]]]


@pytest.mark.parametrize("row", [row for row in ENDPOINTS if row.requests], ids=lambda row: row.name)
def test_no_field_of_any_body_is_told_of_in_words_of_the_library(row: Endpoint) -> None:
    kind = (row.requests or {}).get("application/json")
    if isinstance(kind, list):
        kind = kind[0]
    assert kind is not None
    told: list[Refused] = []
    for name in kind.__struct_encode_fields__:
        for value in _WRONG:
            try:
                reading.decode(kind, json.dumps({name: value}).encode())
            except Refused as error:
                told.append(error)
    assert told
    assert [error.detail for error in told if LIBRARY.search(error.detail)] == []
    assert all(error.errors[0].pointer.startswith("/") for error in told if "is missing" not in error.detail)


def test_a_title_is_that_of_the_type() -> None:
    """As RFC 9457 has it: the same for each problem of the type, and not the phrase of its status."""
    problem = problem_of(Refused(400, "unknown_field", "There is no field 'x'.", pointer="/x"))
    assert (problem.type, problem.title) == ("urn:tickwheel:error:unknown_field", "Unknown field")
    assert title_of("bad_argument") == "Bad argument"
