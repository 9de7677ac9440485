"""Bulk repair: messages that a condition in SQL means get another time, in order and counted exactly.

Spark only selects: the ids that it found go to a file of the driver first, in their order, so that how many there are
is known before the first change, a task that runs twice counts nothing twice, and the driver's memory does not grow
with them. The driver then asks the broker, which answers for each message.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tickwheel import sync
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.options import secret_files
from tickwheel.arrow.places import describe_log
from tickwheel.client.admin.dropping import LogPlace
from tickwheel.client.times import EpochMs, Moment, moment_ms
from tickwheel.client.url import default_url
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.spark.answers import as_bad_sql
from tickwheel.spark.errors import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

_BATCH_IDS: Final = 10_000
#: A spread has at most so many steps: all messages of a step get the same time.
MAX_STEPS: Final = 4_096
#: What the broker answers, and how it is counted.
_COUNTED_AS: Final = {
    "rescheduled": "done",
    "redelivered": "done",
    "already_delivered": "already_delivered",
    "waiting": "already_delivered",
    "already_acked": "already_acked",
    "not_found": "not_found",
    "already_cancelled": "rejected",
    "expired": "rejected",
}
#: A message whose groups answer differently counts as the first of these.
_ORDER: Final = ("done", "already_delivered", "already_acked", "rejected", "not_found")
#: What is read of a selected row: which message, which group (0: none), whether it waits there to be delivered again.
SELECTED: Final = np.dtype([("id", "<i8"), ("group", "<i4"), ("waits", "<i4")])

Selected = npt.NDArray[Any]


class RepairReport(msgspec.Struct, kw_only=True):
    """How many messages were ``selected``, and what became of each; the others add up to it. ``done``: it has the new
    time. ``already_delivered``: the race is lost, a subscriber has it or is given it at once. ``rejected``: it was
    cancelled or has expired. ``first_ms``, ``last_ms``: the first and the last new time."""

    selected: int = 0
    done: int = 0
    already_delivered: int = 0
    already_acked: int = 0
    not_found: int = 0
    rejected: int = 0
    first_ms: int = 0
    last_ms: int = 0
    dry_run: bool = False


def reschedule(
    spark: SparkSession,
    where: str,
    *,
    at: Moment | None = None,
    spread: timedelta | None = None,
    url: str | None = None,
    source: str | Path | None = None,
    reset_attempts: bool = False,
    dry_run: bool = False,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> RepairReport:
    """Gives all messages that ``where`` means the time ``at``, or times that are spread evenly over ``spread`` from
    ``at`` (or from now) on, in the order of their ids.

    ``where``: a condition of Spark SQL over the columns of the table ``messages``. A message that no subscriber was
    given is rescheduled; one that waits to be delivered again gets the time of its next delivery, in the groups of the
    rows that are meant. Both go on with the attempts that they have, unless ``reset_attempts``. ``token_file``,
    ``ca_file``: on each machine that has tasks; by default what is in the environment here. Raises ``BadSql``,
    ``SourceError`` (nothing was changed then), and the client's errors: what was done before stays, and asking again is
    safe.
    """
    if at is None and spread is None:
        raise SourceError("No new time was given.", advice="Give at, or spread, or both.")
    spread_ms = spread // timedelta(milliseconds=1) if spread is not None else 0
    if spread is not None and spread_ms <= 0:
        raise SourceError("The spread is not longer than nothing.", advice="Give a duration such as 2h.")
    with (
        sync.Client(url, token_file=token_file, ca_file=ca_file) as client,
        tempfile.TemporaryFile(prefix="tickwheel-repair-") as file,
    ):
        place = client.log_place()
        first_ms = moment_ms(at, "at") if at is not None else client.stats().now_ms
        if first_ms + spread_ms > MAX_TIME_MS:
            raise SourceError("The last of the new times lies behind the year 9999.")
        tables = _tables(url, client.flight_url, place, source, _secrets(token_file, ca_file))
        groups = _select(spark, tables, where, file)
        selected = _mapped(file)
        repair = _Repair(
            client=client,
            selected=selected,
            groups=groups,
            first_ms=first_ms,
            spread_ms=spread_ms,
            reset_attempts=reset_attempts,
        )
        return repair.report(dry_run=True) if dry_run else repair.work()


# -- selecting --


def _secrets(token_file: str | None, ca_file: str | None) -> dict[str, str]:
    """Tasks get the names of files that stand in the driver's environment, too."""
    return secret_files(
        token_file or os.environ.get("TICKWHEEL_TOKEN_FILE"), ca_file or os.environ.get("TICKWHEEL_CA")
    )


