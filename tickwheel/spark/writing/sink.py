"""``df.write`` and ``df.writeStream``: the thin classes that Spark asks for, over ``tickwheel.spark.writing.rows``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.storage import file_at
from tickwheel.spark.writing.columns import check_columns
from tickwheel.spark.writing.rows import WriteOptions, send_rows, write_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    stored: int
    duplicates: int


def _checked(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    parsed = write_options(options)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, parsed.topic)
    return parsed


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only a task of Spark writes"
    return context


def _sent(batches: Iterator[Any], options: WriteOptions, job: str) -> Sent:
    written = send_rows(batches, options, job, _task().partitionId())
    return Sent(written.stored, written.duplicates)


class MessageWriter(DataSourceArrowWriter):
    """Made once for each ``save()``; its tasks get copies, so all of them know the same job."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("Messages cannot be overwritten.", advice='Use .mode("append").')
        self._options = _checked(options, schema)
        self._job = self._options.job or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _sent(iterator, self._options, self._job)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report(self._options, messages, is_complete=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # What was sent stays: the rows of other tasks are good, and with their keys they are not sent twice.
        _report(self._options, messages, is_complete=False)


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """A batch that is run again, also by a restarted query, makes the same keys: they come from query and batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = _checked(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query, "Spark did not say which query this is"
        assert batch, "Spark did not say which batch this is"
        return _sent(iterator, self._options, f"{self._options.job or query}:{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages, is_complete=True, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages, is_complete=False, batch=batchId)


def _report(
    options: WriteOptions,
    messages: list[WriterCommitMessage | None],
    *,
    is_complete: bool,
    batch: int | None = None,
) -> None:
    """Writes the counts of the tasks that succeeded; a task that failed said its own in its error."""
    if options.report is None:
        return
    sent = [one for one in messages if isinstance(one, Sent)]
    counts = {
        "complete": is_complete,
        "rows": sum(one.stored + one.duplicates for one in sent),
        "stored": sum(one.stored for one in sent),
        "duplicates": sum(one.duplicates for one in sent),
        "tasks": len(sent),
    }
    if batch is not None:
        counts["batch"] = batch
    storage, name = file_at(options.report)
    storage.write(name, json.dumps(counts).encode() + b"\n")
