"""Archives what is done: copies it into Parquet files, checks them, and only then lets the broker forget it.

1. What an earlier run left is brought to its end: see ``_Run.resume``.
2. Tasks read what is done, in place or by Arrow Flight, and write files that do not count yet, with a count and a
   checksum of what they read.
3. Other tasks read the files back and compare.
4. The manifest: from here on the messages are archived.
5. The files get their places, and the broker drops exactly the ids that are in them.

A crash before 4 leaves files that are never read; one after it, a manifest whose drop the next run repeats: to drop
an id that is gone changes nothing. What the broker keeps because it was redelivered is not archived twice. Of two runs
at once one is refused: in a directory when it begins, elsewhere at 4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tickwheel import sync
from tickwheel.arrow.archive_table import STATES, Counts, Passed, Wanted
from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.errors import UnknownTopic
from tickwheel.spark.archive.files import check_file, read_ids, write_files
from tickwheel.spark.archive.layout import Archive, archive_at
from tickwheel.spark.archive.manifest import FORMAT, FileEntry, Manifest, Outcome, new_run
from tickwheel.spark.archive.places import Place, Read, find_place
from tickwheel.spark.archive.tasks import run_tasks
from tickwheel.spark.errors import ArchiveDamaged
from tickwheel.spark.storage import Storage, storage_at
from timerlog.layout import Int64Array

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_ROWS_PER_TASK: Final = 500_000
_DROP_IDS: Final = 50_000
_RUN_BYTES: Final = 4
_NAMED: Final = 5


class TopicCount(msgspec.Struct, frozen=True):
    """``bytes``: of the log's records, or of the files."""

    messages: int
    bytes: int


class ArchiveReport(msgspec.Struct, kw_only=True):
    """What was archived, or would be (``dry_run``), ``read`` in place or by Arrow Flight.

    ``messages`` went into ``files`` files of ``bytes`` bytes, and of those the broker has ``dropped`` so many; ``gone``
    had been purged before it was asked, ``kept`` were called for again meanwhile. ``vanished`` were purged while they
    were read, so they are in no archive; ``unreadable`` stay with the broker. ``resumed``: earlier runs that were
    brought to their end, with how many messages the broker has dropped of them.
    """

    run: str | None = None
    done_before_ms: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0
    topics: dict[str, TopicCount] = msgspec.field(default_factory=dict)
    dropped: int = 0
    gone: int = 0
    kept: int = 0
    vanished: int = 0
    unreadable: int = 0
    resumed: dict[str, int] = msgspec.field(default_factory=dict)
    freed_bytes: int | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    dry_run: bool = False
    read: Read = "in place"


def archive(
    spark: SparkSession,
    to: str | Path,
    *,
    older_than: timedelta,
    url: str | None = None,
    source: str | Path | None = None,
    topics: Sequence[str] = (),
    states: Sequence[str] = ("acked",),
    purge: bool = False,
    dry_run: bool = False,
    rows_per_task: int = DEFAULT_ROWS_PER_TASK,
    fs: Mapping[str, str] | None = None,
    read: Read | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
) -> ArchiveReport:
    """Archives the messages that every group was done with more than ``older_than`` ago, and has the broker drop them.

    ``to``: a directory that all tasks see, which is made where there is none, or a place in an object store or HDFS:
    ``s3://``, ``s3a://``, ``gs://``, ``abfss://``, ``hdfs://``; ``fs``: options to get there, beside the usual
    environment. ``source``: the broker's data directory, where it is mounted elsewhere than the broker says.
    ``states``: ``dead`` as well takes messages that some group has given up. ``purge``: waits until the broker has
    given the disk space back; else it does so when it is worth it. ``read``: how messages are read, ``"in place"`` or
    ``"flight"`` (by Arrow Flight); None: in place where the broker's directory is seen, and else by Arrow Flight.
    ``token_file``, ``ca_file``: on each machine that has tasks; by default what is in the environment there.

    Raises ``SourceError``, Forbidden, ``ArchiveBusy``, ``ArchiveDamaged``, ``ArchiveError``, ``ArchiveUncertain``,
    ``StorageError``, and the client's errors.
    """
    wrong = [state for state in states if state not in STATES]
    if wrong or not states:
        raise SourceError(
            f"Messages cannot be archived by the states {list(states)}.",
            advice="Use acked, or acked and dead.",
        )
    if older_than < timedelta():
        raise SourceError("older_than is negative.", advice="Use 30d, or 0s for all that is done by now.")
    storage = storage_at(to, fs)
    storage.reach()
    with sync.Client(url, token_file=token_file, ca_file=ca_file) as client:
        now_ms = client.stats().now_ms
        place = find_place(client, now_ms, source=source, read=read, token_file=token_file, ca_file=ca_file)
        run = _Run(
            spark=spark,
            client=client,
            archive=archive_at(storage),
            place=place,
            rows_per_task=rows_per_task,
            now_ms=now_ms,
        )
        return run.work(older_than, topics, tuple(states), purge=purge, dry_run=dry_run)


