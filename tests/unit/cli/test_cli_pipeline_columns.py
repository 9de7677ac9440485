"""`tickwheel pipeline schedule` says what is wrong with files and options before it starts Java, which there is none of
here: what gets so far fails with `NotConnected`, for want of a broker."""

from __future__ import annotations

import gzip
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.errors import NotConnected
from tickwheel_cli.main import root

NAIVE = pa.array([datetime(2031, 5, 1, 9)], pa.timestamp("us"))
ZONED = pa.array([datetime(2031, 5, 1, 9, tzinfo=UTC)], pa.timestamp("us", "UTC"))
GOOD_CSV = "deliver_at,body\n2031-05-01T09:00Z,hello\n"

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever asks for a session fails, and JAVA_HOME is nowhere."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tickwheel.spark.sessions.make_session", started)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def schedule(source: str, *options: str, topic: bool = True) -> None:
    words = ["pipeline", "schedule", "--from", source, "--url", "tickwheel://127.0.0.1:1", *options]
    words += ["--topic", "t"] if topic else []
    CliRunner().invoke(root, words, standalone_mode=False, catch_exceptions=False)


def refused(source: str, *options: str, topic: bool = True) -> SourceError:
    with pytest.raises(SourceError) as caught:
        schedule(source, *options, topic=topic)
    assert caught.value.advice
    return caught.value


def write_parquet(path: str, **columns: Any) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def write(path: str, text: str | bytes) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("rows.csv", "when,text\n2031-05-01T09:00Z,hello\n"),
        ("rows.jsonl", '{"when": "2031-05-01T09:00Z", "text": "hello"}\n'),
        ("rows.csv.gz", gzip.compress(b"when,text\n2031-05-01T09:00Z,hello\n", mtime=0)),
        ("rows.csv", '\ufeff\r\n"when","text"\r\n'),
    ],
)
def test_wrong_columns_of_texts(source: str, text: str | bytes) -> None:
    error = refused(write(source, text))
    assert "no column 'when', 'text'" in error.message
    assert "There is no column deliver_at" in error.message
    assert "There is no column body" in error.message
    assert "The columns are: when string, text string." in error.message
    assert "--rename when=deliver_at" in error.advice
    with pytest.raises(NotConnected):
        schedule(source, "--rename", "when=deliver_at", "--rename", "text=body")


def test_wrong_columns_of_parquet() -> None:
    error = refused(write_parquet("rows.parquet", deliver_at=NAIVE, bdoy=["x"], priority=["high"]))
    for part in (
        "no column 'bdoy'", "no column body", "The times of deliver_at have no time zone",
        "The column priority is string: use bigint, int, smallint or tinyint.",
        "The columns are: deliver_at timestamp_ntz, bdoy string, priority string.",
    ):  # fmt: skip
        assert part in error.message
    assert "--tz Europe/Berlin" in error.advice
    assert "--rename bdoy=body" in error.advice
    with pytest.raises(NotConnected):
        schedule(write_parquet("rows.parquet", deliver_at=NAIVE, body=["x"]), "--tz", "Europe/Berlin")


@pytest.mark.parametrize(
    ("deliver_at", "body", "problem"),
    [
        (pa.array([1.5]), ["x"], "deliver_at is double: use bigint, string or timestamp"),
        (pa.array([1], pa.int32()), ["x"], "deliver_at is int"),
        (pa.array([18_000], pa.int32()).cast(pa.date32()), ["x"], "deliver_at is date"),
        (ZONED, [7], "body is bigint: use binary or string"),
        (ZONED, [["x"]], "body is list<element: string>"),
        (ZONED, pa.array([1], pa.decimal128(9, 2)), "body is decimal(9,2)"),
    ],
)
def test_wrong_types_of_parquet(deliver_at: Any, body: Any, problem: str) -> None:
    error = refused(write_parquet("rows.parquet", deliver_at=deliver_at, body=body))
    assert f"The column {problem}" in error.message


