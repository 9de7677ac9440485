"""Nothing changed for programs and directories that are in use: the recordings in tests/recorded, against this code."""

from __future__ import annotations

import lzma
import shutil
import struct
import tarfile
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from tests.support.clients import recording
from tests.support.clients.recording import (
    LATER,
    START,
    Step,
    after_opening,
    every_request,
    masked,
    serving,
    state_hash,
)
from tests.support.run import promised
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.messages import AckCode

RECORDED = Path(__file__).resolve().parents[2] / "recorded"
THE_END = "the end"
DERIVED = ("messages.table", "keys.index", "topics", "timer.wheel", "timer.log", "checkpoint")


class Recorded(msgspec.Struct):
    """A conversation."""

    steps: list[Step]
    state_hash: dict[str, str] = {}


OTHERWISE = {
    # Version 0.1 said `already_acked` to the ack of a delivery other than the one that was acked.
    ("session.json.xz", 21): [
        encode_frame(
            FrameType.ACK_OK,
            21,
            struct.pack("<2I2IQ2IQ", 1, 2, 1, AckCode.STALE_RECEIPT, 1, 2, AckCode.NOT_FOUND, 77),
        ).hex()
    ]
}
"""What a step is answered since, because the recorded answer was wrong."""


def read(name: str) -> Recorded:
    recorded = msgspec.json.decode(lzma.decompress((RECORDED / name).read_bytes()), type=Recorded)
    for (of, number), broker in OTHERWISE.items():
        if of == name:
            step = recorded.steps[number - 1]
            assert step.broker != broker, "it stands here because it differs"
            recorded.steps[number - 1] = msgspec.structs.replace(step, broker=broker)
    return recorded


def replay(directory: Path, start: datetime, steps: list[Step]) -> None:
    """Say what was said then, and compare each answer."""
    with serving(directory, start) as (broker, line):
        for number, step in enumerate(steps, 1):
            where = f"step {number}, {step.what}"
            if step.what == THE_END:
                broker.close()
                assert line.rest() == step.broker, where
                return
            found = line.replay(step)
            assert list(map(masked, found)) == list(map(masked, step.broker)), where


@pytest.fixture
def directories(tmp_path: Path) -> Path:
    """`killed` and `closed`, as a broker of that time left them."""
    with tarfile.open(RECORDED / "directories.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_recorded_client_is_answered_with_the_same_bytes(tmp_path: Path) -> None:
    steps = read("session.json.xz").steps
    assert len(steps) > 100
    assert steps[-1].what == THE_END
    replay(tmp_path / "data", START, steps)


@pytest.mark.parametrize(
    ("name", "script"), [("session.json.xz", every_request), ("opened.json.xz", after_opening)]
)
def test_a_client_says_it_with_the_same_bytes(name: str, script: object) -> None:
    assert callable(script)
    recorded = [step.client for step in read(name).steps if step.what != THE_END]
    assert [step.client for step in script()] == recorded


def test_later_requests_are_said_with_the_same_bytes() -> None:
    recorded = (RECORDED / "later.txt").read_text(encoding="utf-8").splitlines()
    assert list(recording.later_lines()) == recorded


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_an_older_directory_opens_with_the_same_state(directories: Path, how: str) -> None:
    assert state_hash(directories / how) == read("opened.json.xz").state_hash[how]


def test_the_log_alone_gives_the_same_state(directories: Path) -> None:
    closed = directories / "closed"
    for name in DERIVED:
        path = closed / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert sorted(path.name for path in closed.iterdir() if path.is_dir()) == ["commitlog", "staging"]
    assert state_hash(closed) == read("opened.json.xz").state_hash["closed"]


def test_an_older_directory_is_served_with_the_same_answers(directories: Path) -> None:
    replay(directories / "closed", LATER, read("opened.json.xz").steps)


def test_names_are_the_recorded_ones() -> None:
    """New ones are added to the file; one that goes, or means something else, breaks its users."""
    recorded = (RECORDED / "names.txt").read_text(encoding="utf-8").splitlines()
    assert len(recorded) > 300
    assert list(promised.lines()) == recorded


def test_every_request_is_in_the_conversation() -> None:
    said = {step.what for step in (*every_request(), *recording.later_requests())}
    asked = {kind.name for kind in recording.FRAME_TYPE_OF_REQUEST.values()} | {"SEND", "ACK"}
    assert asked - said == set()