class _Written(msgspec.Struct, frozen=True):
    files: list[FileEntry]
    meant: int
    vanished: int
    unreadable: int


class _Counted(msgspec.Struct, frozen=True):
    topics: Counts


class _Checked(msgspec.Struct, frozen=True):
    name: str


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the files of a run go."""

    storage: Storage
    folder: str
    run: str


def _write(place: Place, wanted: Wanted, target: _Target, part: Any, attempt: str) -> _Written:
    passed = Passed()
    pieces = place.pieces(part, wanted, passed)
    files = write_files(pieces, target.storage, target.folder, f"{target.run}-{attempt}")
    return _Written(files, passed.meant, passed.vanished, passed.unreadable)


def _count(place: Place, wanted: Wanted, part: Any, attempt: str) -> _Counted:
    return _Counted(place.count(part, wanted))


def _check(storage: Storage, file: tuple[str, FileEntry], attempt: str) -> _Checked:
    name, entry = file
    check_file(storage, name, entry)
    return _Checked(entry.name)


def check_files(spark: SparkSession, storage: Storage, files: Sequence[tuple[str, FileEntry]]) -> None:
    """Reads files in tasks and compares them with what was written. Raises ``ArchiveDamaged``."""
    checked = run_tasks(spark, files, partial(_check, storage), _Checked)
    if sorted(one.name for one in checked) != sorted(entry.name for _, entry in files):
        raise ArchiveDamaged("Not all files of the archive were checked.")


class _Run:
    def __init__(
        self,
        *,
        spark: SparkSession,
        client: sync.Client,
        archive: Archive,
        place: Place,
        rows_per_task: int,
        now_ms: int,
    ) -> None:
        """``now_ms``: by the broker's clock."""
        self._spark, self._client, self._archive, self._place = spark, client, archive, place
        self._log_id, self._rows_per_task, self._now_ms = client.log_place().log_id, rows_per_task, now_ms
        self._report = ArchiveReport(read=place.read)
        #: Ids that are in the archive and that the broker keeps.
        self._kept: list[tuple[int, int]] = []

    def work(
        self,
        older_than: timedelta,
        topics: Sequence[str],
        states: tuple[str, ...],
        *,
        purge: bool,
        dry_run: bool,
    ) -> ArchiveReport:
        older_ms = older_than // timedelta(milliseconds=1)
        report = self._report
        report.dry_run, report.done_before_ms = dry_run, max(0, self._now_ms - older_ms)
        chosen = _chosen(self._place, topics)
        self._warn(chosen, older_ms)
        if dry_run:
            self._kept = self._all_kept()
            self._forecast(self._wanted(chosen, states))
            return report
        with self._archive.locked():
            self.resume()
            manifest = self._write(self._wanted(chosen, states))
            if manifest is not None:
                self._drop(manifest)
            self._archive.end()
        if purge:
            report.freed_bytes = self._client.purge().freed_bytes
        return report

    def _wanted(self, topics: tuple[str, ...] | None, states: tuple[str, ...]) -> Wanted:
        return Wanted(self._report.done_before_ms, states, topics, _ids_of(self._kept))

    def _warn(self, topics: tuple[str, ...] | None, older_ms: int) -> None:
        """What is purged sooner than it is archived is lost."""
        short: dict[float, list[str]] = {}
        for name in self._place.topics if topics is None else topics:
            try:
                purge_after_ms = self._client.topic(name).effective["purge_after_ms"]
            except UnknownTopic:
                continue  # it was deleted just now
            if purge_after_ms <= older_ms:
                short.setdefault(purge_after_ms, []).append(name)
        for purge_after_ms, found in sorted(short.items()):
            others = f" and {len(found) - _NAMED} others" if len(found) > _NAMED else ""
            self._report.warnings.append(
                f"purge_after is {purge_after_ms / 1_000:,.0f} s for {', '.join(found[:_NAMED])}{others}, not longer "
                f"than older_than: messages may be purged before they are archived. Raise it, to 36500d say."
            )

    def _forecast(self, wanted: Wanted) -> None:
        parts = self._place.parts(wanted, self._rows_per_task, are_counts=True)
        counted = run_tasks(self._spark, parts, partial(_count, self._place, wanted), _Counted)
        for one in counted:
            self._add({topic: TopicCount(*counts) for topic, counts in one.topics.items()})

    def _add(self, topics: dict[str, TopicCount]) -> None:
        report = self._report
        for topic, count in topics.items():
            known = report.topics.get(topic, TopicCount(0, 0))
            report.topics[topic] = TopicCount(known.messages + count.messages, known.bytes + count.bytes)
            report.messages, report.bytes = report.messages + count.messages, report.bytes + count.bytes

    # -- what earlier runs left --

    def resume(self) -> None:
        """Deletes files of runs without a manifest. Where the broker may not have dropped all of a run, its files are
        checked once more, and it is asked again; so it is for messages that it kept."""
        self._archive.remove_orphans()
        for manifest in self._archive.manifests():
            if manifest.log_id != self._log_id:
                continue
            outcome = self._archive.outcome(manifest)
            if outcome is None:
                files = [(self._archive.name(manifest, one), one) for one in manifest.files]
                check_files(self._spark, self._archive.storage, files)
                self._report.resumed[manifest.run] = self._drop(manifest, is_own=False).dropped
            elif outcome.kept:
                self._drop_kept(manifest, outcome)

    def _drop_kept(self, manifest: Manifest, before: Outcome) -> None:
        """What was done again since is as old as everything that is archived now."""
        dropped, gone, kept = self._ask(_batches(_ids_of(before.kept)), self._report.done_before_ms)
        self._kept += kept
        if dropped + gone:
            done = Outcome(dropped=before.dropped + dropped, gone=before.gone + gone, kept=kept)
            self._archive.finish(manifest, done)
            self._report.resumed[manifest.run] = dropped

    def _all_kept(self) -> list[tuple[int, int]]:
        """Without asking the broker: what is in the archive and may still be with the broker."""
        kept: list[tuple[int, int]] = []
        for manifest in self._archive.manifests():
            if manifest.log_id == self._log_id:
                outcome = self._archive.outcome(manifest)
                kept += outcome.kept if outcome is not None else _runs_of(self._ids_in(manifest))
        return kept

    def _ids_in(self, manifest: Manifest) -> Int64Array:
        archive = self._archive
        found = [read_ids(archive.storage, archive.name(manifest, entry), entry) for entry in manifest.files]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)

    # -- this run --

    def _write(self, wanted: Wanted) -> Manifest | None:
        """None: there is nothing to archive."""
        archive, run = self._archive, new_run(self._now_ms, os.urandom(_RUN_BYTES))
        folder = archive.begin(run, self._log_id)
        self._report.warnings += [
            f"The run {one} has begun and not ended: it was killed, or it goes on, and then one of both counts."
            for one in archive.begun()
        ]
        try:
            work = partial(_write, self._place, wanted, _Target(archive.storage, folder, run))
            parts = self._place.parts(wanted, self._rows_per_task, are_counts=False)
            written = run_tasks(self._spark, parts, work, _Written)
            report, files = self._report, [entry for one in written for entry in one.files]
            report.vanished = sum(one.vanished for one in written)
            report.unreadable = sum(one.unreadable for one in written)
            manifest = Manifest(
                format=FORMAT,
                run=run,
                log_id=self._log_id,
                created_ms=self._now_ms,
                done_before_ms=wanted.done_before_ms,
                states=list(wanted.states),
                files=sorted(files, key=lambda entry: entry.name),
            )
            taken = sum(one.meant for one in written) - report.vanished - report.unreadable
            if manifest.rows != taken:
                raise ArchiveDamaged(f"The files hold {manifest.rows:,} messages, and {taken:,} were read.")
            if not files:
                return None
            within = f"{folder}/" if folder else ""
            check_files(self._spark, archive.storage, [(within + entry.name, entry) for entry in files])
            archive.commit(manifest)
        except BaseException as error:
            archive.give_up(run)
            if isinstance(error, ArchiveDamaged):
                raise archive.overtaken(self._log_id) or error from None
            raise
        report.run, report.files = run, len(files)
        for entry in files:
            self._add({entry.topic: TopicCount(entry.rows, entry.bytes)})
        return manifest

    def _drop(self, manifest: Manifest, *, is_own: bool = True) -> Outcome:
        """Puts the files where they belong, has the broker drop what is in them, and writes down what it said."""
        archive = self._archive
        archive.publish(manifest)
        batches = (
            batch
            for entry in manifest.files
            for batch in _batches(np.sort(read_ids(archive.storage, archive.name(manifest, entry), entry)))
        )
        dropped, gone, kept = self._ask(batches, manifest.done_before_ms)
        outcome = Outcome(dropped=dropped, gone=gone, kept=kept)
        archive.finish(manifest, outcome)
        self._kept += kept
        if is_own:
            self._report.dropped, self._report.gone = dropped, gone
            self._report.kept = sum(count for _, count in kept)
        return outcome

    def _ask(
        self, batches: Iterator[Int64Array], done_before_ms: int
    ) -> tuple[int, int, list[tuple[int, int]]]:
        dropped = gone = 0
        kept: list[tuple[int, int]] = []
        for ids in batches:
            found = self._client.drop(self._log_id, _runs_of(ids), done_before=done_before_ms)
            dropped, gone = dropped + found.dropped, gone + found.gone
            kept += found.kept
        return dropped, gone, kept


def _chosen(place: Place, topics: Sequence[str]) -> tuple[str, ...] | None:
    """None: all topics. Raises ``SourceError``."""
    if not topics:
        return None
    unknown = sorted(set(topics) - set(place.topics))
    if unknown:
        raise SourceError(f"There is no topic {unknown[0]!r}.", advice="`tickwheel topics` lists them.")
    return tuple(sorted(set(topics)))


def _batches(ids: Int64Array) -> Iterator[Int64Array]:
    for start in range(0, len(ids), _DROP_IDS):
        yield ids[start : start + _DROP_IDS]


def _runs_of(ids: Int64Array) -> list[tuple[int, int]]:
    """First id and count of what is consecutive in ids that are in order."""
    parts: list[Any] = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return [(int(part[0]), len(part)) for part in parts if len(part)]


def _ids_of(runs: Sequence[tuple[int, int]]) -> Int64Array:
    parts = [np.arange(first, first + count, dtype=np.int64) for first, count in runs]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
