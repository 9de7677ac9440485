"""Where an archive keeps what: a directory that plain Parquet tools can read, and a folder of our own in it.

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
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from tickwheel.spark.errors import ArchiveBusy, ArchiveDamaged, ArchiveError
from timerlog.files.disk import sync_directory

FORMAT: Final = 1
OURS: Final = "_tickwheel"
SUFFIX: Final = ".zstd.parquet"
_EPOCH: Final = date(1970, 1, 1)

S = TypeVar("S", bound=msgspec.Struct)


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a run. ``name``: relative to the archive. ``checksum``: of all its rows, ``ids_checksum``: of their
    ids, as 16 hexadecimal digits. Times in epoch ms; bounds are inclusive."""

    name: str
    topic: str
    rows: int
    bytes: int
    checksum: str
    ids_checksum: str
    first_deliver_ms: int
    last_deliver_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has archived: messages of one log that were done before ``done_before_ms``."""

    format: int
    run: str
    log_id: str
    created_ms: int
    done_before_ms: int
    states: list[str]
    files: list[FileEntry]

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.files)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker has said: how many messages it dropped, how many were gone, and first id and count of those that
    stay because some group is not done with them any more."""

    dropped: int
    gone: int
    kept: list[tuple[int, int]]


def escaped(name: str) -> str:
    """A topic as the name of a directory, in the way of Hive and Spark: what is not plain becomes %XX of its UTF-8."""
    return quote(name, safe="")


def partition(topic: str, day: int) -> str:
    """The directory for messages of a topic that were due on a UTC day, which is numbered from 1970 on."""
    return f"topic={escaped(topic)}/date={(_EPOCH + timedelta(days=day)).isoformat()}"


def new_run(now_ms: int, random_bytes: bytes) -> str:
    """A name for a run; names are in the order of time."""
    return f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%SZ}-{random_bytes.hex()}"


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive's directory."""

    root: Path

    @property
    def _runs(self) -> Path:
        return self.root / OURS / "runs"

    def staging(self, run: str) -> Path:
        """Where a run that is not committed has its files."""
        return self.root / OURS / "staging" / run

    # -- reading --

    def check(self) -> None:
        """Raises ``ArchiveError`` unless there is an archive."""
        if not self._runs.is_dir():
            what = f"has no {OURS}/ in it" if self.root.is_dir() else "does not exist"
            raise ArchiveError(f"{self.root} is not an archive: it {what}.")

    def manifests(self) -> list[Manifest]:
        """What counts, oldest first. Raises ``ArchiveDamaged``, ``ArchiveError``."""
        paths = sorted(self._runs.glob("*.json")) if self._runs.is_dir() else []
        found = []
        for path in paths:
            manifest = _load(path, Manifest)
            if manifest.format != FORMAT:
                raise ArchiveError(
                    f"{path} has the format {manifest.format}, and this version knows {FORMAT}.",
                    advice="Use the version that wrote it, or a newer one.",
                )
            found.append(manifest)
        return found

    def outcome(self, run: str) -> Outcome | None:
        """None: the broker may not have dropped this run's messages yet."""
        path = self._runs / f"{run}.done"
        return _load(path, Outcome) if path.exists() else None

    def path(self, manifest: Manifest, entry: FileEntry) -> Path:
        """Where a file of a committed run is. Raises ``ArchiveDamaged``."""
        for path in (self.root / entry.name, self.staging(manifest.run) / entry.name):
            if path.is_file():
                return path
        raise ArchiveDamaged(f"{self.root / entry.name} is missing.")

    # -- writing --

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the archive for writing; makes it where there is none. Raises ``ArchiveBusy``, ``OSError``."""
        for folder in (self.root, self.root / OURS, self._runs, self.root / OURS / "staging"):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync_directory(folder.parent)
        with open(self.root / OURS / "lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(f"Another process writes to {self.root}.") from None
            yield

    def remove_orphans(self) -> int:
        """Deletes what runs have left that did not reach their manifest, or that is not needed after it; how many
        runs."""
        needed = {path.stem for path in self._runs.glob("*.json")}
        needed -= {path.stem for path in self._runs.glob("*.done")}
        orphans = [path for path in self.staging("").glob("*") if path.name not in needed]
        for path in orphans:
            shutil.rmtree(path)
        for path in self._runs.glob(".*"):
            path.unlink()
        return len(orphans)

    def abandon(self, run: str) -> None:
        """Deletes the files of a run that is not committed."""
        shutil.rmtree(self.staging(run), ignore_errors=True)

    def commit(self, manifest: Manifest) -> None:
        """Makes the files of a run count; they are on the disk, below ``staging``."""
        sync_tree(self.staging(manifest.run))
        write_durably(self._runs / f"{manifest.run}.json", msgspec.json.encode(manifest))

    def publish(self, manifest: Manifest) -> None:
        """Gives the files of a committed run their places, those that do not have theirs yet."""
        staging = self.staging(manifest.run)
        folders = set()
        for entry in manifest.files:
            staged, path = staging / entry.name, self.root / entry.name
            if staged.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                staged.rename(path)
                folders.add(path.parent)
        for folder in folders:
            for one in (folder, folder.parent, self.root):
                sync_directory(one)
        self.abandon(manifest.run)

    def finish(self, run: str, outcome: Outcome) -> None:
        """Writes down what became of a run at the broker."""
        write_durably(self._runs / f"{run}.done", msgspec.json.encode(outcome))


def _load(path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}.") from None


def write_durably(path: Path, content: bytes) -> None:
    """All of it or nothing, also when the power fails."""
    aside = path.with_name(f".{path.name}")
    with open(aside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_directory(path.parent)


def sync_tree(root: Path) -> None:
    """Every directory from ``root`` down; files have to be on the disk already."""
    for folder, _, _ in os.walk(root):
        sync_directory(Path(folder))
