"""JSON lines: what makes a message, what makes a bad line, and how messages are put into batches."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tickwheel_cli.messages.bulk import (
    BATCH_MESSAGES,
    BadLine,
    Batch,
    BulkMessage,
    batches,
    parse_line,
    send_many_arguments,
)


def parse(line: dict[str, Any] | str, topic: str | None = "t") -> BulkMessage | BadLine | None:
    text = line if isinstance(line, str) else json.dumps(line)
    return parse_line(7, text.encode(), topic)


def message(line: dict[str, Any], topic: str | None = "t") -> BulkMessage:
    found = parse(line, topic)
    assert isinstance(found, BulkMessage), found
    return found


def test_a_line_with_everything() -> None:
    found = message(
        {
            "body": "é",
            "topic": "other",
            "key": "k",
            "at": "1970-01-01T00:00:02+00:00",
            "priority": 3,
            "headers": {"a": "b"},
        }
    )
    assert (found.number, found.topic, found.body) == (7, "other", "é".encode())
    assert (found.deliver_at_ms, found.delay) == (2_000, None)
    assert (found.written.key, found.written.priority, found.written.headers) == ("k", 3, {"a": "b"})


def test_the_least_line_is_for_now() -> None:
    found = message({"body": ""})
    assert (found.number, found.topic, found.body, found.deliver_at_ms, found.delay) == (7, "t", b"", 0, None)
    assert (found.written.key, found.written.priority, found.written.headers) == (None, 50, None)


def test_the_other_ways_to_say_body_and_time() -> None:
    assert message({"body_base64": "AAEC"}).body == b"\x00\x01\x02"
    assert message({"body": "x", "in": "2h30m"}).delay == timedelta(hours=2, minutes=30)
    assert message({"body": "x", "deliver_at_ms": 5}).deliver_at_ms == 5


def test_an_empty_line_is_nothing() -> None:
    assert parse("  \n") is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "malformed"),
        ("[1]", "object"),
        ({}, "exactly one of"),
        ({"body": "x", "body_base64": "AA=="}, "exactly one of"),
        ({"body_base64": "?"}, "not base64"),
        ({"body": 5}, "str"),
        ({"body": "x", "bodi": "y"}, "bodi"),
        ({"body": "x", "in": "5"}, "duration"),
        ({"body": "x", "at": "2031-05-01T09:00"}, "UTC offset"),
        ({"body": "x", "in": "5s", "deliver_at_ms": 5}, "at most one"),
        ({"body": "x", "deliver_at_ms": -1}, "deliver_at_ms"),
        ({"body": "x", "priority": 256}, "priority"),
    ],
)
def test_bad_lines_say_their_number_and_why(line: dict[str, Any] | str, reason: str) -> None:
    found = parse(line)
    assert isinstance(found, BadLine)
    assert found.line == 7
    assert reason in found.reason


def test_a_topic_is_needed() -> None:
    found = parse({"body": "x"}, topic=None)
    assert isinstance(found, BadLine)
    assert "no topic" in found.reason


def test_batches_are_of_one_topic_and_one_kind_of_time() -> None:
    lines = [
        {"body": "1"},
        {"body": "2", "in": "1s"},
        {"body": "3", "topic": "u"},
        {"body": "4", "deliver_at_ms": 9},
    ]
    made = {
        (batch.topic, batch.is_delay): [m.body for m in batch.messages]
        for batch in batches(message(line) for line in lines)
    }
    assert made == {("t", False): [b"1", b"4"], ("t", True): [b"2"], ("u", False): [b"3"]}


def test_batches_are_bounded_and_keep_order() -> None:
    made = list(batches(message({"body": str(i)}) for i in range(2 * BATCH_MESSAGES + 1)))
    assert [len(batch.messages) for batch in made] == [BATCH_MESSAGES, BATCH_MESSAGES, 1]
    assert [m.body for batch in made for m in batch.messages] == [
        b"%d" % i for i in range(2 * BATCH_MESSAGES + 1)
    ]


def test_columns_are_sent_only_when_a_line_has_them() -> None:
    plain = Batch("t", is_delay=False, messages=[message({"body": "x"})])
    assert send_many_arguments(plain) == {"bodies": [b"x"], "deliver_at": [0]}
    full = Batch(
        "t",
        is_delay=True,
        messages=[message({"body": "x", "in": "1s", "key": "k", "priority": 1, "headers": {"a": "b"}})],
    )
    assert send_many_arguments(full) == {
        "bodies": [b"x"],
        "delay": [timedelta(seconds=1)],
        "keys": ["k"],
        "priority": [1],
        "headers": [{"a": "b"}],
    }
