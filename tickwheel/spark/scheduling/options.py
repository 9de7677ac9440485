"""What is wanted of a job: by the driver, and by the tasks that it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from zoneinfo import ZoneInfo

from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.limits import is_valid_name
from tickwheel.spark.scheduling.renaming import check_renames, renamed
from tickwheel.spark.scheduling.result import BY_FLIGHT, IN_PLACE, Staged
from tickwheel.spark.storage import storage_at
from tickwheel.spark.writing.columns import check_columns
from tickwheel.spark.writing.zones import zone_of

RUN_BYTES: Final = 128 * 1024 * 1024
_LEAST_RUN_BYTES: Final = 64 * 1024

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """See ``schedule``. ``are_texts``: the columns come from a file that has only texts. ``tz``: the zone of times
    without one. ``rename``: names of columns, and what messages call them. ``staged``: how files come to the broker;
    None: it is tried. The files of token and CA are on each machine that has tasks; None: what is in the environment
    there."""

    url: str | None = None
    topic: str | None = None
    max_rejects: int = 0
    job: str | None = None
    rejects: str | None = None
    staging: str | None = None
    run_bytes: int = RUN_BYTES
    progress: Progress | None = None
    are_texts: bool = False
    tz: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    staged: Staged | None = None
    token_file: str | None = None
    ca_file: str | None = None

    def check(self) -> None:
        """Raises ``SourceError``, ``StorageError``."""
        if self.topic is not None and not is_valid_name(self.topic):
            raise SourceError(f"{self.topic!r} cannot be the name of a topic.")
        if self.max_rejects < 0:
            raise SourceError(f"max_rejects is {self.max_rejects}: use 0 or more.")
        if self.run_bytes < _LEAST_RUN_BYTES:
            raise SourceError(f"run_bytes is {self.run_bytes}: use at least {_LEAST_RUN_BYTES:,}.")
        if self.job is not None and not self.job.strip():
            raise SourceError("The job has an empty name.", advice="Leave it out, or name it.")
        if self.staged not in (None, BY_FLIGHT, IN_PLACE):
            raise SourceError(f"staged is {self.staged!r}: use 'flight', 'in place', or leave it out.")
        if self.staged == BY_FLIGHT and self.staging is not None:
            raise SourceError(
                "staging names a directory, and files are to go by Arrow Flight.",
                advice="Give one of them, or none.",
            )
        if self.tz is not None:
            zone_of(self.tz)
        check_renames(self.rename)
        if self.rejects is not None:
            storage_at(self.rejects).reach()

    @property
    def zone(self) -> ZoneInfo | None:
        """That of ``tz``."""
        return None if self.tz is None else zone_of(self.tz)

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """``columns``: names and types, before they are renamed. Raises ``SourceError``."""
        check_columns(
            renamed(columns, self.rename), self.topic, are_texts=self.are_texts, has_zone=self.tz is not None
        )
