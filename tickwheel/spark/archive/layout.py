"""An archive, wherever it is: see `DirectoryArchive` and `ObjectArchive` for what it keeps where. Each can be read as
the other once it was copied."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from tickwheel.spark.archive.directory import DirectoryArchive
from tickwheel.spark.archive.manifest import FileEntry, Manifest, Outcome
from tickwheel.spark.archive.objects import ObjectArchive
from tickwheel.spark.errors import ArchiveBusy
from tickwheel.spark.storage import DirectoryFiles, Storage


class Archive(Protocol):
    """What counts is what manifests name. Functions raise ``StorageError``, or ``OSError`` of a directory."""

    @property
    def storage(self) -> Storage:
        """Its files."""

    def check(self) -> None:
        """Raises ``ArchiveError`` unless there is an archive."""

    def manifests(self) -> list[Manifest]:
        """What counts, oldest first. Raises ``ArchiveDamaged``, ``ArchiveError``."""

    def outcome(self, manifest: Manifest) -> Outcome | None:
        """None: the broker may not have dropped this run's messages yet."""

    def name(self, manifest: Manifest, entry: FileEntry) -> str:
        """Where a file of a committed run is, among the files of the storage. Raises ``ArchiveDamaged``."""

    def locked(self) -> AbstractContextManager[None]:
        """Around all that is written. Raises ``ArchiveBusy`` where others can be kept off."""

    def remove_orphans(self) -> int:
        """Deletes what runs have left that do not count and never will; how many runs."""

    def begin(self, run: str, log_id: str) -> str:
        """The folder for the files of a run of a log, whose manifests have all been read. Raises ``ArchiveError``."""

    def begun(self) -> list[str]:
        """Other runs of the log that had begun and not ended when this one began."""

    def commit(self, manifest: Manifest) -> None:
        """Makes the files of a run count. Raises ``ArchiveBusy``: another run of the log counts, and this one never
        will; ``ArchiveUncertain``."""

    def overtaken(self, log_id: str) -> ArchiveBusy | None:
        """Whether another run of the log counts since this one began, so that the files of this one may be gone."""

    def give_up(self, run: str) -> None:
        """Deletes the files of a run that failed, unless it counts or may come to count."""

    def publish(self, manifest: Manifest) -> None:
        """Gives the files of a committed run their places, those that do not have theirs yet."""

    def finish(self, manifest: Manifest, outcome: Outcome) -> None:
        """Writes down what became of a run at the broker."""

    def end(self) -> None:
        """Nothing is left of the run that was begun but what counts."""


def archive_at(storage: Storage) -> Archive:
    """The archive that is there, or will be."""
    return DirectoryArchive(storage) if isinstance(storage, DirectoryFiles) else ObjectArchive(storage)
