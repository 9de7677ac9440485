"""What a put brings: whatever it is, nothing is read but what came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.support.run.cases import table
from tickwheel.arrow.jobs import PUT_SCHEMA, Stored, as_batch
from tickwheel_flight.bulk.putting import put_chunks
from tickwheel_flight.bulk.staged_names import BadPut


@dataclass
class Chunk:
    data: Any = None
    app_metadata: Any = None


class Reader:
    """Gives what it was given, or raises it."""

    def __init__(self, *chunks: Any, schema: Any = PUT_SCHEMA) -> None:
        self.schema = schema
        self._chunks: Iterator[Any] = iter(chunks)

    def read_chunk(self) -> Any:
        found = next(self._chunks)
        if isinstance(found, Exception):
            raise found
        return found


def damaged(first: int, end: int) -> Any:
    """A batch with offsets that no client of ours sends, as it is read from the network."""
    # The last ones: metadata has the length of the value, too.
    good = (0).to_bytes(8, "little") + (3).to_bytes(8, "little")
    packed = as_batch(b"abc").serialize().to_pybytes()
    head, _, rest = packed.rpartition(good)
    bad = first.to_bytes(8, "little", signed=True) + end.to_bytes(8, "little", signed=True)
    return pa.ipc.read_record_batch(pa.py_buffer(head + bad + rest), PUT_SCHEMA)


def with_a_null() -> Any:
    values = pa.array([b"abc", None], pa.large_binary())
    return pa.RecordBatch.from_arrays([values], schema=PUT_SCHEMA)


def test_pieces_and_the_end() -> None:
    several = pa.record_batch([pa.array([b"de", b"", b"f"], pa.large_binary())], schema=PUT_SCHEMA)
    reader = Reader(
        Chunk(as_batch(b"abc")), Chunk(several), Chunk(None, pa.py_buffer(b'{"bytes":6,"crc32":1}'))
    )
    *pieces, end = put_chunks(reader)
    assert [bytes(one) for one in pieces] == [b"abc", b"de", b"", b"f"]
    assert end == Stored(6, 1)


@table(
    "chunk",
    [
        Chunk(damaged(0, 1 << 40)),
        Chunk(damaged(-8, 3)),
        Chunk(damaged(3, 0)),
        Chunk(with_a_null()),
        Chunk(None, pa.py_buffer(b"")),
        Chunk(None, pa.py_buffer(b"[" * 100_000)),
        Chunk(None, pa.py_buffer(b'{"bytes":"x","crc32":1}')),
        Chunk(None, pa.py_buffer(b"\xff")),
        pa.ArrowInvalid("damaged"),
        pa.ArrowMemoryError("too large"),
        fl.FlightCancelledError("gone"),
    ],
    label=str,
)
def test_what_is_wrong_is_typed(chunk: Any) -> None:
    with pytest.raises(BadPut):
        [*put_chunks(Reader(chunk))]


@table(
    "schema", [pa.schema([]), pa.schema([("bytes", pa.large_binary())]), pa.schema([("bytes", pa.utf8())])]
)
def test_another_schema(schema: Any) -> None:
    with pytest.raises(BadPut):
        [*put_chunks(Reader(schema=schema))]
