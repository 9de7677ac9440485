"""The data pipeline: Tickwheel's messages as a Spark data source, and sessions that need no setting up.

>>> from tickwheel.spark import session
>>> spark = session()
>>> messages = spark.read.format("tickwheel").load("data")
>>> messages.where("state = 'scheduled'").groupBy("topic").count().show()

In a session of your own, ``register(spark)`` makes the format known. Nothing here is imported before it is used, and
importing this package needs neither pyspark nor Java: see ``tickwheel.spark.errors`` for what is missing when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tickwheel.arrow.errors import PositionLost, SourceError
from tickwheel.spark.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveError,
    JavaMissing,
    RowsRefused,
    RowsRejected,
    ScheduleFailed,
    ScheduleUncertain,
    SparkError,
    SparkMissing,
    StagingError,
    understood,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tickwheel.spark.archive import ArchiveReport, RestoreReport
    from tickwheel.spark.repair import RepairReport
    from tickwheel.spark.scheduling import ScheduleResult, Staged

__all__ = [
    "ArchiveBusy",
    "ArchiveDamaged",
    "ArchiveError",
    "JavaMissing",
    "PositionLost",
    "RowsRefused",
    "RowsRejected",
    "ScheduleFailed",
    "ScheduleUncertain",
    "SourceError",
    "SparkError",
    "SparkMissing",
    "StagingError",
    "archive_messages",
    "conditions",
    "make_report",
    "register",
    "reschedule_messages",
    "restore_messages",
    "schedule_file",
    "schedule_messages",
    "session",
    "understood",
]


def register(spark: SparkSession) -> None:
    """Makes ``format("tickwheel")`` known to a session; it is harmless to do it twice."""
    from tickwheel.spark import sessions

    sessions.register(spark)


def conditions(*wanted: tuple[Any, ...]) -> str:
    """The value of the option ``filters``: see ``tickwheel.arrow.predicates.conditions``."""
    from tickwheel.arrow import predicates

    return predicates.conditions(*wanted)


def make_report(
    spark: SparkSession,
    directories: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    progress: Callable[[str], None] | None = None,
    fs: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Reports on the deliveries of data directories, or of brokers with `tickwheel flight` whose URLs are given: writes
    ``index.html``, ``summary.json`` and ``tables/*.parquet`` to ``out``, which is new, empty or an earlier report, and
    returns the summary. ``out`` may be in an object store or HDFS, with ``fs`` as for ``archive_messages``. Options:
    ``since`` and ``until`` (aware datetimes), ``by``, ``tenant``, ``top``, ``committed``, ``target_p99`` (a timedelta),
    ``compare`` (an earlier report), ``token_file`` and ``ca_file`` (for brokers, on each machine that has tasks);
    docs/how-to/spark-report.md explains them. ``progress``: called with a line about each step.

    Raises ``SourceError``, ``StorageError``, and what ``tickwheel.spark.report.errors`` defines: ``ReportError``,
    ``OutputRefused``, ``EarlierRefused``, ``PlottingMissing``."""
    from tickwheel.spark.report import make
    from tickwheel.spark.report.options import report_options
    from tickwheel.spark.report.output import output_at

    place = output_at(out, options.get("compare"), fs or {})
    return make.make_report(spark, report_options(directories, **options, fs=fs), place, progress)


def session(**options: Any) -> SparkSession:
    """A session that knows the format; see ``tickwheel.spark.sessions.make_session``. Raises ``SparkMissing``,
    ``JavaMissing``."""
    from tickwheel.spark.sessions import make_session

    return make_session(**options)


def schedule_messages(
    frame: DataFrame,
    *,
    url: str | None = None,
    topic: str | None = None,
    max_rejects: int = 0,
    job: str | None = None,
    rejects: str | None = None,
    staging: str | None = None,
    run_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
    tz: str | None = None,
    rename: Mapping[str, str] | None = None,
    staged: Staged | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> ScheduleResult:
    """Schedules the rows of a DataFrame: all of them or none, without sending each. The columns are those of
    ``df.write.format("tickwheel")``. The DataFrame is computed once.

    ``url``: of the broker, as the workers see it. ``topic``: of rows that name none. ``max_rejects``: so many rows may
    be bad or have keys that are taken, 0 by default; they are left out. ``job``: a name for the job; one that is given
    twice is done once. ``rejects``: a directory of this machine for a Parquet file about rows that were left out.
    ``staging``: where the broker's directory ``staging`` is, if it has another path on driver and workers.
    ``run_bytes``: how much a task gathers before it sorts and writes it; it needs two to three times as much memory.
    ``progress``: called with a line about what happens. ``tz``: the IANA zone of times without a zone, which are
    refused otherwise. ``rename``: names of columns, and what messages call them: ``{"when": "deliver_at"}``.
    ``staged``: how files come to the broker, ``"in place"`` or ``"flight"`` (by Arrow Flight); None: in place where its
    directory is seen, and else by Arrow Flight. ``token_file``, ``ca_file``: on each machine that has tasks; by default
    what is in the environment there.

    Raises ``RowsRefused`` (with ``result``), ``SourceError``, ``StagingError``, ``ScheduleFailed``: then nothing was
    scheduled. ``ScheduleUncertain``: the broker went away at the last moment.
    """
    from tickwheel.spark import scheduling

    return scheduling.schedule_frame(
        frame,
        scheduling.options(
            url=url,
            topic=topic,
            max_rejects=max_rejects,
            job=job,
            rejects=rejects,
            staging=staging,
            run_bytes=run_bytes,
            progress=progress,
            tz=tz,
            rename=rename,
            staged=staged,
            token_file=token_file,
            ca_file=ca_file,
        ),
    )


def schedule_file(
    spark: SparkSession, path: str, *, format: str | None = None, **options: Any
) -> ScheduleResult:
    """Schedules the rows of a file or a directory of files. ``format``: ``parquet``, ``csv`` or ``json`` (one object a
    line), by default what the name says. All else is as for ``schedule_messages``."""
    from tickwheel.spark import scheduling

    return scheduling.schedule_file(spark, path, format, scheduling.options(**options))


def archive_messages(spark: SparkSession, to: str | Path, **options: Any) -> ArchiveReport:
    """Archives what is done, and has the broker drop it: see ``tickwheel.spark.archive.archive``."""
    from tickwheel.spark.archive import archive

    return archive(spark, to, **options)


def restore_messages(spark: SparkSession, source: str | Path, **options: Any) -> RestoreReport:
    """Brings a time range back from an archive: see ``tickwheel.spark.archive.restore``."""
    from tickwheel.spark.archive import restore

    return restore(spark, source, **options)


def reschedule_messages(spark: SparkSession, where: str, **options: Any) -> RepairReport:
    """Gives messages that a condition means another time: see ``tickwheel.spark.repair.reschedule``."""
    from tickwheel.spark.repair import reschedule

    return reschedule(spark, where, **options)
