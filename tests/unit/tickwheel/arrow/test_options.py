"""Options and conditions of the data source, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.arrow.columns import EVENT_COLUMNS, MESSAGE_COLUMNS
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.options import read_options
from tickwheel.arrow.predicates import conditions, parse_conditions
from tickwheel.spark.writing.columns import SINK_COLUMNS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "spark.md"


def refused(**options: str) -> str:
    with pytest.raises(SourceError) as caught:
        read_options({"path": "data"} | options)
    return str(caught.value)


def test_defaults() -> None:
    options = read_options({"path": "/tmp/a"})
    assert (options.directories, options.table) == (("/tmp/a",), "messages")
    assert (options.columns, options.committed, options.push_filters) == (MESSAGE_COLUMNS, True, None)
    assert read_options({"path": "x", "table": "events"}).columns == EVENT_COLUMNS


def test_directories() -> None:
    assert read_options({"paths": '["/a", "file:///b"]', "path": "/c"}).directories == ("/a", "/b", "/c")
    assert read_options({"path": "data"}).directories == (str(Path("data").absolute()),)
    assert "named twice" in refused(paths='["data"]')
    assert "JSON list" in refused(paths="a,b")
    with pytest.raises(SourceError, match="No data directory"):
        read_options({})


def test_what_is_refused() -> None:
    assert "no column 'x'" in refused(columns="id, x")
    assert "twice" in refused(columns="id,id")
    assert "rowsPerPartition" in refused(rowsPerPartition="-1")
    assert "is filters meant?" in refused(filter="[]")
    assert "is rowsPerPartition meant?" in refused(rowperpartition="5")
    assert "maxRowsPerTrigger" in refused(maxRowsPerTrigger="many")
    assert "startingOffsets" in refused(startingOffsets="soon")
    assert "startingOffsets" in refused(startingOffsets='{"a": "b"}')
    assert "pushFilters" in refused(pushFilters="maybe")
    assert "A token is no option" in refused(token="twk_secret")
    assert "twk_secret" not in refused(token="twk_secret")
    assert "Both a broker and a data directory" in refused(url="tickwheel://a:1")
    for digits in ("9" * 5_000, "[" * 100_000, '{"x": ' + "9" * 5_000 + "}"):
        assert "startingOffsets" in refused(startingOffsets=digits)
    assert "no condition" in refused(filters='[["id", ["="], 1]]')
    assert refused(table="x").startswith("[bad_source]")


def test_starting_offsets() -> None:
    assert read_options({"path": "a", "startingOffsets": "77"}).starting == {"": 77}
    assert read_options({"path": "a", "startingOffsets": '{"/a": 5}'}).starting == {"/a": 5}
    assert read_options({"path": "a", "startingOffsets": "latest"}).starting == "latest"


def test_the_page_lists_every_column() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in {*MESSAGE_COLUMNS, *EVENT_COLUMNS, *SINK_COLUMNS}:
        assert f"| `{name}` |" in text, name


NOW = datetime(2031, 5, 1, tzinfo=UTC)
ARRAYS = {
    "id": pa.array([1, 2, None, 4], pa.int64()),
    "priority": pa.array([1, 2, None, 4], pa.int32()),
    "key": pa.array(["a", "ab", None, "b"]),
    "state": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int8()), ["a", "ab", "b"]),
    "shard": pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0], pa.int8()), pa.array(["a", None])),
    "deliver_at": pa.array([0, 1_935_360_000_000, None, 1_935_360_000_001]).view(pa.timestamp("ms", "UTC")),
}


@table(
    ("condition", "expected"),
    [
        (("id", "=", 2), [1]),
        (("id", "!=", 2), [0, 3]),
        (("id", "in", [1, 4]), [0, 3]),
        (("id", "not in", [1, 4]), [1]),
        (("id", "is null"), [2]),
        (("id", "is not null"), [0, 1, 3]),
        (("priority", ">", 1), [1, 3]),
        (("key", "starts with", "a"), [0, 1]),
        (("key", "<", "b"), [0, 1]),
        (("state", "starts with", "a"), [0, 1]),
        (("key", "not starts with", "a"), [3]),
        (("key", "ends with", "b"), [1, 3]),
        (("key", "not ends with", "b"), [0]),
        (("state", "contains", "b"), [1, 3]),
        (("state", "not contains", "b"), [0]),
        (("state", "!=", "a"), [1, 3]),
        (("state", "is null"), [2]),
        (("state", "is not null"), [0, 1, 3]),
        (("shard", "is null"), [1, 2]),
        (("shard", "=", "a"), [0, 3]),
        (("shard", "!=", "a"), []),
        (("shard", "is not null"), [0, 3]),
        (("deliver_at", "<=", "2031-05-01T00:00:00Z"), [0, 1]),
        (("deliver_at", ">", "2031-05-01T02:00:00+02:00"), [3]),
        (("deliver_at", ">=", "2031-05-01T00:00:00.0005Z"), [3]),
        (("deliver_at", "!=", "2031-05-01T00:00:00.0005Z"), [0, 1, 3]),
        (("deliver_at", "in", ["2031-05-01T00:00:00.0005Z", "2031-05-01T00:00:00.001Z"]), [3]),
        (("deliver_at", "not in", ["2031-05-01T00:00:00.001Z"]), [0, 1]),
    ],
)
def test_conditions(condition: Any, expected: list[int]) -> None:
    (predicate,) = parse_conditions(conditions(condition), MESSAGE_COLUMNS)
    assert np.flatnonzero(predicate.passes(ARRAYS[condition[0]])).tolist() == expected


@table(
    ("text", "message"),
    [
        ("state = 'a'", "JSON list of lists"),
        ('[["id"]]', "no condition"),
        ('[["id", "like", 1]]', "no condition"),
        ('[["nothing", "=", 1]]', "no column"),
        ('[["body", "=", "x"]]', "no column"),
        ('[["id", "="]]', "no value"),
        ('[["id", "in", []]]', "no value"),
        ('[["id", "in", 3]]', "no value"),
        ('[["id", "=", "1"]]', "does not fit"),
        ('[["id", "starts with", 1]]', "does not fit"),
        ('[["deliver_at", "<", "2031-05-01T00:00:00"]]', "does not fit"),
        ('[["id", "is null", 1]]', "nothing is compared"),
    ],
)
def test_conditions_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_conditions(text, MESSAGE_COLUMNS)


@given(
    st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=20),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    st.integers(-3, 3),
    st.integers(0, 20),
)
def test_null_passes_no_comparison(values: list[int | None], operator: str, value: int, skip: int) -> None:
    """In a whole column, and in a column that is the end of a longer column."""
    python = {"=": "==", "!=": "!="}.get(operator, operator)
    (predicate,) = parse_conditions(conditions(("id", operator, value)), MESSAGE_COLUMNS)
    expected = [one is not None and eval(f"{one} {python} {value}") for one in values]
    whole = pa.array(values, pa.int64())
    assert predicate.passes(whole).tolist() == expected
    assert predicate.passes(whole.slice(skip)).tolist() == expected[skip:]
