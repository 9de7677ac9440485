"""Data directories as they are found where the driver runs."""

from __future__ import annotations

from pathlib import Path

from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.errors import error_class
from timerlog.errors import StoreError
from timerlog.readers.describe import Offline, describe_directory


def describe(directory: str | Path, now_ms: int, *, committed: bool = True) -> Offline:
    """See ``describe_directory``. Raises ``SourceError``."""
    try:
        return describe_directory(Path(directory), now_ms, committed=committed)
    except StoreError as error:
        raise SourceError(f"{error}.", advice=error.advice or error_class(error.code).advice) from None


def describe_log(directory: str | Path, log_id: str, now_ms: int) -> Offline:
    """The same of a directory that has to hold the log of the broker that is asked. Raises ``SourceError``."""
    offline = describe(directory, now_ms)
    found = f"{offline.description.log_id:016x}"
    if found != log_id:
        raise SourceError(
            f"{directory} holds the log {found}, and the broker has {log_id}.",
            advice="Name the data directory of the broker that is asked, or the broker of this directory.",
        )
    return offline
