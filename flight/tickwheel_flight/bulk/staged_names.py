"""Names in ``staging``: what a put may be called, and what stands beside it. A name is nothing but digits, hyphens and
an ending, so that it cannot lead elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tickwheel.arrow.jobs import MANIFEST_SUFFIX, STAGING
from tickwheel.errors import TickwheelError

_JOB: Final = re.compile(r"[0-9a-f]{32}")
_FILE: Final = re.compile(
    r"([0-9a-f]{32})(?:-[0-9]{1,19}-[0-9]{1,9}-[0-9]{1,9}\.log|" + re.escape(MANIFEST_SUFFIX) + ")"
)
_SHOWN_CHARS: Final = 80
OPEN_SUFFIX: Final = "-open"
"""Of the file that is there for as long as a run may put files."""
PART_SUFFIX: Final = ".part"
"""Of a file that is still coming."""


class BadPut(TickwheelError):
    """What was put is not a whole file of a run."""

    code = "bad_put"
    advice = "Put a file of a run, with its length and checksum at the end."


class Name(NamedTuple):
    """Of one put."""

    job: str
    run: str
    file: str

    @property
    def is_manifest(self) -> bool:
        return self.file.endswith(MANIFEST_SUFFIX)


def parse_path(path: Sequence[bytes | str]) -> Name:
    """Raises `BadPut`."""
    parts = [part.decode("ascii", "replace") if isinstance(part, bytes) else part for part in path]
    if len(parts) != 3 or parts[0] != STAGING or not _JOB.fullmatch(parts[1]):
        raise BadPut(f"{_shown(parts)} is no place of a job.", advice="Put to the path staging, JOB, FILE.")
    found = _FILE.fullmatch(parts[2])
    if found is None:
        raise BadPut(
            f"{_shown(parts)} is no name of a run's file.",
            advice=f"Call it RUN-ATTEMPT-NUMBER-NUMBER.log or RUN{MANIFEST_SUFFIX}.",
        )
    return Name(parts[1], found[1], parts[2])


def is_of_run(file: str, run: str) -> bool:
    """Whether a file is named after a run."""
    return file.startswith(f"{run}-")


def _shown(parts: Sequence[str]) -> str:
    return repr("/".join(parts)[:_SHOWN_CHARS])
