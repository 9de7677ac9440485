"""Signed tasks (``app.setup_security()``): they run, and one that is not signed is a dead letter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trustme

import tickwheel.sync
from tests.integration.celery.conftest import Worker
from tests.integration.celery.test_workers import PROGRAM, Place
from tests.support.clients.certificates import Files
from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import wait_until

SIGNING = (
    PROGRAM
    + """
app.conf.update(
    security_key=os.environ["KEY"],
    security_certificate=os.environ["CERTIFICATE"],
    security_cert_store=os.environ["CERTIFICATE"],
    task_serializer="auth",
    event_serializer="auth",
    accept_content=["auth"],
)
app.setup_security()
"""
)


def test_signed_tasks_run_and_others_are_dead_letters(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    files = Files(tmp_path / "certificates")
    files.issue(key_type=trustme.KeyType.RSA)
    place = Place(daemon.url, queue, tmp_path)
    environment = {
        "BROKER": daemon.url,
        "QUEUE": queue,
        "OUT": str(place.out),
        "KEY": files.key_path,
        "CERTIFICATE": files.certificate_path,
    }
    sending = "import tickwheel.celery, app; app.say.delay('signed'); app.say.apply_async(('later',), countdown=0.5)"
    with place.app, Worker(SIGNING, tmp_path, "--pool", "threads", "-c", "1", **environment) as worker:
        place.send("note", "not signed")
        words = [sys.executable, "-c", sending]
        subprocess.run(words, cwd=tmp_path, env={**os.environ, **environment}, check=True)
        wait_until(lambda: len(place.lines()) == 2, lambda: worker.log.read_text())
        assert sorted(place.lines()) == ["later", "signed"]
        with tickwheel.sync.Client(daemon.url) as client:
            wait_until(lambda: client.group(queue, "celery").backlog == 0)
            assert client.group(queue, "celery").dead == 1
        assert worker.stop() == 0
