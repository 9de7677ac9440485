"""Brings messages of a time range back from an archive, as messages of a topic.

The files that may hold some are checked whole before anything is sent. Each message gets a key made of its log and its
id, so that restoring again, or a task that is run twice, sends none of them a second time while they are there.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.options import secret_files
from tickwheel.client.times import Moment, moment_ms
from tickwheel.protocol.limits import MAX_HEADERS_BYTES, MAX_TIME_MS, MAX_TOPIC_NAME_CHARS, is_valid_name
from tickwheel.spark.archive.files import checked_batches, read_batches
from tickwheel.spark.archive.layout import Archive, archive_at
from tickwheel.spark.archive.manifest import FileEntry
from tickwheel.spark.archive.tasks import numbers_of, part_frame, run_tasks
from tickwheel.spark.errors import ArchiveDamaged, as_ours, spark_errors
from tickwheel.spark.storage import Storage, storage_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADER: Final = "tickwheel-archived-"
_SUFFIX: Final = ".restored"
_SENT_SCHEMA: Final = (
    "key string, deliver_at timestamp, body binary, priority int, headers string, order_key string, "
    "topic string"
)
_SENT: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("deliver_at", pa.timestamp("us", "UTC")),
        pa.field("body", pa.binary()),
        pa.field("priority", pa.int32()),
        pa.field("headers", pa.string()),
        pa.field("order_key", pa.string()),
        pa.field("topic", pa.string()),
    ]
)


class RestoreReport(msgspec.Struct, kw_only=True):
    """What was brought back, or would be (``dry_run``): ``messages`` were in the range, in ``files`` files, and go to
    the ``topics``. Of them ``stored`` are new there, ``duplicates`` had been restored before and still are there."""

    messages: int = 0
    files: int = 0
    topics: dict[str, int] = msgspec.field(default_factory=dict)
    stored: int = 0
    duplicates: int = 0
    dry_run: bool = False


def restore(
    spark: SparkSession,
    source: str | Path,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    topics: Sequence[str] = (),
    into: str | None = None,
    url: str | None = None,
    dry_run: bool = False,
    fs: Mapping[str, str] | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> RestoreReport:
    """Sends the archived messages again that were due from ``since`` on and before ``until``, each to the topic
    ``into``, or to that of its own name with ``.restored`` behind it, so that no subscriber gets old messages
    unasked.

    ``source``, ``fs``, ``token_file`` and ``ca_file``: as for ``archive``. Messages are due at once, as their times are
    over, with their own priority, headers and ordering key, and headers ``tickwheel-archived-…`` that say what they
    were. Raises ``SourceError``, ``ArchiveError``, ``ArchiveDamaged``, ``StorageError`` (then nothing was sent), and
    the errors of the sink.
    """
    storage = storage_at(source, fs)
    storage.reach()
    archive = archive_at(storage)
    archive.check()
    first_ms = moment_ms(since, "since") if since is not None else 0
    end_ms = moment_ms(until, "until") if until is not None else MAX_TIME_MS + 1
    if first_ms >= end_ms:
        raise SourceError("The range is empty: until is not behind since.")
    files = _files(archive, first_ms, end_ms, topics)
    targets = {entry.topic: _target(entry.topic, into) for _, entry in files}
    counted = run_tasks(spark, files, partial(_count, storage, first_ms, end_ms), _Counted)
    report = RestoreReport(dry_run=dry_run, files=sum(one.messages > 0 for one in counted))
    counts: Counter[str] = Counter()
    for one in counted:
        counts[targets[one.topic]] += one.messages
    report.topics = {topic: count for topic, count in sorted(counts.items()) if count}
    report.messages = sum(counts.values())
    if not dry_run and report.messages:
        work = partial(_messages, storage, files, (first_ms, end_ms), targets)
        named = {"url": url} if url is not None else {}
        options = {**named, **secret_files(token_file, ca_file)}
        _send(part_frame(spark, len(files)).mapInArrow(work, _SENT_SCHEMA), options, report)
    return report


class _Counted(msgspec.Struct, frozen=True):
    topic: str
    messages: int


def _files(
    archive: Archive, first_ms: int, end_ms: int, topics: Sequence[str]
) -> list[tuple[str, FileEntry]]:
    """The files that may hold messages of the range. Raises ``SourceError``, ``ArchiveDamaged``."""
    entries = [(manifest, entry) for manifest in archive.manifests() for entry in manifest.files]
    unknown = sorted(set(topics) - {entry.topic for _, entry in entries})
    if unknown:
        raise SourceError(f"The archive has no messages of a topic {unknown[0]!r}.")
    return [
        (archive.name(manifest, entry), entry)
        for manifest, entry in entries
        if entry.first_deliver_ms < end_ms
        and entry.last_deliver_ms >= first_ms
        and (not topics or entry.topic in topics)
    ]


def _target(topic: str, into: str | None) -> str:
    name = into if into is not None else f"{topic}{_SUFFIX}"
    if not is_valid_name(name) or len(name) > MAX_TOPIC_NAME_CHARS:
        raise SourceError(f"{name!r} cannot be the name of a topic.", advice="Name another with into.")
    return name


def _in_range(batch: Any, first_ms: int, end_ms: int) -> Any:
    times = batch.column("deliver_at").view(pa.int64())
    return batch.filter(pc.and_(pc.greater_equal(times, first_ms), pc.less(times, end_ms)))


def _count(
    storage: Storage, first_ms: int, end_ms: int, file: tuple[str, FileEntry], attempt: str
) -> _Counted:
    name, entry = file
    batches = checked_batches(storage, name, entry)
    return _Counted(
        entry.topic, sum(len(_in_range(batch.select(["deliver_at"]), first_ms, end_ms)) for batch in batches)
    )


def _messages(
    storage: Storage,
    files: list[tuple[str, FileEntry]],
    times_ms: tuple[int, int],
    targets: dict[str, str],
    batches: Iterable[Any],
) -> Iterator[Any]:
    """What a task sends: of the files whose numbers it gets."""
    for number in numbers_of(batches):
        name, entry = files[number]
        for batch in read_batches(storage, name):
            yield as_messages(_in_range(batch, *times_ms), entry.topic, targets[entry.topic])


def _send(frame: DataFrame, options: Mapping[str, str], report: RestoreReport) -> None:
    with tempfile.TemporaryDirectory(prefix="tickwheel-restore-") as folder:
        written = Path(folder, "report.json")
        try:
            frame.write.format("tickwheel").mode("append").options(report=str(written), **options).save()
        except spark_errors() as error:
            raise as_ours(error) from None
        counts = json.loads(written.read_bytes())
    report.stored, report.duplicates = counts["stored"], counts["duplicates"]
    if report.stored + report.duplicates != report.messages:
        raise ArchiveDamaged(
            f"{report.messages:,} messages were counted, and {report.stored + report.duplicates:,} were sent: "
            "the archive was changed meanwhile."
        )


def as_messages(batch: Any, topic: str, target: str) -> Any:
    """Archived rows as rows for ``format("tickwheel")``."""
    rows = batch.select(
        ["id", "log_id", "key", "deliver_at", "time_acked", "headers", "headers_packed"]
    ).to_pylist()
    columns = [
        pa.array([f"archive:{row['log_id']}:{row['id']}" for row in rows], pa.string()),
        batch.column("deliver_at").cast(pa.timestamp("us", "UTC")),
        batch.column("body"),
        batch.column("priority"),
        pa.array([headers_of(row, topic) for row in rows], pa.string()),
        batch.column("order_key"),
        pa.array([target] * len(rows), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SENT)


def headers_of(row: dict[str, Any], topic: str) -> str:
    """The message's own headers as JSON, and ours. Headers that JSON cannot hold come as they were, in base64; where
    ours have no room, they are left out: the key says which message it is."""
    packed = row["headers_packed"]
    ours: dict[str, Any] = {
        "id": str(row["id"]),
        "log": row["log_id"],
        "topic": topic,
        "deliver-at": row["deliver_at"].isoformat(timespec="milliseconds"),
        "acked-at": row["time_acked"].isoformat(timespec="milliseconds"),
    }
    if row["key"] is not None:
        ours["key"] = row["key"]
    own = _as_json(packed, row["headers"])
    if own is None:
        own, ours["headers"] = {}, base64.b64encode(packed).decode()
    full = own | {HEADER + name: value for name, value in ours.items()}
    fits = len(msgspec.msgpack.encode(full)) <= MAX_HEADERS_BYTES
    return json.dumps(full if fits or "headers" in ours else own)


def _as_json(packed: bytes | None, text: str | None) -> dict[str, Any] | None:
    """Headers that come back from JSON as they were; None: they would not."""
    if packed is None:
        return {}
    found = json.loads(text) if text is not None else None
    if not isinstance(found, dict) or msgspec.msgpack.decode(packed) != found:
        return None
    return found
