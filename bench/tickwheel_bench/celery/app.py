"""The app of the benchmark. A task notes when it was due and when it ran, 16 bytes in a file."""

from __future__ import annotations

import os
import time

from celery import Celery

import tickwheel.celery
from tickwheel_bench.celery.record import RECORD

assert tickwheel.celery.TRANSPORT

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = int(os.environ.get("BENCH_PREFETCH", "32"))
app.conf.broker_transport_options = {"publish": os.environ.get("BENCH_PUBLISH", "confirmed")}

_descriptor = -1


@app.task(name="note")  # type: ignore[untyped-decorator]
def note(due_s: float) -> None:
    """Writes (due, now), epoch seconds, behind what others wrote."""
    global _descriptor
    if _descriptor < 0:
        _descriptor = os.open(os.environ["BENCH_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_descriptor, RECORD.pack(due_s, time.time()))