def _tables(
    url: str | None,
    flight_url: str,
    place: LogPlace,
    source: str | Path | None,
    secrets: Mapping[str, str],
) -> dict[str, str]:
    """Where the messages are read, as options of the data source: in the broker's directory where it is here, and else
    by Arrow Flight, if the broker has it. Raises ``SourceError``."""
    directory = str(Path(source if source is not None else place.directory).absolute())
    try:
        describe_log(directory, place.log_id, 0)
    except SourceError:
        if source is not None or not flight_url:
            raise
        return {"url": url or default_url(), **secrets}
    return {"paths": json.dumps([directory])}


def _select(spark: SparkSession, tables: Mapping[str, str], where: str, file: BinaryIO) -> list[str]:
    """Writes what is meant into a file, as ``SELECTED``, in order; the names of the groups. Raises ``BadSql``,
    ``SourceError``."""
    from pyspark.sql import functions as F

    try:
        columns = _used_columns(spark, tables, where)
        meant = _messages(spark, tables, [*columns, "id", "group", "state"]).where(where)
        rows = meant.select("id", "group", (F.col("state") == "waiting").alias("waits")).distinct()
        groups: dict[str, int] = {}
        # Sorting reads everything before the first row comes: no change can be seen by what is still to be selected.
        for row in _packed(rows.orderBy("id", "group")).toLocalIterator():
            file.write(_numbered(bytes(row.rows), groups).tobytes())
    except spark_errors() as error:
        raise as_bad_sql(error) from None
    file.flush()
    return ["", *groups]


