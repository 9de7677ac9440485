"""What a query asks and answers, without a broker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tickwheel.client.admin.query import QueryColumn, QueryResult, query_request
from tickwheel.errors import BadArgument, NaiveDatetime
from tickwheel.protocol.bodies.requests import Query
from tickwheel.protocol.limits import MAX_QUERY_ROWS, MAX_SQL_CHARACTERS


def test_rows_and_dictionaries() -> None:
    columns = [QueryColumn("id", "BIGINT"), QueryColumn("state", "VARCHAR")]
    result = QueryResult(columns, [[1, "ready"], [2, None]], truncated=False)
    assert len(result) == 2
    assert list(result) == [[1, "ready"], [2, None]]
    assert result.dicts() == [{"id": 1, "state": "ready"}, {"id": 2, "state": None}]


def test_a_timeout_is_rounded_up_to_milliseconds() -> None:
    assert query_request("select 1", None, 7, 1.0001) == (Query("select 1", 7, 1_001), 1.0001)
    assert query_request("select 1", None, 7, 0.0001)[0].timeout_ms == 1


@pytest.mark.parametrize(
    ("sql", "limit", "timeout_s"),
    [
        ("", 1, 1.0),
        ("x" * (MAX_SQL_CHARACTERS + 1), 1, 1.0),
        ("select 1", 0, 1.0),
        ("select 1", MAX_QUERY_ROWS + 1, 1.0),
        ("select 1", 1, 0.0),
        ("select 1", 1, float("nan")),
        ("select 1", 1, 3_600.1),
    ],
)
def test_bad_arguments(sql: str, limit: int, timeout_s: float) -> None:
    with pytest.raises(BadArgument):
        query_request(sql, None, limit, timeout_s)


@pytest.mark.parametrize(
    "bad",
    [
        "k1",
        b"k1",
        7,
        [object()],
        [timedelta(1)],
        [2**64],
        [[1, [timedelta(1)]]],
        {1: 2},
        [datetime(2030, 1, 1)],
        [0] * 1_001,
    ],
)
def test_parameters_that_cannot_be_sent(bad: Any) -> None:
    with pytest.raises((BadArgument, NaiveDatetime)) as refused:
        query_request("select ?", bad, 1, 1.0)
    assert refused.value.advice
