"""An earlier report, as its ``summary.json`` tells of it, to compare a new one with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.spark.report.errors import EarlierRefused
from tickwheel.spark.report.output import FORMAT, SUMMARY, VERSION
from tickwheel.spark.storage import DirectoryFiles, file_at, is_directory, storage_at

Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]
"""Epoch milliseconds."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=-MAX_TIME_MS, le=MAX_TIME_MS)]


class Figures(msgspec.Struct, frozen=True):
    """Of lateness or ack latency: those that are compared."""

    count: Count
    early: Count
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    p99_9_ms: Milliseconds
    max_ms: Milliseconds


class TopicFigures(msgspec.Struct, frozen=True):
    """A row of ``latency_by_topic``."""

    measure: str
    topic: str
    count: Count
    p99_ms: Milliseconds


class Reason(msgspec.Struct, frozen=True):
    """A row of ``dead_letters`` or ``nacks``: what was said; None: nothing was."""

    reason: str | None


class Table(msgspec.Struct, frozen=True):
    """Its first rows, and how many there are."""

    rows: Count
    first_rows: list[dict[str, Any]]


class Earlier(msgspec.Struct, frozen=True):
    """What is compared. ``tables`` by name; an earlier program may have had fewer."""

    made_ms: Moment
    directories: list[str]
    since_ms: Moment | None
    until_ms: Moment | None
    totals: dict[str, Count]
    lateness: Figures | None
    ack_latency: Figures | None
    tables: dict[str, Table]
    nacks: Count | None = None
    dead_letters: Count | None = None

    def topics(self) -> dict[str, TopicFigures]:
        """Lateness by topic, of the topics with most deliveries."""
        table = self.tables.get("latency_by_topic")
        rows = [] if table is None else msgspec.convert(table.first_rows, list[TopicFigures])
        return {row.topic: row for row in rows if row.measure == "lateness"}

    def reasons(self, name: str) -> set[str | None] | None:
        """All that were said, of ``dead_letters`` or ``nacks``. None: it does not tell of all."""
        table = self.tables.get(name)
        if table is None or table.rows > len(table.first_rows):
            return None
        return {row.reason for row in msgspec.convert(table.first_rows, list[Reason])}


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


def read_earlier(where: str | Path, fs: Mapping[str, str]) -> Earlier:
    """The report at a place, or in a file. Raises ``EarlierRefused``, ``StorageError``."""
    file, content = _summary(where, fs)
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError):
        head = _Head()
    if head.format != FORMAT:
        raise EarlierRefused(f"{file} is not the summary of a report.")
    if head.version != VERSION:
        raise EarlierRefused(
            f"{file} is of version {head.version}, and only version {VERSION} can be compared.",
            advice="Make that report anew with this version of Tickwheel, from the same data directory.",
        )
    try:
        found = msgspec.json.decode(content, type=Earlier)
        # What is looked at later is looked at now, so that nothing is found to be wrong when the work is done.
        found.topics()
        for name in ("dead_letters", "nacks"):
            found.reasons(name)
    except msgspec.ValidationError as error:
        raise EarlierRefused(f"{file} is damaged: {error}.") from None
    return found


def _summary(where: str | Path, fs: Mapping[str, str]) -> tuple[str, bytes]:
    """The name of the summary, in words for people, and what is in it."""
    fs = {} if is_directory(where) else fs
    storage = storage_at(where, fs)
    if isinstance(storage, DirectoryFiles):
        file = storage.root / SUMMARY if storage.root.is_dir() else storage.root
        try:
            return str(file), file.read_bytes()
        except OSError as error:
            raise EarlierRefused(f"{file} cannot be read: {error.strerror or error}.") from error
    storage.reach()
    name = SUMMARY
    if storage.shown.endswith(f"/{SUMMARY}"):
        storage, name = file_at(where, fs)
    content = storage.read(name)
    if content is None:
        raise EarlierRefused(f"{storage.shown_name(name)} is not there.")
    return storage.shown_name(name), content
