"""What a place for files can do, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """A file below a folder. ``name``: relative to the place. ``modified_ms``: by the clock of the storage."""

    name: str
    bytes: int
    modified_ms: int


class NewFile(Protocol):
    """A file that is being written. Nothing of it counts before `close`."""

    @property
    def file(self) -> BinaryIO | Any:
        """Where its content goes, from the beginning to the end."""

    def close(self) -> int:
        """Puts it where it belongs, whole and durably; how many bytes it has."""

    def discard(self) -> None:
        """Forgets it, as far as it can be; harmless behind `close`."""


class Storage(Protocol):
    """Files by names, which are relative and have slashes. It goes to other processes as it is. All functions raise
    ``StorageError``, or ``OSError`` where the files are those of a directory."""

    @property
    def shown(self) -> str:
        """The place, in words for people; it has no secrets."""

    def shown_name(self, name: str) -> str:
        """One of its files, in words for people."""

    def reach(self) -> None:
        """Asks for the place, with little patience. Raises ``BadPlace``, ``StorageDenied``, ``StorageUnreachable``."""

    def read(self, name: str) -> bytes | None:
        """All of a small file; None: there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file, whole or not at all; it is durable then."""

    def create(self, name: str, content: bytes) -> bool:
        """Makes a file, if there is none of this name; whether its content is this one. Of several who do so at once
        with contents of their own, one gets True. ``StorageError``, but ``StorageDenied`` and ``BadPlace``: it is not
        known, and the file may come to be there later."""

    def found(self, folder: str) -> Iterator[Found]:
        """All files below a folder, in no order. A file that was made just now may not be among them yet."""

    def remove(self, names: Sequence[str]) -> None:
        """Deletes files; harmless where they are not there."""

    def new_file(self, name: str) -> NewFile:
        """Begins a large file."""

    def open(self, name: str) -> AbstractContextManager[Any]:
        """A file that pyarrow reads parts of. Raises ``FileNotFoundError``."""

    def filled(self, last: str) -> AbstractContextManager[Path]:
        """Gives a new local directory; what is in it behind the ``with`` takes the place of all files of this place,
        the file ``last`` behind all others. In a directory that is done at once."""