def _messages(spark: SparkSession, tables: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    source = spark.read.format("tickwheel").options(**tables)
    if columns:
        source = source.option("columns", ",".join(dict.fromkeys(columns)))
    return source.load()


def _used_columns(spark: SparkSession, tables: Mapping[str, str], where: str) -> list[str]:
    """The columns without which a condition has no meaning: each column that is read costs time, bodies most of all.
    Raises ``AnalysisException`` for a condition that never has a meaning."""
    # Asking for the schema makes a server of Spark Connect analyse, too.
    fields = _messages(spark, tables, ()).where(where).schema.fields
    return [
        field.name
        for field in fields
        if not _has_meaning(spark, [f for f in fields if f is not field], where)
    ]


def _has_meaning(spark: SparkSession, fields: Sequence[StructField], where: str) -> bool:
    """Whether a condition names none but these columns."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    nothing = spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in fields))
    try:
        return len(nothing.where(where).schema) == len(fields)
    except AnalysisException:
        return False


def _packed(rows: DataFrame) -> DataFrame:
    """Arrow batches as single values: what the driver gets one by one."""

    def pack(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            with pa.BufferOutputStream() as out:
                with pa.ipc.new_stream(out, batch.schema) as writer:
                    writer.write_batch(batch)
                packed = pa.array([out.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([packed], ["rows"])

    return rows.mapInArrow(pack, "rows binary")


def _numbered(packed: bytes, groups: dict[str, int]) -> Selected:
    """Rows whose groups are numbered from 1 on, in ``groups``."""
    table = pa.ipc.open_stream(packed).read_all()
    found = np.zeros(len(table), SELECTED)
    found["id"] = table.column("id").to_numpy()
    found["waits"] = table.column("waits").fill_null(False).to_numpy()
    names = table.column("group").to_pylist()
    found["group"] = [0 if name is None else groups.setdefault(name, len(groups) + 1) for name in names]
    return found


def _mapped(file: BinaryIO) -> Selected:
    file.seek(0, 2)
    if not file.tell():
        return np.zeros(0, SELECTED)
    return np.memmap(file, SELECTED, "r")


# -- changing --


def step_times_ms(first_ms: int, spread_ms: int, messages: int) -> list[int]:
    """The times of a spread's steps: evenly over the time from ``first_ms`` on, which the last does not reach."""
    steps = max(1, min(messages, spread_ms, MAX_STEPS))
    return [first_ms + step * spread_ms // steps for step in range(steps)]


def step_bounds(messages: int, steps: int) -> list[int]:
    """Which messages belong to which step: those from ``bounds[i]`` to ``bounds[i + 1]``."""
    return [messages * step // steps for step in range(steps + 1)]


class _Repair:
    """Changes the selected messages; each answer of the broker counts once."""

    def __init__(
        self,
        *,
        client: sync.Client,
        selected: Selected,
        groups: Sequence[str],
        first_ms: int,
        spread_ms: int,
        reset_attempts: bool,
    ) -> None:
        self._client, self._selected, self._groups = client, selected, groups
        self._keep_attempts = not reset_attempts
        self._first_rows = _first_rows(selected)
        self._times_ms = step_times_ms(first_ms, spread_ms, len(self._first_rows))
        self._counts: Counter[str] = Counter()

    def report(self, *, dry_run: bool = False) -> RepairReport:
        counts = {name: self._counts[name] for name in _ORDER}
        return RepairReport(
            selected=len(self._first_rows),
            first_ms=self._times_ms[0],
            last_ms=self._times_ms[-1],
            dry_run=dry_run,
            **counts,
        )

    def work(self) -> RepairReport:
        bounds = step_bounds(len(self._first_rows), len(self._times_ms))
        for time_ms, start, stop in zip(self._times_ms, bounds[:-1], bounds[1:], strict=True):
            for at in range(start, stop, _BATCH_IDS):
                self._change(at, min(at + _BATCH_IDS, stop), time_ms)
        report = self.report()
        assert sum(self._counts.values()) == report.selected, "each message counts once"
        return report

    def _change(self, start: int, stop: int, time_ms: int) -> None:
        """Messages ``start`` to ``stop``, in the order of their ids."""
        last = self._first_rows[stop] if stop < len(self._first_rows) else len(self._selected)
        rows = np.array(self._selected[self._first_rows[start] : last])
        ids = self._selected["id"][self._first_rows[start:stop]].tolist()
        answers = self._client.reschedule(ids=ids, deliver_at=EpochMs(time_ms))
        found = {number: {str(answer)} for number, answer in zip(ids, answers, strict=True)}
        late = np.array([number for number in ids if "already_delivered" in found[number]], np.int64)
        waiting = rows[(rows["waits"] != 0) & np.isin(rows["id"], late)]
        for group in np.unique(waiting["group"]).tolist():
            mine = waiting["id"][waiting["group"] == group].tolist()
            again = self._client.redeliver(
                ids=mine,
                group=self._groups[group],
                deliver_at=EpochMs(time_ms),
                postpone=True,
                keep_attempts=self._keep_attempts,
            )
            for number, result in zip(mine, again, strict=True):
                found[number].add(str(result))
        self._counts.update(verdict(answers) for answers in found.values())


def _first_rows(selected: Selected) -> npt.NDArray[np.int64]:
    """The first row of each message."""
    ids = selected["id"]
    is_first = np.ones(len(ids), bool)
    is_first[1:] = ids[1:] != ids[:-1]
    return np.flatnonzero(is_first)


def verdict(answers: Iterable[str]) -> str:
    """How a message counts of which the broker has said all this."""
    counted = {_COUNTED_AS[answer] for answer in answers}
    return next(name for name in _ORDER if name in counted)
