"""A power loss in the middle of a write: the log is cut at every byte of the last batch, and recovery is compared with
what had been acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.native.frames import send
from tests.support.run.profile import some_of
from timerlog.errors import DamagedLog
from timerlog.store import Store, StoreSettings
from timerlog.tables.tables import remove_derived_files

NOW_MS = 1_900_000_000_000
MIB = 1024 * 1024
SETTINGS = StoreSettings(segment_bytes=8 * MIB, max_frame_bytes=64 * 1024, max_body_bytes=16 * 1024)
FIRST, LAST = 20, 6
FATES = ("zeros", "garbage", "a lost block")


@dataclass
class Recorded:
    """A directory whose last batch was written but never synced."""

    directory: Path
    segment: Path
    content: bytes
    durable_end: int  # everything before it was synced and acknowledged
    message_ends: list[int]  # where each message's record ends, without padding
    end: int


def directory_as_after_power_loss(recorded: Recorded, content: bytes) -> None:
    """Only the log survives: pages of the derived files may hold anything, so they are gone."""
    remove_derived_files(recorded.directory)
    with open(recorded.segment, "r+b") as file:
        file.truncate(len(content))
        file.write(content)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    directory = tmp_path / "data"
    store = Store.open(directory, SETTINGS, NOW_MS)
    topic = store.topics.open("orders", NOW_MS)
    ends = []
    for number in range(FIRST + LAST):
        if number == FIRST:
            store.sync()
            durable_end = store.log.durable_position
        store.produce.ingest(send(topic, [b"body %d" % number], keys=[b"key %d" % number]), NOW_MS)
        row = store.tables.rows[number + 1]
        ends.append(int(row["position"]) + int(row["record_bytes"]))
    end = store.log.flush()
    segment = next((directory / "commitlog").glob("*.log"))
    store.close(clean=False)
    # The allocated rest is zeros; a little of it is enough, and makes a thousand recoveries quick.
    content = segment.read_bytes()[: end + 256]
    yield Recorded(directory, segment, content, durable_end, ends, end)
    shutil.rmtree(directory)


def torn(content: bytes, cut: int, fate: str) -> bytes:
    rest = len(content) - cut
    if fate == "zeros":
        return content[:cut] + bytes(rest)
    if fate == "garbage":
        return content[:cut] + bytes(byte ^ 0xFF for byte in content[cut:])
    # A block in the middle did not reach the disk, later ones did.
    return content[:cut] + bytes(min(64, rest)) + content[cut + 64 :]


@pytest.mark.promise("R45", "when-is-a-message-safe")
@pytest.mark.parametrize("fate", FATES)
def test_cut_at_every_byte_of_the_last_batch(recorded: Recorded, fate: str) -> None:
    cuts = range(recorded.durable_end, recorded.end)
    assert len(cuts) > 300
    for cut in some_of(cuts, 8):
        whole = sum(1 for end in recorded.message_ends if end <= cut)
        assert whole >= FIRST, "the batch that was acknowledged lies before every cut"
        content = torn(recorded.content, cut, fate)
        directory_as_after_power_loss(recorded, content)
        check_recovery(recorded, whole, cut)


def check_recovery(recorded: Recorded, expected: int, cut: int) -> None:
    store = Store.open(recorded.directory, SETTINGS, NOW_MS)
    try:
        assert store.tables.next_id - 1 == expected, f"cut at {cut}"
        keys = [f"key {number}" for number in range(FIRST + LAST)]
        wanted = [number + 1 if number < expected else 0 for number in range(FIRST + LAST)]
        assert store.select.find("orders", keys) == wanted
        # It goes on as if the torn batch had never been.
        topic = store.topics.open("orders", NOW_MS)
        store.produce.ingest(send(topic, [b"afterwards"], keys=[b"new"]), NOW_MS)
        store.sync()
        state = store.look.state_hash()
    finally:
        store.close(clean=False)
    if cut % 16:
        return
    remove_derived_files(recorded.directory)
    again = Store.open(recorded.directory, SETTINGS, NOW_MS)
    try:
        assert again.look.state_hash() == state
        assert again.select.find("orders", ["new"]) == [expected + 1]
    finally:
        again.close(clean=False)


@pytest.mark.promise("R46", "when-is-a-message-safe")
def test_damage_before_the_durable_position_refuses_to_start(recorded: Recorded) -> None:
    for place in range(64, recorded.durable_end - 40, 7):
        flipped = bytearray(recorded.content)
        flipped[place] ^= 0x10
        directory_as_after_power_loss(recorded, bytes(flipped))
        try:
            store = Store.open(recorded.directory, SETTINGS, NOW_MS)
        except DamagedLog:
            assert recorded.segment.read_bytes() == bytes(flipped), "a refused start changes nothing"
            continue
        # Padding between records is the only place where a flipped bit means nothing.
        try:
            assert store.tables.next_id - 1 == FIRST + LAST, f"byte {place} was flipped and nobody noticed"
        finally:
            store.close(clean=False)
