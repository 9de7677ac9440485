"""What an archive reads: messages that all groups were done with, with all that is known of them.

It is all or nothing: who may query and consume each topic that is asked for gets the rows, and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from tickwheel.arrow.archive_table import SCHEMA, SIZES, Passed, Wanted, parts_of, scan_pieces, scan_sizes
from tickwheel.errors import Forbidden
from tickwheel.protocol.grants import Granted
from tickwheel_flight.commands import ArchiveCommand
from tickwheel_flight.tickets import ArchiveRows
from timerlog.readers.describe import Offline
from timerlog.readers.snapshot import Snapshot

#: A batch has rows of one topic and one UTC day, which is numbered from 1970 on.
ROWS: Final = SCHEMA.append(pa.field("topic", pa.string())).append(pa.field("day", pa.int32()))


def rows_of(command: ArchiveCommand) -> ArchiveRows:
    """For a ticket."""
    topics = None if command.topics is None else tuple(command.topics)
    return ArchiveRows(
        command.table == "archive_sizes", command.done_before_ms, tuple(command.states), topics
    )


def check_archivist(granted: Granted, topics: Sequence[str] | None) -> None:
    """Raises Forbidden."""
    for permission in ("query", "consume"):
        if granted.may_everywhere(permission):
            continue
        lacking = (
            "*" if topics is None else next((one for one in topics if not granted.may(permission, one)), None)
        )
        if lacking is not None:
            raise Forbidden(
                f"An archive needs the rights to query and to consume what it takes, and {permission}:{lacking} is "
                "lacking.",
                advice=f"Have the right granted, {permission}:{lacking}, or choose topics.",
            )


def archive_schema(rows: ArchiveRows) -> Any:
    """The columns of its batches."""
    return SIZES if rows.are_sizes else ROWS


def archive_parts(command: ArchiveCommand, offline: Offline) -> list[tuple[int, int]]:
    """First and end of the ids of each."""
    return parts_of(offline, command.rows_per_partition)


def scan_archive(snapshot: Snapshot, ids: range, rows: ArchiveRows) -> Iterator[Any]:
    """Record batches, or None where many rows were read and none is taken; of rows at last, beside an empty batch, how
    many messages were meant and could not be read."""
    wanted = Wanted(rows.done_before_ms, rows.states, rows.topics)
    if rows.are_sizes:
        yield from scan_sizes(snapshot, ids, wanted)
        return
    passed = Passed()
    for piece in scan_pieces(snapshot, ids, wanted, passed):
        if piece is None:
            yield None
            continue
        count = piece.batch.num_rows
        placed = [pa.repeat(piece.topic, count), pa.repeat(pa.scalar(piece.day, pa.int32()), count)]
        yield pa.RecordBatch.from_arrays([*piece.batch.columns, *placed], schema=ROWS)
    yield pa.RecordBatch.from_pylist([], schema=ROWS), pa.py_buffer(msgspec.json.encode(passed))
