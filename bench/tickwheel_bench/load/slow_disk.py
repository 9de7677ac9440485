"""``tickwheel serve`` on a disk that is slow: ``python -m tickwheel_bench.load.slow_disk MILLISECONDS serve …``.

Each group commit begins its sync so much later, so all that waits for the disk waits.
"""

from __future__ import annotations

import runpy
import sys
import threading
from pathlib import Path
from typing import Any

from outcome import Error, Outcome, Value

from tickwheel_broker.group_commit import SyncEnded, SyncThread


def slow_down(delay_s: float) -> None:
    """From now on, in this process."""
    begin = SyncThread.begin

    def begin_late(thread: SyncThread, ticket: Any, ended: SyncEnded) -> None:
        def ended_late(result: Outcome[float]) -> None:
            ended(result if isinstance(result, Error) else Value(result.unwrap() + delay_s))

        threading.Timer(delay_s, begin, (thread, ticket, ended_late)).start()

    SyncThread.begin = begin_late  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)) / 1_000)
    runpy.run_path(str(Path(sys.executable).with_name("tickwheel")), run_name="__main__")
