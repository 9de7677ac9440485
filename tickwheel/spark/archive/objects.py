"""An archive in an object store, or on any file system that nobody can lock: nothing is renamed in it.

    archive/topic=orders/date=2031-05-01/20310601T020000Z-5c3e9a71-00000-7-0.zstd.parquet
    archive/_tickwheel/runs/00000001.json                            a manifest: what the first run has archived
    archive/_tickwheel/runs/00000001.done                            what became of it at the broker
    archive/_tickwheel/begun/LOG/20310601T020000Z-5c3e9a71           a run of a log that has not ended, or was killed

**Manifests are numbered without gaps**, and each is made by a put that fails where there is one of its number. So a run
that gets the number behind all those that it has read knows that none was committed meanwhile; and who has read a list
that lacks the newest finds them by their numbers.

**Files have their places from the beginning**; those that no manifest names do not count. A run that has got its number
knows that no run of its log which had begun by then can get one: it would have to be the number behind those that it
had read before it began. So that is when files of such runs are deleted, and never before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Final

import msgspec

from tickwheel.spark.archive.manifest import (
    MANIFEST,
    OURS,
    OUTCOME,
    RUNS,
    FileEntry,
    Manifest,
    Outcome,
    parse,
)
from tickwheel.spark.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveError,
    ArchiveUncertain,
    BadPlace,
    StorageDenied,
    StorageError,
)
from tickwheel.spark.storage import Storage

_BEGUN: Final = f"{OURS}/begun"
_TOPICS: Final = "topic="
_READS_AT_ONCE: Final = 16
#: Tasks of a driver that was killed may write files for a while: so long its name is remembered.
REMEMBERED_MS: Final = 3_600_000


class ObjectArchive:
    """See `Archive`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        #: Names of manifests by runs, without what is behind the point.
        self._stems: dict[str, str] = {}
        #: The number of the newest manifest that was read, and that which this run may get.
        self._last = self._next = 0
        #: Markers of other runs of this log, and that of this run.
        self._others: list[str] = []
        self._marker = ""
        #: Whether the manifest of this run is there, or may come to be there.
        self._may_count = False

    # -- reading --

    def check(self) -> None:
        if next(self.storage.found(OURS), None) is None and self._content(_stem(1)) is None:
            raise ArchiveError(f"{self.storage.shown} is not an archive: it has no {OURS}/ in it.")

    def manifests(self) -> list[Manifest]:
        listed = [
            one.name.rpartition("/")[2].removesuffix(MANIFEST)
            for one in self.storage.found(RUNS)
            if one.name.endswith(MANIFEST)
        ]
        last = max((int(stem) for stem in listed if stem.isdecimal()), default=0)
        # Those that are not numbered came with an archive that was copied from a directory.
        stems = [*(stem for stem in listed if not stem.isdecimal()), *map(_stem, range(1, last + 1))]
        found = []
        for stem, manifest in zip(stems, self._read(stems), strict=True):
            if manifest is None:
                raise ArchiveDamaged(f"{self._shown(stem)} is missing.")
            found.append(manifest)
        for number in count(last + 1):
            (manifest,) = self._read([_stem(number)])
            if manifest is None:
                self._last = number - 1
                return sorted(found, key=lambda manifest: manifest.run)
            found.append(manifest)
        raise AssertionError("unreachable")

    def _read(self, stems: list[str]) -> Iterator[Manifest | None]:
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            for stem, content in zip(stems, pool.map(self._content, stems), strict=True):
                if content is None:
                    yield None
                    continue
                manifest = parse(content, Manifest, self._shown(stem))
                self._stems[manifest.run] = stem
                yield manifest

    def _content(self, stem: str) -> bytes | None:
        return self.storage.read(f"{RUNS}/{stem}{MANIFEST}")

    def _shown(self, stem: str) -> str:
        return self.storage.shown_name(f"{RUNS}/{stem}{MANIFEST}")

    def outcome(self, manifest: Manifest) -> Outcome | None:
        name = self._outcome_name(manifest)
        content = self.storage.read(name)
        return None if content is None else parse(content, Outcome, self.storage.shown_name(name))

    def _outcome_name(self, manifest: Manifest) -> str:
        return f"{RUNS}/{self._stems[manifest.run]}{OUTCOME}"

    def name(self, manifest: Manifest, entry: FileEntry) -> str:
        """See `Archive`. Whether it is there shows when it is read."""
        return entry.name

    # -- writing --

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See `Archive`. Nobody can be kept off: who is late learns it when he commits."""
        yield

    def remove_orphans(self) -> int:
        """See `Archive`. What others have left is known to be dead only when this run counts: see `commit`."""
        return 0

    def begin(self, run: str, log_id: str) -> str:
        """See `Archive`. The number comes first: who sees the marker knows that it was chosen before."""
        self._next = self._last + 1
        folder = f"{_BEGUN}/{log_id}"
        self._others = [one.name for one in self.storage.found(folder)]
        self._marker = f"{folder}/{run}"
        content = run.encode()
        if not self.storage.create(self._marker, content) or self.storage.create(
            self._marker, content + b"!"
        ):
            raise ArchiveError(
                f"{self.storage.shown} replaces what was to be made only if there is none: two runs could not be kept "
                "apart.",
                advice="Use a store that knows conditional puts (If-None-Match: *), as S3, GCS, Azure and MinIO do.",
            )
        return ""

    def begun(self) -> list[str]:
        return [run for name in self._others if (run := name.rpartition("/")[2]) not in self._stems]

    def commit(self, manifest: Manifest) -> None:
        # Others of which it is known now cannot get a number once this run has one.
        folder = self._marker.rpartition("/")[0]
        others = {one.name for one in self.storage.found(folder)} - {self._marker}
        content = msgspec.json.encode(manifest)
        for number in count(self._next):
            if self._is_created(number, content):
                self._stems[manifest.run] = _stem(number)
                break
            (found,) = self._read([_stem(number)])
            if found is None:
                self._may_count = True
                raise ArchiveUncertain(f"{self._shown(_stem(number))} was there, and is gone.")
            if found.log_id == manifest.log_id:
                raise self._busy(found)
        self._sweep(others)

    def _is_created(self, number: int, content: bytes) -> bool:
        """Raises ``ArchiveUncertain``, ``StorageError``: it is not there then."""
        name = f"{RUNS}/{_stem(number)}{MANIFEST}"
        shown, self._may_count = self.storage.shown_name(name), True
        try:
            is_ours = self.storage.create(name, content)
        except (StorageDenied, BadPlace):
            self._may_count = False
            raise
        except (StorageError, OSError) as error:
            raise ArchiveUncertain(f"It is not known whether {shown} is there: {error}") from None
        self._may_count = is_ours
        return is_ours

    def overtaken(self, log_id: str) -> ArchiveBusy | None:
        for number in count(self._next):
            (found,) = self._read([_stem(number)])
            if found is None or found.log_id == log_id:
                return None if found is None else self._busy(found)
        raise AssertionError("unreachable")

    def _busy(self, found: Manifest) -> ArchiveBusy:
        return ArchiveBusy(
            f"Another run, {found.run}, archived messages of this broker to {self.storage.shown} while this one did: "
            "its files count, and those of this run are deleted."
        )

    def give_up(self, run: str) -> None:
        """See `Archive`. The marker stays, for tasks that still write."""
        if not self._may_count:
            self._remove_files([run])

    def publish(self, manifest: Manifest) -> None:
        """See `Archive`. They have had them all along."""

    def finish(self, manifest: Manifest, outcome: Outcome) -> None:
        self.storage.write(self._outcome_name(manifest), msgspec.json.encode(outcome))

    def end(self) -> None:
        self.storage.remove([self._marker])

    def _sweep(self, others: set[str]) -> None:
        """Deletes what runs left that can never count any more."""
        dead = [name for name in others if name.rpartition("/")[2] not in self._stems]
        if dead:
            self._remove_files([name.rpartition("/")[2] for name in dead])
        known = {one.name: one.modified_ms for one in self.storage.found(self._marker.rpartition("/")[0])}
        now_ms = known.get(self._marker, 0)
        self.storage.remove(
            [name for name in others if name not in dead or now_ms - known.get(name, now_ms) > REMEMBERED_MS]
        )

    def _remove_files(self, runs: Iterable[str]) -> None:
        names = [
            one.name
            for one in self.storage.found("")
            if one.name.startswith(_TOPICS) and any(f"/{run}-" in one.name for run in runs)
        ]
        self.storage.remove(names)


def _stem(number: int) -> str:
    return f"{number:08d}"
