"""Files in HDFS, by pyarrow: a file that is written aside gets its name by a rename that does not overwrite."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from tickwheel.spark.errors import BadPlace, StorageError, StorageMissing, StorageUnreachable
from tickwheel.spark.storage.places import Place
from tickwheel.spark.storage.storage import Found, NewFile

_OPTIONS: Final = frozenset({"user", "kerb_ticket", "replication", "buffer_size", "default_block_size"})
_NUMBERS: Final = frozenset({"replication", "buffer_size", "default_block_size"})


def hadoop_files(place: Place) -> RenamedFiles:
    """Raises ``BadPlace``, ``StorageMissing``."""
    unknown = sorted(
        {name for name, _ in place.options if name not in _OPTIONS and not name.startswith("dfs.")}
    )
    if unknown:
        raise BadPlace(
            f"HDFS has no option {unknown[0]} here.",
            advice=f"Use {', '.join(sorted(_OPTIONS))} or names that begin with dfs.",
        )
    for name, value in place.options:
        if name in _NUMBERS and not value.isdecimal():
            raise BadPlace(f"The option {name} of HDFS is a whole number.", advice=f"Write --fs {name}=3.")
    return RenamedFiles(place, _connected)


@lru_cache(maxsize=4)
def _connected(place: Place) -> fs.FileSystem:
    """Raises ``StorageMissing``, ``StorageUnreachable``."""
    plain = {
        name: int(value) if name in _NUMBERS else value for name, value in place.options if name in _OPTIONS
    }
    extra = {name: value for name, value in place.options if name not in _OPTIONS}
    parts = urlsplit(f"hdfs://{place.host}")
    try:
        return fs.HadoopFileSystem(
            parts.hostname or "default", parts.port or 0, extra_conf=extra or None, **plain
        )
    except (OSError, pa.ArrowException) as error:
        said = place.hidden(str(error).partition("\n")[0])
        if "libhdfs" in said or "libjvm" in said or "Unable to load" in said:
            raise StorageMissing(
                f"HDFS needs Hadoop's client on each machine: {said}",
                advice="Install Hadoop; set HADOOP_HOME, ARROW_LIBHDFS_DIR and CLASSPATH=$(hadoop classpath --glob).",
            ) from None
        raise StorageUnreachable(f"{place.shown} cannot be reached: {said}") from None


@dataclass(slots=True)
class _RenamedFile:
    """See `NewFile`. It has its name at once: names of large files are never used twice."""

    file: Any

    def close(self) -> int:
        size: int = self.file.tell()
        self.file.close()
        return size

    def discard(self) -> None:
        self.file.close()


@dataclass(frozen=True, slots=True)
class RenamedFiles:
    """See `Storage`. ``connect``: gives the file system."""

    place: Place
    connect: Callable[[Place], Any]

    @property
    def shown(self) -> str:
        return self.place.shown

    def shown_name(self, name: str) -> str:
        return f"{self.place.shown}/{name}"

    def reach(self) -> None:
        with self._explained("cannot be used"):
            known = self.connect(self.place).get_file_info(self.place.path or "/")
            if known.type == fs.FileType.File:
                raise BadPlace(f"{self.shown} is not a directory.", advice="Name a directory.")

    def read(self, name: str) -> bytes | None:
        try:
            with (
                self._explained(f"{name} cannot be read"),
                self._system().open_input_stream(self._path(name)) as file,
            ):
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with self._explained(f"{name} cannot be written"):
            system, aside = self._system(), self._aside(name, content)
            if system.get_file_info(self._path(name)).type == fs.FileType.File:
                system.delete_file(self._path(name))
            system.move(aside, self._path(name))

    def create(self, name: str, content: bytes) -> bool:
        """See `Storage`. A rename that fails may have been done: what has the name then says so."""
        with self._explained(f"{name} cannot be made"):
            system = self._system()
            aside = self._aside(name, content)
            try:
                system.move(aside, self._path(name))
            except OSError:
                found = self.read(name)
                if found is None:
                    raise
                if system.get_file_info(aside).type == fs.FileType.File:
                    system.delete_file(aside)
                return found == content
            return True

    def _aside(self, name: str, content: bytes) -> str:
        """A closed file beside its place, under a name that readers of Parquet pass over."""
        system = self._system()
        folder, _, last = self._path(name).rpartition("/")
        system.create_dir(folder, recursive=True)
        aside = f"{folder}/.{last}.{uuid.uuid4().hex}"
        with system.open_output_stream(aside) as file:
            file.write(content)
        return aside

    def found(self, folder: str) -> Iterator[Found]:
        chosen = fs.FileSelector(self._path(folder), recursive=True, allow_not_found=True)
        with self._explained(f"{folder} cannot be listed"):
            listed = self._system().get_file_info(chosen)
        root = self._path("").rstrip("/") + "/"
        for one in listed:
            if one.type == fs.FileType.File:
                yield Found(one.path.removeprefix(root), one.size, (one.mtime_ns or 0) // 1_000_000)

    def remove(self, names: Sequence[str]) -> None:
        system = self._system()
        for name in names:
            with self._explained(f"{name} cannot be deleted"):
                try:
                    system.delete_file(self._path(name))
                except FileNotFoundError:
                    continue

    def new_file(self, name: str) -> NewFile:
        with self._explained(f"{name} cannot be written"):
            system, path = self._system(), self._path(name)
            system.create_dir(path.rpartition("/")[0], recursive=True)
            return _RenamedFile(system.open_output_stream(path))

    def open(self, name: str) -> Any:
        with self._explained(f"{name} cannot be read"):
            return self._system().open_input_file(self._path(name))

    @contextmanager
    def filled(self, last: str) -> Iterator[Path]:
        """See `Storage`. Each file is replaced by itself; between the first and the last, new ones are beside earlier
        ones."""
        earlier = {one.name for one in self.found("")}
        with TemporaryDirectory(prefix="tickwheel-") as folder:
            made = Path(folder)
            yield made
            names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
            for name in [*(one for one in names if one != last), last]:
                self.write(name, (made / name).read_bytes())
        self.remove(sorted(earlier - set(names)))

    def _system(self) -> Any:
        return self.connect(self.place)

    def _path(self, name: str) -> str:
        return f"{self.place.path.rstrip('/')}/{name}" if name else self.place.path or "/"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            said = self.place.hidden(str(error).partition("\n")[0])
            raise StorageError(f"{self.shown}: {what}: {said}") from None
