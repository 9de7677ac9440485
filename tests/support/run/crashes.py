"""A plugin: of a process of tests that ended too soon its report says how it ended, and where its threads were."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_SHOWN_CHARACTERS: Final = 6_000
_LAST = pytest.StashKey[str]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a process of tests, when pytest has set its own handler: a fault of C writes down where each thread was."""
    worker = getattr(session.config, "workerinput", {}).get("workerid")
    if worker is not None:
        # It stays open to the end.
        faulthandler.enable(os.open(_file(worker), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """In the process that started them: what is shown with the test that one ran."""
    if error is not None:
        node.config.stash[_LAST] = _told(node)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: LoadScopeScheduling) -> None:
    """The end of a run may be all that is kept of it, so the report says everything."""
    how = sched.config.stash.get(_LAST, "its end is not known")
    report.longrepr = f"{how.splitlines()[0]}: {report.longrepr}\n{how}"


def _told(node: WorkerController) -> str:
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
