"""Files of a data directory with nonsense behind right checksums: a start refuses with a typed error, or serves."""

from __future__ import annotations

import random
import shutil
import struct
import traceback
from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.run.profile import amount
from tickwheel_native import crc32c
from timerlog.errors import StoreError
from timerlog.store import Store

ROUNDS = amount("damaged_files")
LATER_MS = NOW_MS + 100_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that did a little of everything and was killed."""
    directory = tmp_path_factory.mktemp("files") / "data"
    store = Store.open(directory, SMALL, NOW_MS)
    topic_id = store.topics.open("t", NOW_MS, create=True)
    group_id = store.groups.open(topic_id, "g", NOW_MS)
    keys = [b"k%d" % number for number in range(20)]
    store.produce.ingest(send(topic_id, [b"body"] * 20, keys=keys), NOW_MS)
    store.produce.ingest(send(topic_id, [b"later"] * 9, times_ms=[NOW_MS + 9_000] * 9), NOW_MS)
    pump(store, NOW_MS)
    store.housekeeping(NOW_MS + 60_000)
    frame = store.deliver.fetch(group_id, store.holders.acquire(group_id), 1, 12, 1 << 16, NOW_MS)
    assert frame
    ids, epochs = delivered(frame)
    store.deliver.ack(ack_payload(group_id, ids[:6], epochs[:6]), 1, NOW_MS)
    store.settle.nack(group_id, ids[6:9], epochs[6:9], 5, "no", NOW_MS)
    store.change.cancel([25], NOW_MS)
    store.change.reschedule([26, 27], NOW_MS + 20_000, NOW_MS)
    store.change.redeliver(ids[:2], None, None, NOW_MS, acked=True)
    transaction = store.transactions.begin(b"t" * 16, NOW_MS)
    transaction.cancel([28])
    transaction.commit()
    store.topics.create("other", {"max_attempts": 3}, 2, NOW_MS)
    store.change.put_document("schedules/x", b"content", NOW_MS)
    store.sync()
    store.close(clean=False)
    return directory


def records_of(log: bytearray) -> list[tuple[int, int]]:
    """(start, length) of every record of a segment."""
    found, at = [], 64
    while at + 16 <= len(log):
        (length,) = struct.unpack_from("<I", log, at + 4)
        if length < 16 or at + length > len(log):
            break
        found.append((at, length))
        at += (length + 7) & ~7
    return found


def tamper_with_a_record(path: Path, chance: random.Random) -> None:
    log = bytearray(path.read_bytes())
    records = records_of(log)
    assert len(records) > 12
    start, length = chance.choice(records)
    for _ in range(chance.randint(1, 3)):
        # Any byte but its length and checksum: the type, the numbers in its head, its content.
        place = start + chance.randrange(8, length)
        log[place] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    struct.pack_into("<I", log, start, crc32c(bytes(log[start + 4 : start + length])))
    path.write_bytes(log)


def tamper_with_the_checkpoint(path: Path, chance: random.Random) -> None:
    body = bytearray(path.read_bytes()[12:])
    for _ in range(chance.randint(1, 4)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    path.write_bytes(b"TWCHECK1" + struct.pack("<I", crc32c(bytes(body))) + body)


def use(directory: Path) -> None:
    """A failure is told as text: what the frames hold are arrays over memory that is not mapped any more."""
    try:
        _use(directory)
    except Exception:
        told = traceback.format_exc()
    else:
        return
    pytest.fail(told, pytrace=False)


def _use(directory: Path) -> None:
    """Starts, and does what a broker does; what is damaged must not be taken for a defect."""
    try:
        store = Store.open(directory, SMALL, LATER_MS)
    except StoreError:
        return
    try:
        pump(store, LATER_MS)
        store.look.stats(LATER_MS)
        store.look.topics()
        store.look.state_hash()
        for group_id in list(store.tables.groups):
            store.deliver.fetch(group_id, store.holders.acquire(group_id), 1, 50, 1 << 16, LATER_MS)
        store.change.cancel(list(range(1, 40)), LATER_MS)
        store.housekeeping(LATER_MS + 60_000)
    except StoreError:
        pass
    finally:
        store.close(clean=False)


def first_segment(directory: Path) -> Path:
    """The file that begins as segments do; the tables beside it are larger and mostly holes."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
    return next(path for path in files if path.read_bytes()[:8] == b"TWCOMLOG")


@pytest.mark.parametrize("seed", range(ROUNDS // 20))
def test_a_record_that_makes_no_sense(original: Path, tmp_path: Path, seed: int) -> None:
    for number in range(20):
        directory = tmp_path / f"data-{number}"
        shutil.copytree(original, directory)
        (directory / "checkpoint").unlink(missing_ok=True)
        tamper_with_a_record(first_segment(directory), random.Random(seed * 1_000 + number))
        use(directory)
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", range(ROUNDS // 20))
def test_a_checkpoint_that_makes_no_sense(original: Path, tmp_path: Path, seed: int) -> None:
    for number in range(20):
        directory = tmp_path / f"data-{number}"
        shutil.copytree(original, directory)
        assert (directory / "checkpoint").exists()
        tamper_with_the_checkpoint(directory / "checkpoint", random.Random(seed * 1_000 + number))
        use(directory)
        shutil.rmtree(directory)
