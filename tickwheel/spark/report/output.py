"""Writes a report to where it was asked for: a directory, whole or not at all, or an object store, its summary last.

A place is only ever replaced when it is empty, or holds an earlier report and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tickwheel.spark.report.errors import OutputRefused, ReportError
from tickwheel.spark.storage import DirectoryFiles, Storage, is_directory, storage_at

SUMMARY: Final = "summary.json"
PAGE: Final = "index.html"
TABLES: Final = "tables"
FORMAT: Final = "tickwheel-report"
#: Goes up when a field of the summary changes its meaning or goes away, not when one is added.
VERSION: Final = 1
_OURS: Final = frozenset({SUMMARY, PAGE, TABLES})


def output_at(out: str | Path, compare: str | Path | None, fs: Mapping[str, str]) -> Storage:
    """Where a report goes. ``fs``: options for ``out``, or for the place of the report that it is compared with. Raises
    ``BadPlace``, ``StorageMissing``."""
    is_for_other = is_directory(out) and compare is not None and not is_directory(compare)
    return storage_at(out, {} if is_for_other else fs)


def check_output(out: Storage) -> None:
    """Raises ``OutputRefused`` for a place that holds anything but an earlier report; ``StorageError``."""
    if isinstance(out, DirectoryFiles):
        _check_directory(out.root)
        return
    out.reach()
    names = {one.name for one in out.found("")}
    if not names:
        return
    if not _is_summary(out.read(SUMMARY) or b""):
        raise OutputRefused(f"{out.shown} is not empty, and what is in it is not a report.")
    if any(name not in (SUMMARY, PAGE) and not _is_table(name) for name in names):
        raise OutputRefused(f"{out.shown} holds a report and other files, which would be lost.")


def _is_table(name: str) -> bool:
    folder, slash, last = name.partition("/")
    return folder == TABLES and bool(slash) and "/" not in last and last.endswith(".parquet")


def _check_directory(out: Path) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise OutputRefused(f"{out} is not a directory.")
    names = {entry.name for entry in out.iterdir()}
    if not names:
        return
    if not _is_report(out / SUMMARY):
        raise OutputRefused(f"{out} is not empty, and what is in it is not a report.")
    if names - _OURS or not _holds_tables_only(out / TABLES):
        raise OutputRefused(f"{out} holds a report and other files, which would be lost.")


def _is_report(summary: Path) -> bool:
    try:
        return _is_summary(summary.read_bytes())
    except OSError:
        return False


def _is_summary(text: bytes) -> bool:
    try:
        content = json.loads(text)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def _holds_tables_only(tables: Path) -> bool:
    return not tables.is_dir() or all(one.suffix == ".parquet" and one.is_file() for one in tables.iterdir())


def write_report(out: Storage, fill: Callable[[Path], None]) -> None:
    """Lets ``fill`` write into a new directory and puts it into the place of ``out``. Whatever happens meanwhile, a
    directory is the earlier report, or the new one, or, for a moment between two renames, not there; in an object store
    each file is, and the summary is the last. Raises ``OutputRefused``, ``ReportError``, ``StorageError``."""
    try:
        with out.filled(SUMMARY) as made:
            fill(made)
            # It was looked at before the work began, which may be long ago.
            check_output(out)
    except OSError as error:
        raise ReportError(
            f"The report cannot be written to {out.shown}: {error.strerror or error}.",
            advice="Name a directory that can be written, on a disk with room.",
        ) from error
