"""Rows as messages, without Spark: what is checked, what a key is made of, what becomes of each column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.errors import RowsRejected
from tickwheel.spark.writing.columns import check_columns
from tickwheel.spark.writing.rows import KeyOfRow, WriteOptions, prepare, write_options

AT = 1_935_403_200_000


def batch(**columns: Any) -> Any:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def keys(job: str = "job", partition: int = 0) -> KeyOfRow:
    return KeyOfRow(job, partition)


def test_rows_go_by_topic_and_keep_their_order() -> None:
    rows = batch(
        deliver_at=[AT, AT + 1, AT + 2, AT + 3],
        body=["a", "b", "c", "d"],
        key=["1", "2", "3", "4"],
        topic=["x", None, "x", "y"],
        priority=[1, 2, None, 3],
    )
    found = {(one.topic, one.priorities is None): one for one in prepare(rows, "y", keys())}
    assert set(found) == {("x", False), ("x", True), ("y", False)}
    assert (found["y", False].keys, found["y", False].bodies) == (["2", "4"], [b"b", b"d"])
    assert (found["y", False].priorities, found["y", False].times_ms) == ([2, 3], [AT + 1, AT + 3])
    assert (found["x", True].keys, found["x", True].numbers) == (["3"], [2])


def test_times_are_never_early() -> None:
    micros = pa.array([AT * 1_000, AT * 1_000 + 1, AT * 1_000 + 999]).view(pa.timestamp("us", "UTC"))
    (found,) = prepare(batch(deliver_at=micros, body=["a"] * 3), "t", keys())
    assert found.times_ms == [AT, AT + 1, AT + 1]


def test_headers() -> None:
    maps = pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string()))
    (found,) = prepare(batch(deliver_at=[AT] * 3, body=["a"] * 3, headers=maps), "t", keys())
    assert found.headers == [{"a": "b"}, None, {}]
    texts = ['{"a": [1]}', None]
    (found,) = prepare(batch(deliver_at=[AT] * 2, body=["a"] * 2, headers=texts), "t", keys())
    assert found.headers == [{"a": [1]}, None]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deliver_at": None}, "there is no deliver_at"),
        ({"deliver_at": -1}, "before 1970"),
        ({"deliver_at": 253_402_300_800_000}, "after the year 9999"),
        ({"body": None}, "there is no body"),
        ({"topic": "no spaces"}, "name of a topic"),
        ({"priority": 256}, "between 0 and 255"),
        ({"key": ""}, "the key is empty"),
        ({"key": "é" * 128}, "longer than 255 bytes"),
        ({"order_key": ""}, "the order_key is empty"),
        ({"headers": "[1]"}, "no JSON object"),
        ({"headers": "{"}, "no JSON"),
    ],
)
def test_bad_rows_are_counted_and_shown(change: dict[str, Any], reason: str) -> None:
    good = {
        "key": "k",
        "deliver_at": AT,
        "body": "x",
        "priority": 1,
        "headers": "{}",
        "topic": "t",
        "order_key": "o",
    }
    rows = [good, good | change, good]
    columns = {name: pa.array([row[name] for row in rows]) for name in good}
    with pytest.raises(RowsRejected) as caught:
        prepare(batch(**columns), None, keys())
    assert caught.value.message.startswith("1 of a batch of 3 rows cannot be sent, so none of it was: 1 × ")
    assert reason in caught.value.message


def test_many_bad_rows_are_not_all_shown() -> None:
    with pytest.raises(RowsRejected) as caught:
        prepare(batch(deliver_at=[AT] * 100, body=pa.array([None] * 100, pa.string())), "t", keys())
    assert "100 × there is no body" in caught.value.message
    assert caught.value.message.count('"deliver_at"') == 5


@given(st.permutations(list(range(12))))
def test_keys_do_not_depend_on_the_order_of_rows(order: list[int]) -> None:
    def made(numbers: list[int], job: str = "job", partition: int = 0) -> list[str]:
        rows = batch(deliver_at=[AT + n // 4 for n in numbers], body=[f"{n // 3}" for n in numbers])
        return [key for one in prepare(rows, "t", keys(job, partition)) for key in one.keys]

    in_order = made(list(range(12)))
    assert sorted(made(order)) == sorted(in_order)
    assert len(set(in_order)) == 12
    assert set(in_order).isdisjoint(made(order, partition=1))
    assert set(in_order).isdisjoint(made(order, job="another"))


def test_keys_go_on_over_batches() -> None:
    rows, maker = batch(deliver_at=[AT], body=["x"]), keys()
    made = [prepare(rows, "t", maker)[0].keys[0] for _ in range(3)]
    assert len(set(made)) == 3
    again = keys()
    assert [prepare(rows, "t", again)[0].keys[0] for _ in range(3)] == made


def test_options() -> None:
    assert write_options({}) == WriteOptions()
    options = write_options(
        {"url": "tickwheel://x", "topic": "t", "batchRows": "5", "jobId": "j", "report": "r"}
    )
    assert options == WriteOptions("tickwheel://x", "t", 5, "j", "r")
    secrets = write_options({"tokenFile": "/run/token", "caFile": "/run/ca.pem"})
    assert (secrets.token_file, secrets.ca_file) == ("/run/token", "/run/ca.pem")
    for wrong in (
        {"batchRows": "0"},
        {"batchRows": "x"},
        {"topic": "no spaces"},
        {"topics": "t"},
        {"token": "twk_secret"},
        {"tokenfile_": "/run/token"},
    ):
        with pytest.raises(SourceError):
            write_options(wrong)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"deliver_at": "timestamp"}, "no column body"),
        ({"body": "string"}, "no column deliver_at"),
        ({"deliver_at": "timestamp_ntz", "body": "string"}, "no time zone"),
        ({"deliver_at": "date", "body": "string"}, "use bigint, string or timestamp"),
        ({"deliver_at": "timestamp", "body": "string", "x": "int"}, "no column 'x'"),
        ({"deliver_at": "timestamp", "body": "string"}, "no topic"),
    ],
)
def test_columns_that_are_refused(columns: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        check_columns(columns, None)


def test_columns_that_are_taken() -> None:
    check_columns({"deliver_at": "bigint", "body": "binary", "topic": "string"}, None)
    columns = {"deliver_at": "timestamp", "body": "string", "headers": "map<string,string>"}
    check_columns(columns, "t")
