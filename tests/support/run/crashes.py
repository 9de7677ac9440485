"""What is known of a process of tests that ended too soon: how it ended, and where its threads were."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from xdist.workermanage import WorkerController

_SHOWN_CHARACTERS: Final = 6_000


def watch(worker: str) -> None:
    """In a process of tests: a fault of C writes down where each thread was."""
    # It stays open to the end.
    faulthandler.enable(os.open(_file(worker), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))


def of(node: WorkerController) -> str:
    """In the process that started them: of one whose end is known."""
    lines = [f"{node.gateway.id} {_end(node)}"]
    with suppress(OSError):
        lines.append(_file(node.gateway.id).read_text(errors="replace")[:_SHOWN_CHARACTERS])
    return "\n".join(lines)


def _file(worker: str) -> Path:
    return Path(tempfile.gettempdir(), f"fault-{worker}")


def _end(node: WorkerController) -> str:
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)  # execnet has no other way to ask
    if process is None:
        return "ended"
    try:
        status = process.wait(5)
    except subprocess.TimeoutExpired:
        return "closed its pipe and goes on"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
