"""Files in object stores and on HDFS without Spark: on a real S3 server, and what is said of wrong places."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.support.spark.object_store import (
    KEY_ID,
    SECRET,
    Loss,
    ObjectStore,
    losing,
    object_store,
)
from tickwheel.spark.errors import (
    BadPlace,
    SparkError,
    StorageDenied,
    StorageError,
    StorageMissing,
    StorageUnreachable,
    understood,
)
from tickwheel.spark.report.earlier import read_earlier
from tickwheel.spark.report.errors import EarlierRefused, OutputRefused
from tickwheel.spark.report.output import check_output, output_at, write_report
from tickwheel.spark.storage import (
    DirectoryFiles,
    Storage,
    file_at,
    is_directory,
    parse_options,
    parse_place,
    storage_at,
)
from tickwheel.spark.storage.hadoop import RenamedFiles
from tickwheel.spark.storage.places import HIDDEN
from tickwheel_cli.main import root

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


class NotOver(fs.LocalFileSystem):
    """As HDFS: a rename onto a file fails."""

    def move(self, source: str, target: str) -> None:
        os.link(source, target)
        os.unlink(source)


def of_kind(kind: str, store: ObjectStore, tmp_path: Path) -> Storage:
    match kind:
        case "directory":
            return storage_at(tmp_path / "place")
        case "hdfs":
            place = parse_place("hdfs://namenode:8020" + str(tmp_path / "place"), {})
            return RenamedFiles(place, lambda place: NotOver())
    return storage_at(f"s3a://{store.bucket()}/a b/%2F", store.options())


@pytest.mark.parametrize("kind", ["directory", "s3", "hdfs"])
def test_all_kinds_of_storage_do_the_same(kind: str, store: ObjectStore, tmp_path: Path) -> None:
    files = of_kind(kind, store, tmp_path)
    files.reach()
    assert list(files.found("")) == []
    assert files.read("a/b") is None
    assert files.create("a/one", b"first")
    assert not files.create("a/one", b"second")
    assert files.create("a/one", b"first"), "it says what is there"
    files.write("a/two", b"2")
    files.write("a/two", b"22")
    assert (files.read("a/one"), files.read("a/two")) == (b"first", b"22")
    # A topic's folder, a large file of row groups, in parts.
    name = "topic=a%2Fb%20*/date=2031-05-01/x.parquet"
    new = files.new_file(name)
    body = random.Random(1).randbytes(36 << 20)
    table = pa.table({"id": list(range(8)), "body": [body[at << 22 : (at + 1) << 22] for at in range(8)]})
    with pq.ParquetWriter(new.file, table.schema, compression="none") as writer:
        for at in range(8):
            writer.write_table(table.slice(at, 1))
    assert files.read(name) is None or kind != "s3", "an object is there whole or not at all"
    size = new.close()
    with files.open(name) as opened, pq.ParquetFile(opened, pre_buffer=True) as parquet:
        assert parquet.read(["id"]).column("id").to_pylist() == list(range(8))
        assert parquet.read().equals(table)
    listed = {one.name: one.bytes for one in files.found("")}
    assert listed == {"a/one": 5, "a/two": 2, name: size}
    assert {one.name for one in files.found("a")} == {"a/one", "a/two"}
    assert all(one.modified_ms > 1_600_000_000_000 for one in files.found("a"))
    with pytest.raises(FileNotFoundError), files.open("a/three"):
        pass
    files.new_file("never").discard()
    files.remove([name, "a/one", "a/none"])
    assert {one.name for one in files.found("")} - {"never"} == {"a/two"}
    # A folder takes the place of all.
    with files.filled("z") as folder:
        (folder / "t").mkdir()
        (folder / "t" / "new").write_bytes(b"n")
        (folder / "z").write_bytes(b"last")
    assert {one.name for one in files.found("")} == {"t/new", "z"}
    with pytest.raises(RuntimeError), files.filled("z") as folder:
        raise RuntimeError
    assert files.read("z") == b"last"
    if kind != "hdfs":
        other = pickle.loads(pickle.dumps(files))
        assert other.read("z") == b"last"
        assert SECRET not in repr(files)
    assert SECRET not in files.shown_name("x")


@pytest.mark.promise("what-is-archived")
def test_an_answer_that_is_lost(store: ObjectStore) -> None:
    """The put is done, and its sender is told that the connection broke: it finds out that it was he."""
    bucket = store.bucket()
    loss = Loss(lambda method, path: method == "PUT" and not loss.lost)
    with losing(store, loss) as lossy:
        files = storage_at(f"s3://{bucket}", lossy.options())
        assert files.create("runs/1", b"mine")
        assert len(loss.lost) == 1
        loss.lost.clear()
        assert not files.create("runs/1", b"another's")


@pytest.mark.ci  # the store's client tries ten times
def test_no_answer_is_no_answer(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwheel.spark.storage.objects._TRIES", 1)
    bucket = store.bucket()
    with losing(store, Loss(lambda method, path: method == "PUT")) as lossy:
        with pytest.raises(StorageError) as caught:
            storage_at(f"s3://{bucket}", lossy.options()).create("runs/1", b"mine")
        assert not isinstance(caught.value, BadPlace | StorageDenied)
    assert storage_at(f"s3://{bucket}", store.options()).read("runs/1") == b"mine"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("ftp://bucket/x", "cannot be kept at ftp://"),
        ("s3://", "begins with a bucket"),
        ("s3:/bucket/x", "two slashes"),
        (Path("s3://bucket/x"), "two slashes"),
        (f"s3a://{KEY_ID}:{SECRET}@bucket/x", "letters, digits"),
        (f"s3a://{KEY_ID}:x@bucket/x", "no user and no key"),
        (f"s3://bucket/x?sig={SECRET}", r"a \? or # in it"),
        ("s3://bucket/a/../b", r"has \. or \.\."),
        ("abfss://account.dfs.core.windows.net/x", "a container and an account"),
        ("file:x", "no path from the root"),
        ("", "no name"),
    ],
)
def test_places_that_are_none(where: str | Path, message: str) -> None:
    with pytest.raises(BadPlace, match=message) as caught:
        storage_at(where)
    assert caught.value.advice
    assert SECRET not in str(caught.value) + caught.value.advice


def test_places(tmp_path: Path) -> None:
    for where in ("file:///srv/a%20b", "file:/srv/a%20b", "/srv/a b", Path("/srv/a b")):
        assert storage_at(where) == DirectoryFiles(Path("/srv/a b"))
        assert is_directory(where)
    shown = {
        "s3a://b/x//y/": "s3a://b/x/y",
        "s3://b": "s3://b",
        "gs://b/x": "gs://b/x",
        "abfss://c@a.dfs.core.windows.net/x": "abfss://c@a.dfs.core.windows.net/x",
        "hdfs://nn:8020/x": "hdfs://nn:8020/x",
        "hdfs:///x": "hdfs:///x",
    }
    for where, expected in shown.items():
        assert storage_at(where).shown == expected
        assert not is_directory(where)
    with pytest.raises(BadPlace, match="takes no options"):
        storage_at(tmp_path, {"region": "x"})
    folder, name = file_at("s3://b/x/report.json")
    assert (folder.shown, name) == ("s3://b/x", "report.json")
    assert file_at("/report.json") == (DirectoryFiles(Path("/")), "report.json")
    with pytest.raises(BadPlace, match="names no file"):
        file_at("s3://b")


def test_options_and_files_with_secrets(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    assert parse_options(["a=b=c", f"secret_access_key=@{tmp_path}/key"]) == {
        "a": "b=c",
        "secret_access_key": SECRET,
    }
    for pairs, message in (
        ([SECRET], "has no key"),
        (["a=1", "a=2"], "given twice"),
        (["a=@/no/where"], "cannot be read"),
    ):
        with pytest.raises(BadPlace, match=message) as caught:
            parse_options(pairs)
        assert SECRET not in str(caught.value)
    for where, options, message in (
        ("s3://b", {"nonsense": SECRET}, "nonsense"),
        ("s3://b", {"timeout": SECRET}, "Duration"),
        ("gs://b", {"service_account_path": "/no/where"}, "service account"),
        ("abfss://c@a.dfs.core.windows.net", {"account_key": SECRET}, "Invalid Access Key"),
        ("hdfs://nn:8020/x", {"nonsense": SECRET}, "no option nonsense"),
        ("hdfs://nn:8020/x", {"replication": SECRET}, "whole number"),
    ):
        with pytest.raises(BadPlace, match=message) as caught:
            storage_at(where, options).reach()
        assert SECRET not in str(caught.value)
    assert parse_place("s3://b", {"sas_token": SECRET}).hidden(f"x{SECRET}y") == f"x{HIDDEN}y"


def _refusal(*words: str, monkeypatch: pytest.MonkeyPatch) -> SparkError:
    """What a command says before Java is started."""
    monkeypatch.setattr("tickwheel.spark.sessions.make_session", None)  # would be missed
    result = CliRunner().invoke(root, ["pipeline", *words], standalone_mode=False)
    assert isinstance(result.exception, SparkError), result.exception
    assert SECRET not in result.output + str(result.exception)
    return result.exception


def test_what_is_wrong_is_said_before_java_starts(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    bucket, words = f"s3://{store.bucket()}/x", store.words()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    tasks: dict[str, list[str]] = {
        "archive": ["archive", "--older-than", "1d", "--to"],
        "restore": ["restore", "--since", "2031-05-01T00:00Z", "--from"],
        "report": ["report", "--data", str(tmp_path), "--out"],
    }
    # There is nobody but this server at the address of machines' own credentials, and it has none.
    metadata = [
        "--fs",
        f"endpoint={store.endpoint}",
        "--fs",
        "region=us-east-1",
        "--fs",
        f"metadata_endpoint={nobody}",
    ]
    for name, task in tasks.items():
        for place, options, kind in (
            ("s4://bucket/x", [], BadPlace),
            ("s3://nobodys-bucket/x", words, BadPlace),
            (bucket, ["--fs", f"endpoint={nobody}", *words[2:]], StorageUnreachable),
            (bucket, metadata, StorageDenied),
            (bucket, ["--fs", SECRET], BadPlace),
        ):
            error = _refusal(*task, place, *options, monkeypatch=monkeypatch)
            assert type(error) is kind, (name, place, error)
            assert error.advice
    taken_along = pickle.loads(pickle.dumps(storage_at(bucket, store.options())))
    monkeypatch.setitem(sys.modules, "obstore", None)
    error = _refusal(*tasks["archive"], bucket, *words, monkeypatch=monkeypatch)
    assert isinstance(error, StorageMissing)
    assert "tickwheel[objects]" in error.advice
    with pytest.raises(StorageMissing):  # as in a task on a machine where it is not
        taken_along.read("x")


def test_the_usual_environment(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    files = storage_at(f"s3://{store.bucket()}/deep")
    files.write("x", b"1")
    assert [one.name for one in files.found("")] == ["x"]
    with pytest.raises(BadPlace, match="There is no bucket") as caught:
        storage_at(f"s3://no-{KEY_ID.lower()}-{SECRET[:3].lower()}").read("x")
    assert SECRET not in str(caught.value)


def test_a_report_replaces_a_report_and_nothing_else(store: ObjectStore) -> None:
    place, options = f"s3://{store.bucket()}/report", store.options()
    files = storage_at(place, options)

    def fill(folder: Path) -> None:
        (folder / "tables").mkdir()
        (folder / "tables" / "latency.parquet").write_bytes(b"new")
        (folder / "index.html").write_bytes(b"new")
        (folder / "summary.json").write_text(json.dumps({"format": "tickwheel-report", "version": 0}))

    def fails(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError):
        write_report(files, fails)
    with pytest.raises(EarlierRefused, match=r"report/summary\.json is not there"):
        read_earlier(place, options)
    assert list(files.found("")) == []
    write_report(files, fill)
    files.write("tables/of_an_earlier_version.parquet", b"")
    write_report(files, fill)
    names = {one.name for one in files.found("")}
    assert names == {"index.html", "summary.json", "tables/latency.parquet"}
    # What it is compared with is found there, by the place or by the file; the new report may be elsewhere.
    for compared in (place, f"{place}/summary.json"):
        with pytest.raises(EarlierRefused, match=f"{place}/summary.json is of version 0"):
            read_earlier(compared, options)
        assert output_at("local", compared, options) == storage_at("local")
    assert output_at(place, "local", options) == files
    for name in ("thesis.txt", "tables/deep/x.parquet"):
        files.write(name, b"years of work")
        with pytest.raises(OutputRefused, match="other files"):
            write_report(files, fill)
        files.remove([name])
    files.write("summary.json", b"[]")
    with pytest.raises(OutputRefused, match="not a report"):
        check_output(files)


def test_errors_of_storage_come_through_spark() -> None:
    for cls in (BadPlace, StorageDenied, StorageUnreachable, StorageError):
        error = cls("s3://b: it is so.")
        text = f"Traceback:\ntickwheel.spark.errors.{cls.__name__}: [{cls.code}] {error.message}"
        found = understood(RuntimeError(text))
        assert type(found) is cls


def test_a_range_is_read_as_a_file(store: ObjectStore) -> None:
    files: Any = storage_at(f"s3://{store.bucket()}", store.options())
    content = bytes(range(200))
    assert files.put("x", io.BytesIO(content)) == 200
    with files.open("x") as opened:
        opened.seek(190)
        assert opened.read(50) == content[190:]
        assert opened.tell() == opened.size() == 200
        assert opened.read() == b""