def test_good_types_of_parquet_are_left_to_spark() -> None:
    maps = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(NotConnected):
        schedule(
            write_parquet(
                "rows.parquet",
                deliver_at=ZONED.cast(pa.timestamp("ns", "UTC")), body=[b"x"], headers=maps,
                key=pa.array(["k"]).dictionary_encode(), priority=pa.array([1], pa.int8()), topic=["t"],
            ),
            topic=False,
        )  # fmt: skip
    old = pa.table({"deliver_at": NAIVE, "body": ["x"]})
    pq.write_table(old, "old.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(NotConnected):
        schedule("old.parquet")


def test_nanoseconds_without_a_zone() -> None:
    write_parquet("rows.parquet", when=NAIVE.cast(pa.timestamp("ns")), body=["x"])
    rename = ("--rename", "when=deliver_at")
    assert "has times without a time zone" in refused("rows.parquet", *rename).message
    with pytest.raises(NotConnected):
        schedule("rows.parquet", *rename, "--tz", "Europe/Berlin")


def test_no_topic() -> None:
    assert "There is no topic." in refused(write("rows.csv", GOOD_CSV), topic=False).message


def test_places() -> None:
    for source in ("nowhere.csv", "nowhere/", "file:///nowhere/rows.csv"):
        assert "does not exist" in refused(source, "--format", "csv").message
    assert "No file has a name like" in refused("none-*.csv").message
    Path("empty.csv").mkdir()
    assert "There is no file in empty.csv" in refused("empty.csv").message
    write("hidden.csv/_SUCCESS", "")
    assert "There is no file in hidden.csv" in refused("hidden.csv").message


@pytest.mark.parametrize("source", ["many", "many/*.csv", "many/{a,b}.csv", "many/[ab].csv", "many/?.csv"])
def test_directories_and_patterns(source: str) -> None:
    write("many/_SUCCESS", "")
    write("many/.hidden.csv", "x\n")
    write("many/a.csv", GOOD_CSV)
    write("many/b.csv", GOOD_CSV)
    with pytest.raises(NotConnected):
        schedule(source, "--format", "csv")
    write("many/b.csv", "deliver_at,txt\n")
    error = refused(source, "--format", "csv")
    assert error.message == "b.csv has the columns deliver_at, txt, and a.csv has deliver_at, body."
    write("many/a.csv", "when,body\n")
    write("many/b.csv", "")
    assert "no column 'when'" in refused(source, "--format", "csv").message


def test_unreadable_files() -> None:
    assert "cannot be read as parquet" in refused(write("short.parquet", b"PAR1\0\0\0PAR1")).message
    assert "cannot be read as parquet" in refused(write("text.parquet", GOOD_CSV)).message
    assert "is empty" in refused(write("none.parquet", b"")).message
    assert "is empty" in refused(write("none.csv", b"")).message
    assert "cannot be read as csv" in refused(write("broken.csv.gz", GOOD_CSV)).message
    array = refused(write("array.json", '[{"deliver_at": "2031-05-01T09:00Z", "body": "x"}]'))
    assert "The columns are: none" in array.message
    assert "jq -c '.[]'" in array.advice
    assert "more than once" in refused(write("twice.csv", "body,deliver_at,body\n")).message


def test_a_file_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    source = write("rows.csv", GOOD_CSV)
    monkeypatch.setattr("tickwheel.spark.scheduling.file_columns.os.access", lambda path, mode: False)
    assert "may not be read" in refused(source).message


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--tz", "Mars/Olympus"), "There is no time zone 'Mars/Olympus'"),
        (("--tz", ""), "There is no time zone"),
        (("--rename", "when"), "'when' renames nothing"),
        (("--rename", "when="), "renames nothing"),
        (("--rename", "when=due"), "when cannot be renamed to due"),
        (("--rename", "when=deliver_at", "--rename", "when=body"), "renamed twice"),
        (("--rename", "a=body", "--rename", "b=body"), "a and b cannot both be body"),
        (("--rename", "when=key"), "There is no column when to rename. The columns are: deliver_at, body."),
        (("--rename", "body=deliver_at"), "There is a column deliver_at beside the column that is renamed"),
        (("--conf", "x"), "'x' is not a setting of Spark"),
    ],
)
def test_wrong_options(options: tuple[str, ...], problem: str) -> None:
    assert problem in refused(write("rows.csv", GOOD_CSV), *options).message


@pytest.mark.parametrize(
    "source",
    ["s3a://bucket/rows.csv", "hdfs://host/rows.csv", "parts.csv", "rows.csv.lz4", "_rows.csv", "sc"],
)
def test_what_only_spark_can_say(source: str) -> None:
    """These columns are wrong, and that is not seen from here."""
    for path in ("parts.csv/topic=a/rows.csv", "rows.csv.lz4", "_rows.csv", "sc.csv"):
        write(path, "when,text\n")
    options = ("--master", "sc://127.0.0.1:1") if source == "sc" else ()
    with pytest.raises(NotConnected):
        schedule("sc.csv" if source == "sc" else source, *options)


def test_pandas_and_pyspark_are_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = write("rows.csv", "when,text\n")
    for name in [one for one in sys.modules if one.partition(".")[0] in ("pyspark", "pandas")]:
        monkeypatch.delitem(sys.modules, name)
    refused(source)
    assert {"pyspark", "pandas"}.isdisjoint(sys.modules)
