"""The table of rejects: one Parquet file a job, with some rows of each reason and how many there are."""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tickwheel.spark.scheduling.result import ScheduleResult
from tickwheel.spark.storage import Storage

SCHEMA: Final = pa.schema(
    [
        ("job", pa.string()),
        ("reason", pa.string()),
        ("rows", pa.int64()),
        ("text", pa.string()),
        ("detail", pa.string()),
        ("partition", pa.int32()),
        ("row", pa.int64()),
        ("key", pa.string()),
        ("topic", pa.string()),
        ("earlier_id", pa.int64()),
    ]
)


def rejects_table(result: ScheduleResult) -> pa.Table:
    """``rows``: how many rows of the job have this reason; the others are one of them."""
    rows = [
        msgspec.structs.asdict(one) | {"job": result.job, "rows": result.counts[one.reason], "text": one.text}
        for one in result.samples
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def write_rejects(result: ScheduleResult, storage: Storage) -> str:
    """Writes the file, also with no rows, and says where it is. One of the same job is replaced. Raises ``OSError``,
    ``StorageError``."""
    name = f"rejects-{result.job}.parquet"
    with pa.BufferOutputStream() as out:
        pq.write_table(rejects_table(result), out)
        storage.write(name, out.getvalue().to_pybytes())
    return storage.shown_name(name)
