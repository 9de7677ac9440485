"""Headers of requests, and the headers of messages that are HTTP tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel.protocol.targets.target_headers import (
    MAX_HEADERS,
    METHODS,
    Task,
    check_headers,
    task_headers,
    task_of,
)

URL = "https://a.example/x"


@table(
    "headers",
    [
        {},
        {"Authorization": "Bearer x y"},
        {"X": ""},
        {"content-type": "text/plain; charset=utf-8"},
        {"a!#'": "\tx"[1:]},
    ],
)
def test_headers_that_may_be_set(headers: dict[str, str]) -> None:
    check_headers(headers)
    assert task_of(task_headers(URL, "POST", headers)).headers == {k.lower(): v for k, v in headers.items()}


@table(
    "headers",
    [
        *({name: "x"} for name in ("Host", "CONTENT-LENGTH", "transfer-encoding", "Connection", "Webhook-Id")),
        *({name: "x"} for name in ("tickwheel-x", "Proxy-Authorization", "traceparent", "", "a b", "a\n", "ce-a")),
        *({"X": value} for value in ("a\r\nb: c", "a\nb", "\x00", " a", "a ", "ä", "\x7f")),
        {"X-A": "1", "x-a": "2"},
        {f"X-{number}": "1" for number in range(MAX_HEADERS + 1)},
    ],
)  # fmt: skip
def test_headers_that_may_not(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        check_headers(headers)
    with pytest.raises(ValueError, match="header"):
        task_headers(URL, "POST", headers)


def test_a_task_is_what_its_message_says() -> None:
    assert task_of({"tickwheel-url": URL}) == Task(URL, "POST", {})
    for method in METHODS:
        made = task_headers(URL, method, {"X-A": "b"})
        assert task_of({**made, "trace": b"other", "tickwheel-schedule": {"name": "x"}}) == Task(
            URL, method, {"x-a": "b"}
        )


@table(
    "headers",
    [
        {},
        {"tickwheel-url": ""},
        {"tickwheel-url": 7},
        {"tickwheel-url": "ftp://a.example"},
        {"tickwheel-url": URL, "tickwheel-method": "TRACE"},
        {"tickwheel-url": URL, "tickwheel-method": None},
        {"tickwheel-url": URL, "tickwheel-header-host": "b.example"},
        {"tickwheel-url": URL, "tickwheel-header-x": b"1"},
        {"tickwheel-url": URL, "tickwheel-header-x": "1", "tickwheel-header-X": "2"},
    ],
)
def test_what_is_no_task(headers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"task|header|://"):
        task_of(headers)
