"""What a DoPut brings, as pieces of a file. Nothing that comes is trusted: neither its schema nor the offsets in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from tickwheel.arrow.jobs import PUT_SCHEMA, Stored
from tickwheel_flight.bulk.staged_names import BadPut


def put_chunks(reader: Any) -> Iterator[Any]:
    """Buffers, and at the end `Stored`, if the writer got so far. Raises `BadPut`."""
    try:
        if not reader.schema.equals(PUT_SCHEMA):
            raise BadPut(f"The schema is {str(reader.schema)[:200]!r}, and must be {str(PUT_SCHEMA)!r}.")
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if chunk.data is not None:
                yield from _buffers(chunk.data)
            if chunk.app_metadata is not None:
                yield _stored(chunk.app_metadata)
    except (fl.FlightError, pa.ArrowException) as error:
        raise BadPut(f"The stream broke: {str(error)[:200]}.") from None


def _buffers(batch: Any) -> Iterator[Any]:
    batch.validate(full=True)
    column = batch.column(0)
    if column.null_count:
        raise BadPut("There is no value in a column that must have values.")
    for number in range(len(column)):
        yield column[number].as_buffer()


def _stored(metadata: Any) -> Stored:
    try:
        return msgspec.json.decode(metadata.to_pybytes(), type=Stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadPut("The end of the file does not say its length and checksum.") from None
