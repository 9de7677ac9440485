"""Where a run of the tests writes: one folder, in memory where it may be and there is room, which goes with the run.

It is the folder for temporary files of everything that the run starts. Where a test failed it stays until the next run,
as does that of a run which was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 << 30
"""What a run may need at a time. Where memory has less, it goes to the disk."""
SHORT = Path("/tmp")
MOST_PATH_BYTES = 12
"""Of the folder for temporary files: a longer name leaves too little of the 108 bytes that the path of a socket has."""
_PREFIX = "tickwheel-tests-"
_LOCK = "lock"


class RunFolder:
    """Of the process that starts the workers, which have it for their temporary files, too."""

    def __init__(self, *, may_be_memory: bool) -> None:
        place = MEMORY if may_be_memory and _has_room(MEMORY) else _on_disk()
        for other in place.glob(f"{_PREFIX}{os.getuid()}-*"):
            _remove_unless_running(other)
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}{os.getuid()}-", dir=place))
        made.chmod(0o711)  # database servers run as other users
        self._lock = (made / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(place / made.name[1:])  # only now do other runs see it
        self._before = os.environ.get("TMPDIR")
        self._use(str(self.path))

    def end(self, *, keep: bool) -> None:
        """Removes it, unless a test failed."""
        self._use(self._before)
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def _use(self, folder: str | None) -> None:
        os.environ.pop("TMPDIR", None)
        if folder is not None:
            os.environ["TMPDIR"] = folder
        tempfile.tempdir = None  # it is asked for again


def _on_disk() -> Path:
    """The folder for temporary files, unless its name is long and another folder will do."""
    place = Path(tempfile.gettempdir())
    is_long = len(os.fsencode(place)) > MOST_PATH_BYTES
    return SHORT if is_long and os.access(SHORT, os.W_OK | os.X_OK) else place


def _has_room(place: Path) -> bool:
    """Whether a run may write there, load libraries from there, and leave others enough."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    memory_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free_bytes = found.f_bavail * found.f_frsize
    may = os.access(place, os.W_OK) and not found.f_flag & os.ST_NOEXEC
    return may and min(free_bytes, memory_bytes) >= ROOM_BYTES


def _remove_unless_running(folder: Path) -> None:
    with suppress(OSError), (folder / _LOCK).open("r") as lock:  # else it is being made, or gone
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
