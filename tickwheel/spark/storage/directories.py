"""Files of a directory that driver and workers see under the same name. What is acknowledged is on the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tickwheel.spark.errors import BadPlace
from tickwheel.spark.storage.storage import Found, NewFile
from timerlog.files.disk import sync_directory


@dataclass(slots=True)
class _DirectoryFile:
    """See `NewFile`. Its directory need not be on the disk behind `close`."""

    path: Path
    file: BinaryIO

    def close(self) -> int:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return self.path.stat().st_size

    def discard(self) -> None:
        self.file.close()


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """See `Storage`."""

    root: Path

    @property
    def shown(self) -> str:
        return str(self.root)

    def shown_name(self, name: str) -> str:
        return str(self.root / name)

    def reach(self) -> None:
        """It may be made later. Raises ``BadPlace`` for what is no directory."""
        if self.root.exists() and not self.root.is_dir():
            raise BadPlace(
                f"{self.root} is not a directory.", advice="Name a directory, or a place that can be one."
            )

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        aside = self._aside(name, content)
        aside.rename(self.root / name)
        sync_directory(aside.parent)

    def create(self, name: str, content: bytes) -> bool:
        aside = self._aside(name, content)
        try:
            os.link(aside, self.root / name)
        except FileExistsError:
            return self.read(name) == content
        finally:
            aside.unlink()
        sync_directory(aside.parent)
        return True

    def _aside(self, name: str, content: bytes) -> Path:
        """A synced file beside its place, under a name that readers of Parquet pass over."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        number, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                os.fsync(file.fileno())
        except BaseException:
            Path(aside).unlink()
            raise
        return Path(aside)

    def found(self, folder: str) -> Iterator[Found]:
        for path in (self.root / folder).rglob("*"):
            if path.is_file():
                known = path.stat()
                yield Found(
                    path.relative_to(self.root).as_posix(), known.st_size, known.st_mtime_ns // 1_000_000
                )

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def new_file(self, name: str) -> NewFile:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return _DirectoryFile(path, path.open("wb"))

    def open(self, name: str) -> Any:
        return pa.OSFile(str(self.root / name), "rb")

    @contextmanager
    def filled(self, last: str) -> Iterator[Path]:
        """See `Storage`. The directory is the earlier one, or the new one, or, for a moment between two renames, not
        there; ``last`` does not matter."""
        # Behind a symbolic link is the directory that is meant.
        out = self.root.resolve()
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.new-", dir=out.parent))
        try:
            yield made
            made.chmod(0o777 & ~_umask())
            sync_files(made)
            _exchange(made, out)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _exchange(made: Path, out: Path) -> None:
    if not out.exists() or not any(out.iterdir()):
        made.rename(out)  # an empty directory gives way
        sync_directory(out.parent)
        return
    earlier = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
    out.rename(earlier)
    try:
        made.rename(out)
    except OSError:
        earlier.rename(out)
        raise
    sync_directory(out.parent)
    shutil.rmtree(earlier)


def sync_files(folder: Path) -> None:
    """To the disk, with all that is in it: else a power loss might leave empty files under good names."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_directory(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_directory(folder)


def _umask() -> int:
    """The mask of new files, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
