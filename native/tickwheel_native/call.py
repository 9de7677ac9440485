"""``call.h``: a send of a client that blocks, there and back."""

from __future__ import annotations

from typing import Any, TypeAlias

from tickwheel_native._native import ffi, lib

#: A ``tw_call``: what is done of a send, also when one of these was interrupted at its end.
Call: TypeAlias = Any


def new() -> Call:
    """For one send at a time."""
    return ffi.new("tw_call *")


def begin(call: Call) -> None:
    """Nothing of the next send is done."""
    call.frame_bytes = call.written_bytes = call.came_bytes = call.is_answered = 0


def send(call: Call, fd: int, correlation: int, columns: bytes, key: bytes, body: bytes) -> bool:
    """Writes it. False: the socket did not take all; ``call.written_bytes`` says how much."""
    return lib.tw_call_send(call, fd, correlation, columns, len(columns), key, len(key), body, len(body)) == 1


def wait(fd: int, ear_fd: int, timeout_ms: int) -> bool:
    """Whether there is something to read now, and nothing else."""
    return lib.tw_call_wait(fd, ear_fd, timeout_ms) == 1


def answer(call: Call, fd: int, correlation: int) -> bool:
    """Reads once. Whether it was the answer: the message was stored, as ``call.first_id``."""
    return lib.tw_call_answer(call, fd, correlation) == 1


def taken(call: Call) -> bytes:
    """What was read and is not the answer; it is not given twice."""
    came = bytes(ffi.buffer(call.came, call.came_bytes)) if call.came_bytes else b""
    call.came_bytes = 0
    return came
