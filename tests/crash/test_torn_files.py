"""A power loss tears any other file than the log (see test_torn_write.py): cut, zeros or garbage from a byte on.

Each of them follows from the log, or is of no use to anybody: the state that comes back is that of the log.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.support.native.driver import MIB
from tests.support.run.profile import amount, limit_s
from tests.support.stores.damage import Answers, Original, answers, make_directory
from timerlog.commitlog.segments import ADOPTING_FORMAT
from timerlog.files.small_files import seal
from timerlog.recovery import checkpoint

KINDS = (
    "LOCK",
    "adopting",
    "arrivals",
    "checkpoint",
    "checkpoint.new",
    "deliveries",
    "keys.index",
    "messages.table",
    "reserve",
    "spare",
    "timer.log",
    "timer.wheel",
)
#: How many places of a file are tried; of small ones, in a long run, every byte.
PLACES = amount("torn_places")
FATES = ("cut", "zeros", "garbage")


@pytest.fixture(scope="module")
def original() -> Iterator[Original]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    directory = folder / "data"
    make_directory(directory)
    (directory / "spare").write_bytes(bytes(100))
    (directory / "checkpoint.new").write_bytes((directory / "checkpoint").read_bytes())
    (directory / "adopting").write_bytes(seal(ADOPTING_FORMAT, [6 * MIB]))
    yield Original(directory)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole(original: Original) -> Answers:
    found = answers(original.directory)
    original.put_back()
    return found


def tear(path: Path, at: int, fate: str) -> None:
    content = path.read_bytes()
    rest = content[at : at + 4_096]
    with path.open("r+b") as file:
        if fate == "cut":
            file.truncate(at)
            return
        file.seek(at)
        file.write(bytes(len(rest)) if fate == "zeros" else bytes(byte ^ 0xA5 for byte in rest))


@pytest.mark.promise("when-is-a-message-safe")
@pytest.mark.timeout(limit_s(300))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_torn_follows_from_the_log(original: Original, whole: Answers, kind: str) -> None:
    names = original.kinds()[kind]
    tried = 0
    for name in names:
        used = max(1, min(original.files[name][1], len(original.files[name][0]) + 8))
        for at in sorted({used * number // PLACES for number in range(PLACES)}):
            for fate in FATES:
                tear(original.directory / name, at, fate)
                try:
                    with mock.patch.object(checkpoint, "is_trustworthy", return_value=False):
                        assert answers(original.directory) == whole, f"{name}: {fate} from byte {at} on"
                finally:
                    original.put_back()
                tried += 1
    print(f"{kind}: torn at {tried} places")
    assert tried
