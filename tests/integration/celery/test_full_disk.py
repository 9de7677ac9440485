"""A retry that has no room at the broker: the task is neither lost nor done twice, and runs on when there is room."""

from __future__ import annotations

import resource
from pathlib import Path

import tickwheel.sync
from tests.integration.celery.conftest import Worker
from tests.integration.celery.test_workers import PROGRAM, Place
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import DiskFull
from tickwheel_bench.processes import wait_until

# `full` begins, waits until the disk is full, and wants to be retried once.
RETRYING = (
    PROGRAM
    + """
@app.task(name="full", bind=True, acks_late=True)
def full(self):
    note(f"try {self.request.retries}")
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
    if not self.request.retries:
        raise self.retry(countdown=0.01)

@app.task(name="early", bind=True, ignore_result=False)
def early(self):
    note("early")
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
    raise self.retry(countdown=0.01)

from celery.signals import task_failure

@task_failure.connect(weak=False)
def failed(sender=None, **_):
    note("failed " + sender.name)
"""
)


LIMIT_BYTES = 8 << 20
SMALL_DISK = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""


def test_a_retry_on_a_full_disk(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", prelude=SMALL_DISK, ack_wait="120s", segment_bytes="32MiB") as daemon:
        place, go = Place(daemon.url, "tasks", tmp_path), tmp_path / "go"
        environment = {"BROKER": daemon.url, "QUEUE": "tasks", "OUT": str(place.out), "GO": str(go)}
        arguments = "--without-heartbeat", "--pool", "prefork", "-c", "2"
        with place.app, Worker(RETRYING, tmp_path, *arguments, **environment) as worker:
            place.send("full")
            place.send("early")
            wait_until(lambda: len(place.lines()) == 2, place.lines)
            with tickwheel.sync.Client(daemon.url) as client:
                _send_until_full(client)
                go.touch()
                # Twice: the second time is after the delay, not at the end of a lease.
                worker.wait_for("comes again in 10 s", 2)
                assert place.lines().count("try 1") == 0
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
                wait_until(lambda: "try 1" in place.lines(), lambda: worker.log.read_text())
                wait_until(lambda: client.group("tasks", "celery").backlog == 0)
                assert client.group("tasks", "celery").dead == 0
        # What was acked before it ran is Celery's to lose: its result says so.
        assert [line for line in place.lines() if line.startswith("failed")] == ["failed early"]
        assert place.lines().count("try 1") == 1


def _send_until_full(client: tickwheel.sync.Client) -> None:
    for size_bytes in (10_000, 100):
        is_full = False
        while not is_full:
            try:
                client.send("other", bytes(size_bytes))
            except DiskFull:
                is_full = True
