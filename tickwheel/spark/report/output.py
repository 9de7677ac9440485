"""Writes a report whole or not at all: into a directory beside the one that was asked for, which is then renamed.

A directory is only ever replaced when it is empty, or holds an earlier report and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tickwheel.spark.report.errors import OutputRefused, ReportError
from timerlog.files.disk import sync_directory

SUMMARY: Final = "summary.json"
PAGE: Final = "index.html"
TABLES: Final = "tables"
FORMAT: Final = "tickwheel-report"
#: Goes up when a field of the summary changes its meaning or goes away, not when one is added.
VERSION: Final = 1
_OURS: Final = frozenset({SUMMARY, PAGE, TABLES})


def check_output(out: Path) -> None:
    """Raises ``OutputRefused`` for a place that holds anything but an earlier report."""
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
        content = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def _holds_tables_only(tables: Path) -> bool:
    return not tables.is_dir() or all(one.suffix == ".parquet" and one.is_file() for one in tables.iterdir())


def write_report(out: Path, fill: Callable[[Path], None]) -> None:
    """Lets ``fill`` write into a new directory and puts it into the place of ``out``. Whatever happens meanwhile,
    ``out`` is the earlier report, or the new one, or, for a moment between two renames, not there. Raises
    ``OutputRefused``, ``ReportError``."""
    # Behind a symbolic link is the directory that is meant.
    out = out.resolve()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.new-", dir=out.parent))
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        fill(made)
        made.chmod(0o777 & ~_umask())
        _sync(made)
        # It was looked at before the work began, which may be long ago.
        check_output(out)
        _exchange(made, out)
    except OSError as error:
        raise _unwritable(out, error) from error
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


def _sync(folder: Path) -> None:
    """To the disk: else a power loss might leave empty files under good names."""
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


def _unwritable(out: Path, error: OSError) -> ReportError:
    return ReportError(
        f"The report cannot be written to {out}: {error.strerror or error}.",
        advice="Name a directory that can be written, on a disk with room.",
    )
