"""An archive in a directory: plain Parquet tools can read it, and there is a folder of our own in it.

    archive/topic=orders/date=2031-05-01/20310601T020000Z-5c3e9a71-00000-7-0.zstd.parquet
    archive/_tickwheel/lock                                    who holds it may write
    archive/_tickwheel/runs/20310601T020000Z-5c3e9a71.json     a manifest: what a run has archived
    archive/_tickwheel/runs/20310601T020000Z-5c3e9a71.done     what became of it at the broker
    archive/_tickwheel/staging/20310601T020000Z-5c3e9a71/…     files of a run that is not committed

A run writes its files below ``staging``, and they are checked there. Its manifest makes them count; only then do they
get their places beside the others, so that a reader of the directory sees only files that count. Everything
behind the manifest can be done again by the next run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
from tickwheel.spark.errors import ArchiveBusy, ArchiveDamaged, ArchiveError
from tickwheel.spark.storage import DirectoryFiles
from timerlog.files.disk import sync_directory

_STAGING: Final = f"{OURS}/staging"


class DirectoryArchive:
    """See `Archive`."""

    def __init__(self, storage: DirectoryFiles) -> None:
        self.storage = storage
        self._root = storage.root
        self._runs = storage.root / RUNS
        #: Names of manifests: one that was copied from an object store is not called as its run.
        self._stems: dict[str, str] = {}

    def _staging(self, run: str) -> Path:
        """Where a run that is not committed has its files."""
        return self._root / _STAGING / run

    # -- reading --

    def check(self) -> None:
        if not self._runs.is_dir():
            what = f"has no {OURS}/ in it" if self._root.is_dir() else "does not exist"
            raise ArchiveError(f"{self._root} is not an archive: it {what}.")

    def manifests(self) -> list[Manifest]:
        found = []
        for path in self._runs.glob(f"[!.]*{MANIFEST}") if self._runs.is_dir() else []:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise ArchiveDamaged(f"{path} cannot be read: {error}.") from None
            manifest = parse(content, Manifest, str(path))
            self._stems[manifest.run] = path.stem
            found.append(manifest)
        return sorted(found, key=lambda manifest: manifest.run)

    def _outcome_name(self, manifest: Manifest) -> str:
        return f"{RUNS}/{self._stems.get(manifest.run, manifest.run)}{OUTCOME}"

    def outcome(self, manifest: Manifest) -> Outcome | None:
        name = self._outcome_name(manifest)
        content = self.storage.read(name)
        return None if content is None else parse(content, Outcome, self.storage.shown_name(name))

    def name(self, manifest: Manifest, entry: FileEntry) -> str:
        for name in (entry.name, f"{_STAGING}/{manifest.run}/{entry.name}"):
            if (self._root / name).is_file():
                return name
        raise ArchiveDamaged(f"{self._root / entry.name} is missing.")

    # -- writing --

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See `Archive`. Makes the directory where there is none. Raises ``ArchiveBusy``, ``OSError``."""
        for folder in (self._root, self._root / OURS, self._runs, self._root / _STAGING):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync_directory(folder.parent)
        with open(self._root / OURS / "lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(f"Another process writes to {self._root}.") from None
            yield

    def remove_orphans(self) -> int:
        """See `Archive`. Also what is not needed behind a manifest."""
        done = {path.stem for path in self._runs.glob(f"*{OUTCOME}")}
        needed = {manifest.run for manifest in self.manifests() if self._stems[manifest.run] not in done}
        orphans = [path for path in self._staging("").glob("*") if path.name not in needed]
        for path in orphans:
            shutil.rmtree(path)
        for path in self._runs.glob(".*"):
            path.unlink()
        return len(orphans)

    def begin(self, run: str, log_id: str) -> str:
        return f"{_STAGING}/{run}"

    def begun(self) -> list[str]:
        """See `Archive`. The lock keeps others off."""
        return []

    def commit(self, manifest: Manifest) -> None:
        """See `Archive`. The files are on the disk, below ``staging``."""
        _sync_tree(self._staging(manifest.run))
        self.storage.write(f"{RUNS}/{manifest.run}{MANIFEST}", msgspec.json.encode(manifest))

    def overtaken(self, log_id: str) -> ArchiveBusy | None:
        """See `Archive`. The lock keeps others off."""
        return None

    def give_up(self, run: str) -> None:
        if not (self._runs / f"{run}{MANIFEST}").exists():
            self._abandon(run)

    def publish(self, manifest: Manifest) -> None:
        staging = self._staging(manifest.run)
        folders = set()
        for entry in manifest.files:
            staged, path = staging / entry.name, self._root / entry.name
            if staged.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                staged.rename(path)
                folders.add(path.parent)
        for folder in folders:
            for one in (folder, folder.parent, self._root):
                sync_directory(one)
        self._abandon(manifest.run)

    def finish(self, manifest: Manifest, outcome: Outcome) -> None:
        self.storage.write(self._outcome_name(manifest), msgspec.json.encode(outcome))

    def end(self) -> None:
        """See `Archive`. Other runs had no chance."""

    def _abandon(self, run: str) -> None:
        shutil.rmtree(self._staging(run), ignore_errors=True)


def _sync_tree(root: Path) -> None:
    """Every directory from ``root`` down; files have to be on the disk already."""
    for folder, _, _ in os.walk(root):
        sync_directory(Path(folder))
