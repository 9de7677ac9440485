"""Files of an archive without Spark: what is written is what is read, and any other byte is noticed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.arrow.archive_table import DAY_MS, SCHEMA, Piece
from tickwheel.spark.archive.checksum import checksum, combined
from tickwheel.spark.archive.files import check_file, read_batches, read_ids, write_files
from tickwheel.spark.archive.manifest import FileEntry
from tickwheel.spark.errors import ArchiveDamaged
from tickwheel.spark.storage import DirectoryFiles

_TIMES = st.integers(0, 10**13)
_GROUPS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.text(max_size=3),
            "state": st.sampled_from(["acked", "dead"]),
            "epoch": st.integers(1, 9),
            "attempts": st.integers(0, 9),
            "time": _TIMES,
        }
    ),
    max_size=3,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(1, 2**62),
            "log_id": st.just("00000000000000aa"),
            "shard": st.none() | st.sampled_from(["-80", "80-"]),
            "key": st.none() | st.text(max_size=4),
            "order_key": st.none() | st.text(max_size=4),
            "priority": st.integers(0, 255),
            "time_created": _TIMES,
            "deliver_at": _TIMES,
            "time_acked": _TIMES,
            "headers": st.none() | st.text(max_size=4),
            "headers_packed": st.none() | st.binary(max_size=4),
            "body": st.binary(max_size=6),
            "groups": _GROUPS,
        }
    ),
    min_size=1,
    max_size=6,
)


def batch_of(rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def plain(number: int, body: bytes = b"x", deliver_ms: int = 5) -> dict[str, Any]:
    group = {"name": "g", "state": "acked", "epoch": 1, "attempts": 1, "time": 9}
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    return row | {
        "id": number,
        "log_id": "00000000000000aa",
        "priority": 50,
        "time_created": 1,
        "deliver_at": deliver_ms,
        "time_acked": 9,
        "body": body,
        "groups": [group],
    }


@given(ROWS, st.data())
def test_a_checksum_does_not_depend_on_order_and_batches(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    whole = batch_of(rows)
    parts = batch_of(shuffled)
    assert checksum(whole) == combined([checksum(parts.slice(0, cut)), checksum(parts.slice(cut))])
    assert checksum(pa.Table.from_batches([whole])) == checksum(whole)


@given(ROWS, st.data())
def test_a_checksum_sees_each_value(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(SCHEMA.names))
    other = data.draw(ROWS)[0][name]
    changed = [row | ({name: other} if place == index else {}) for place, row in enumerate(rows)]
    is_same = batch_of(changed).equals(batch_of(rows))
    assert (checksum(batch_of(changed)) == checksum(batch_of(rows))) == is_same


def test_a_checksum_tells_columns_and_nulls_apart() -> None:
    base = plain(1)
    rows = [
        base,
        base | {"key": "a"},
        base | {"order_key": "a"},
        base | {"key": ""},
        base | {"groups": []},
        base | {"groups": base["groups"] * 2},
        base | {"headers_packed": b""},
        base | {"id": 2},
    ]
    assert len({checksum(batch_of([row])) for row in rows}) == len(rows)


def written(tmp_path: Path, rows: list[dict[str, Any]]) -> tuple[Path, FileEntry]:
    (entry,) = write_files([Piece("orders", 0, batch_of(rows))], DirectoryFiles(tmp_path), "", "run-0-0")
    return tmp_path / entry.name, entry


def test_a_file_for_each_topic_and_day(tmp_path: Path) -> None:
    pieces = [
        Piece("orders", 0, batch_of([plain(1), plain(2)])),
        Piece("orders", 1, batch_of([plain(3, deliver_ms=DAY_MS)])),
        Piece("a b/%", 0, batch_of([plain(4)])),
        Piece("orders", 0, batch_of([plain(5, deliver_ms=7)])),
    ]
    entries = {entry.name: entry for entry in write_files(pieces, DirectoryFiles(tmp_path), "", "run-0-0")}
    assert list(entries) == [
        "topic=orders/date=1970-01-01/run-0-0-0.zstd.parquet",
        "topic=orders/date=1970-01-02/run-0-0-1.zstd.parquet",
        "topic=a%20b%2F%25/date=1970-01-01/run-0-0-2.zstd.parquet",
    ]
    first = entries["topic=orders/date=1970-01-01/run-0-0-0.zstd.parquet"]
    assert (first.rows, first.first_deliver_ms, first.last_deliver_ms) == (3, 5, 7)
    for name, entry in entries.items():
        check_file(DirectoryFiles(tmp_path), name, entry)
    assert read_ids(DirectoryFiles(tmp_path), first.name, first).tolist() == [1, 2, 5]
    metadata = pq.ParquetFile(tmp_path / first.name).metadata
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.metadata[b"tickwheel.topic"] == b"orders"


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwheel.spark.archive.files._OPEN_FILES", 2)
    monkeypatch.setattr("tickwheel.spark.archive.files._HELD_BYTES", 1)
    pieces = [Piece("t", day % 4, batch_of([plain(day + 1)])) for day in range(12)]
    entries = write_files(pieces, DirectoryFiles(tmp_path), "", "run-0-0")
    assert len({entry.name for entry in entries}) == len(entries) == 12
    ids = sorted(
        number
        for entry in entries
        for number in read_ids(DirectoryFiles(tmp_path), entry.name, entry).tolist()
    )
    assert ids == list(range(1, 13))


def test_every_byte_counts(tmp_path: Path) -> None:
    """One byte of each part of the file is changed: the file is refused, or it says the same all the same."""
    files = DirectoryFiles(tmp_path)
    path, entry = written(tmp_path, [plain(number, b"body %d" % number) for number in range(1, 40)])
    content, before = path.read_bytes(), list(read_batches(files, entry.name))
    refused = same = 0
    for place in range(0, len(content), 37):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        try:
            check_file(files, entry.name, entry)
        except ArchiveDamaged as error:
            refused += path.name in error.message
        else:
            same += list(read_batches(files, entry.name)) == before
    assert refused > 10
    assert refused + same == len(range(0, len(content), 37))


def test_what_is_not_what_was_written(tmp_path: Path) -> None:
    rows = [plain(1), plain(2)]
    files = DirectoryFiles(tmp_path)
    path, entry = written(tmp_path, rows)
    for content, reason in {
        "rows": ([plain(1)], "holds 1 messages, and 2 were written"),
        "body": ([plain(1), plain(2, b"y")], "has the checksum"),
    }.values():
        pq.write_table(pa.Table.from_pylist(content, SCHEMA), path)
        with pytest.raises(ArchiveDamaged, match=reason):
            check_file(files, entry.name, entry)
    pq.write_table(pa.Table.from_pylist([plain(1), plain(3)], SCHEMA), path)
    with pytest.raises(ArchiveDamaged, match="does not hold"):
        read_ids(files, entry.name, entry)
    os.truncate(path, 20)
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        check_file(files, entry.name, entry)
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="is missing"):
        read_ids(files, entry.name, entry)
