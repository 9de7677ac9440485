"""A bit flips anywhere in any file of a directory that lies still: it is found, mended from the log or does no harm.

A start is refused, and nothing was changed; or everything is as it was; or the message whose record was hit is set
aside. No message is ever delivered with other bytes than were sent.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL
from tests.support.run.profile import amount, limit_s
from tests.support.stores.damage import Answers, Original, answers, flip_bit, make_directory
from timerlog.commitlog.segments import ADOPTING_FORMAT
from timerlog.errors import DamagedLog, StoreError, UnsupportedFormat
from timerlog.files.small_files import seal
from timerlog.recovery import checkpoint
from timerlog.store import Store

FLIPS = amount("flips")
KINDS = (
    "LOCK",
    "adopting",
    "arrivals",
    "checkpoint",
    "commitlog",
    "deliveries",
    "keys.index",
    "messages.table",
    "reserve",
    "spare",
    "timer.log",
    "timer.wheel",
)


@pytest.fixture(scope="module")
def original() -> Iterator[Original]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    make_directory(folder / "data")
    (folder / "data" / "spare").write_bytes(bytes(100))  # a broker on a full disk has one
    (folder / "data" / "adopting").write_bytes(seal(ADOPTING_FORMAT, [6 * MIB]))
    yield Original(folder / "data")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole(original: Original) -> Answers:
    found = answers(original.directory)
    original.put_back()
    assert len(found.bodies) > 30
    assert not found.damaged
    return found


def places(original: Original, names: list[str], rng: random.Random) -> Iterator[tuple[str, int]]:
    """Files and bits in them; most where something is written, some anywhere."""
    names = [name for name in names if original.files[name][1]]
    for number in range(FLIPS if names else 0):
        name = rng.choice(names)
        content, size_bytes = original.files[name]
        used = min(size_bytes, len(content) + 64)
        yield name, rng.randrange(8 * (used if number % 4 else size_bytes))


def fate(original: Original, whole: Answers, name: str) -> str:
    """What became of a directory with a damaged file; anything but harm."""
    path = original.directory / name
    damaged = path.read_bytes()
    try:
        found = answers(original.directory)
    except (DamagedLog, UnsupportedFormat):
        assert original.is_untouched("LOCK", name), "a start that is refused changes nothing"
        assert path.read_bytes() == damaged or name == "LOCK"
        return "refused"
    except StoreError as error:
        pytest.fail(f"{error!r} says nothing of damage")
    if found == whole:
        return "as it was"
    assert found.damaged, "something else came out, and nobody noticed"
    assert not found.damaged & found.bodies.keys()
    assert found.bodies.items() <= whole.bodies.items(), "a message came with other bytes"
    assert whole.bodies.keys() - found.bodies.keys() <= found.damaged, "a message is lost, and nobody says so"
    return "set aside"


@pytest.mark.promise("when-is-a-message-safe")
@pytest.mark.timeout(limit_s(300))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["clean", "power loss"])
def test_no_flipped_bit_is_believed(original: Original, whole: Answers, kind: str, stop: str) -> None:
    names = original.kinds().get(kind, [])
    assert names, f"there is no {kind}"
    fates: Counter[str] = Counter()
    other_boot = mock.patch.object(checkpoint, "is_trustworthy", return_value=False)
    for name, bit in places(original, names, random.Random(f"{kind} {stop}")):
        flip_bit(original.directory / name, bit)
        try:
            with other_boot if stop == "power loss" else nullcontext():
                fates[fate(original, whole, name)] += 1
        finally:
            original.put_back()
    print(f"{kind}, {stop}: {dict(fates)}")
    assert sum(fates.values()) == FLIPS or not any(original.files[name][1] for name in names)
    allowed = {"as it was"} if kind != "commitlog" else {"as it was", "set aside", "refused"}
    if stop == "power loss":  # a header may say by now that a newer version was here
        allowed = allowed | {"refused"}
    assert set(fates) <= allowed, "what is derived follows from the log"


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_tells_when_it_did_not_believe_a_table(original: Original, kind: str) -> None:
    """The places above reach what a clean checkpoint watches over."""
    for name in original.kinds()[kind]:
        content, _ = original.files[name]
        flip_bit(original.directory / name, 8 * (len(content) - 1) if content else 0)
        try:
            store = Store.open(original.directory, SMALL, NOW_MS)
        except DamagedLog:
            original.put_back()
            continue
        watched = kind in ("arrivals", "deliveries", "keys.index", "messages.table", "checkpoint")
        assert store.recovery.from_checkpoint is not watched
        store.close(clean=False)
        original.put_back()
