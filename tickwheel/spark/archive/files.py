"""Writes the Parquet files of an archive, and checks them: what one task does, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tickwheel.arrow.archive_table import SCHEMA, Piece
from tickwheel.spark.archive.checksum import checksum, combined
from tickwheel.spark.archive.manifest import SUFFIX, FileEntry, partition
from tickwheel.spark.errors import ArchiveDamaged
from tickwheel.spark.storage import NewFile, Storage

#: Rows of one file are gathered up to so many bytes before they are written as a row group,
_ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
#: those of all files of a task up to so many,
_HELD_BYTES: Final = 128 * 1024 * 1024
#: and so many files are open at most.
_OPEN_FILES: Final = 200
_READ_ROWS: Final = 65_536
#: What pyarrow raises about bytes that are not those that it wrote.
_UNREADABLE: Final = (
    OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, MemoryError
)  # fmt: skip


@dataclass(slots=True)
class _Open:
    """A file that is being written."""

    name: str
    topic: str
    new: NewFile
    writer: Any
    held: list[Any] = field(default_factory=list)
    held_bytes: int = 0
    rows: int = 0
    checksums: list[int] = field(default_factory=list)
    ids_checksums: list[int] = field(default_factory=list)
    first_ms: int = 1 << 62
    last_ms: int = -(1 << 62)

    def add(self, batch: Any) -> None:
        self.held.append(batch)
        self.held_bytes += batch.nbytes
        self.rows += len(batch)
        self.checksums.append(checksum(batch))
        self.ids_checksums.append(checksum(batch.select(["id"])))
        first, last = bounds_ms(batch)
        self.first_ms, self.last_ms = min(self.first_ms, first), max(self.last_ms, last)

    def write(self) -> None:
        if self.held:
            self.writer.write_table(pa.Table.from_batches(self.held), row_group_size=1 << 30)
        self.held, self.held_bytes = [], 0

    def close(self) -> FileEntry:
        """The file is where it belongs then; of a directory, that need not be on the disk."""
        self.write()
        self.writer.close()
        return FileEntry(
            name=self.name,
            topic=self.topic,
            rows=self.rows,
            bytes=self.new.close(),
            checksum=f"{combined(self.checksums):016x}",
            ids_checksum=f"{combined(self.ids_checksums):016x}",
            first_deliver_ms=self.first_ms,
            last_deliver_ms=self.last_ms,
        )


def write_files(pieces: Iterable[Piece], storage: Storage, folder: str, prefix: str) -> list[FileEntry]:
    """Writes pieces below a folder, into a file for each topic and day, or several. Names begin with ``prefix``, which
    no other attempt of any task has."""
    opened: dict[tuple[str, int], _Open] = {}
    done: list[FileEntry] = []
    number = 0
    try:
        for piece in pieces:
            place = piece.topic, piece.day
            if place not in opened:
                if len(opened) == _OPEN_FILES:
                    done.append(opened.pop(next(iter(opened))).close())
                opened[place] = _open(storage, folder, piece, f"{prefix}-{number}{SUFFIX}")
                number += 1
            opened[place].add(piece.batch)
            if opened[place].held_bytes >= _ROW_GROUP_BYTES:
                opened[place].write()
            elif sum(one.held_bytes for one in opened.values()) >= _HELD_BYTES:
                max(opened.values(), key=lambda one: one.held_bytes).write()
        return [*done, *(one.close() for one in opened.values())]
    finally:
        for one in opened.values():
            one.new.discard()


def _open(storage: Storage, folder: str, piece: Piece, file_name: str) -> _Open:
    name = f"{partition(piece.topic, piece.day)}/{file_name}"
    schema = SCHEMA.with_metadata({"tickwheel.topic": piece.topic})
    new = storage.new_file(f"{folder}/{name}" if folder else name)
    writer = pq.ParquetWriter(new.file, schema, compression="zstd", write_page_checksum=True)
    return _Open(name, piece.topic, new, writer)


def bounds_ms(batch: Any) -> tuple[int, int]:
    """The first and the last time at which a message of a batch was due."""
    found = pc.min_max(batch.column("deliver_at").view(pa.int64()))
    return int(found["min"].as_py()), int(found["max"].as_py())


def read_batches(storage: Storage, name: str, columns: list[str] | None = None) -> Iterator[Any]:
    """Raises ``ArchiveDamaged``."""
    schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(column) for column in columns])
    try:
        with (
            storage.open(name) as opened,
            pq.ParquetFile(opened, page_checksum_verification=True, pre_buffer=True) as file,
        ):
            # One by one: what is read ahead of a group is kept until all groups are read that were asked for.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_READ_ROWS, row_groups=[group], columns=columns):
                    # Names and types: metadata of the schema does not count.
                    yield batch.cast(schema)
    except FileNotFoundError:
        raise ArchiveDamaged(f"{storage.shown_name(name)} is missing.") from None
    except _UNREADABLE as error:
        raise ArchiveDamaged(f"{storage.shown_name(name)} cannot be read: {error}.") from None


def checked_batches(storage: Storage, name: str, entry: FileEntry) -> Iterator[Any]:
    """A file, whole. Raises ``ArchiveDamaged``, at the end when it does not hold what was written."""
    rows, checksums = 0, []
    for batch in read_batches(storage, name):
        rows += len(batch)
        checksums.append(checksum(batch))
        yield batch
    shown = storage.shown_name(name)
    if rows != entry.rows:
        raise ArchiveDamaged(f"{shown} holds {rows:,} messages, and {entry.rows:,} were written.")
    found = f"{combined(checksums):016x}"
    if found != entry.checksum:
        raise ArchiveDamaged(f"{shown} has the checksum {found}, and what was archived had {entry.checksum}.")


def check_file(storage: Storage, name: str, entry: FileEntry) -> None:
    """Reads a file whole and compares it with what was written. Raises ``ArchiveDamaged``."""
    for _ in checked_batches(storage, name, entry):
        pass


def read_ids(storage: Storage, name: str, entry: FileEntry) -> Any:
    """The ids of a file's messages, in order. Raises ``ArchiveDamaged``."""
    batches = list(read_batches(storage, name, ["id"]))
    table = pa.Table.from_batches(batches, pa.schema([SCHEMA.field("id")]))
    if len(table) != entry.rows or f"{checksum(table):016x}" != entry.ids_checksum:
        raise ArchiveDamaged(
            f"{storage.shown_name(name)} does not hold the messages that were archived in it."
        )
    return table.column("id").to_numpy().copy()
