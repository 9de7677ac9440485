"""The short way of sends, watched."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tickwheel.blocking import short_way
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel_native import call as _call


@pytest.fixture(autouse=True)
def _is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_way, "is_open", True)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of what was written by the short way."""
    found: list[bytes] = []
    genuine = _call.send

    def send(call: Any, fd: int, correlation: int, columns: bytes, key: bytes, body: bytes) -> bool:
        found.append(body)
        return genuine(call, fd, correlation, columns, key, body)

    monkeypatch.setattr(_call, "send", send)
    return found


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The socket takes little at once: how much it took."""
    taken: list[int] = []

    def send(call: Any, fd: int, correlation: int, columns: bytes, key: bytes, body: bytes) -> bool:
        frame = encode_frame(FrameType.SEND, correlation, columns + key + body)
        taken.append(min(len(frame) - 1, (1, 15, 16, 40, 1_000)[len(taken) % 5]))
        call.frame_bytes, call.written_bytes = len(frame), os.write(fd, frame[: taken[-1]])
        return False

    monkeypatch.setattr(_call, "send", send)
    return taken
