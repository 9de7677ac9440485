"""The tasks, and what each writes of itself: a line of fixed size, appended to one file."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from celery import Celery

ENVIRONMENT: Final = "TICKWHEEL_BENCH_CELERY"
"""Where the program ``celery`` finds what `settings` gives."""
_LINE: Final = struct.Struct("<qq")


def settings(url: str, options: dict[str, Any], ran: Path) -> str:
    """What a worker must know, as a variable of its environment. `ran`: where tasks write that they ran."""
    return json.dumps({"url": url, "options": options, "ran": str(ran)})


def make(url: str, options: dict[str, Any]) -> Celery:
    """An application as it is usual: no results, acks when a task has ended."""
    if url.startswith("tickwheel"):
        import tickwheel.celery  # noqa: F401 - makes the URL known
    made = Celery("bench", broker=url)
    made.conf.update(
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=64,
        worker_hijack_root_logger=False,
        broker_pool_limit=4,
    )
    return made


_told: dict[str, Any] = json.loads(
    os.environ.get(ENVIRONMENT, '{"url": "memory://", "options": {}, "ran": "/dev/null"}')
)
app: Final = make(_told["url"], _told["options"])
_descriptors: dict[int, int] = {}


@app.task(name="bench.note")  # type: ignore[untyped-decorator]
def note(number: int) -> None:
    """Writes that it ran, and when."""
    pid = os.getpid()
    if pid not in _descriptors:
        _descriptors[pid] = os.open(_told["ran"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_descriptors[pid], _LINE.pack(number, time.time_ns()))


def runs(ran: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of the tasks that ran, and when each did (ns)."""
    if not ran.exists():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    numbers = np.fromfile(ran, np.int64)
    lines = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    return lines[:, 0], lines[:, 1]
