"""What is wrong with task messages, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel.celery.task_message import fault_of_message, fault_of_payload

GOOD: dict[str, Any] = {
    "task": "report",
    "id": "17",
    "lang": "py",
    "shadow": None,
    "eta": None,
    "expires": datetime(2031, 5, 1, tzinfo=UTC),
    "retries": 0,
    "timelimit": [None, 1.5],
    "argsrepr": "()",
    "stamps": {"a": 1},
    "stamped_headers": ["a"],
    "compression": "application/x-gzip",
    "of the sender": [1],
}


def message(
    properties: dict[str, Any] | None = None, encoding: Any = "utf-8", **headers: Any
) -> dict[str, Any]:
    return {
        "headers": {**GOOD, **headers},
        "properties": properties or {},
        "content-type": "application/json",
        "content-encoding": encoding,
    }


def test_what_celery_sends_is_right() -> None:
    assert not fault_of_message(message({"reply_to": "me", "priority": 3}))
    assert not fault_of_message(message(eta="2031-05-01T00:00:00+00:00", timelimit=None, stamps=None))


def test_what_is_no_task_may_be_anything() -> None:
    raw = {"headers": {"retries": "x", "compression": 5}, "properties": {"reply_to": 1}}
    assert not fault_of_message(raw)
    assert not fault_of_payload({}, 17)


@table(
    ("wrong", "fault"),
    [
        ({"timelimit": "soon"}, "its header timelimit is 'soon', and not a pair of seconds"),
        ({"timelimit": [1]}, "its header timelimit is [1], and not a pair of seconds"),
        ({"expires": ""}, "its header expires is '', and not an ISO 8601 time"),
        ({"retries": "x"}, "its header retries is 'x', and not a whole number"),
        ({"stamped_headers": [[]]}, "its header stamped_headers is [[]], and not a list of text"),
        ({"shadow": ["a"]}, "its header shadow is ['a'], and not text"),
        (
            {"compression": "application/x-none"},
            "its compression is 'application/x-none', which is not known here",
        ),
        ({"compression": [1]}, "its compression is [1], which is not known here"),
        ({"encoding": "latin-17"}, "its content encoding is 'latin-17', which is not known here"),
        ({"properties": {"reply_to": {}}}, "its property reply_to is {}, and not text"),
    ],
)
def test_a_wrong_header_is_named(wrong: dict[str, Any], fault: str) -> None:
    assert fault_of_message(message(**wrong)) == fault


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (17, "its body is 17, and not [arguments, keyword arguments, what it embeds]"),
        ([[], {}], "its body is [[], {}], and not [arguments, keyword arguments, what it embeds]"),
        ([1, {}, {}], "its arguments are 1, and not a list"),
        ([[], [], {}], "its keyword arguments are [], and not an object"),
        ([[], {}, 5], "its body embeds 5, and not an object"),
        ([[], {}, {"errbacks": [1]}], "its field errbacks is [1], and not a list of signatures"),
        ({"args": 1}, "its arguments are 1, and not a list"),
    ],
)
def test_a_wrong_body_is_told(payload: Any, fault: str) -> None:
    assert fault_of_payload(GOOD, payload) == fault


def test_right_bodies() -> None:
    assert not fault_of_payload(GOOD, [[1], {"a": 2}, {"callbacks": None, "chord": None, "chain": None}])
    assert not fault_of_payload(GOOD, ([], {}, None))
    assert not fault_of_payload(GOOD, {"args": [], "kwargs": {}})
    assert not fault_of_payload({}, {"task": "report", "id": "17", "args": [], "kwargs": {}, "utc": True})


@pytest.mark.parametrize("wrong", [{"task": [1]}, {"id": None}, {"timelimit": 5}, {"kwargs": 1}])
def test_protocol_1_has_all_of_it_in_the_body(wrong: dict[str, Any]) -> None:
    assert fault_of_payload({}, {"task": "report", "id": "17", "args": [], "kwargs": {}, **wrong})


def test_what_is_long_is_cut() -> None:
    fault = fault_of_message(message(timelimit="x" * 10_000))
    assert len(fault) < 300
