"""An app of Celery whose tasks wait at the broker, not in a worker. Tickwheel's are the URL, and the import that makes
it known.

``python celery_app.py`` starts a broker and a worker for itself. With a broker of yours it is:

    TICKWHEEL_URL=tickwheel://127.0.0.1:7411 celery -A celery_app worker --loglevel INFO
"""

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery import Celery

import tickwheel
import tickwheel.celery  # makes the URL known

app = Celery("shop", broker=os.environ.get("TICKWHEEL_URL", "tickwheel://127.0.0.1:7411"), backend="rpc://")
app.conf.broker_connection_retry_on_startup = True
app.conf.task_acks_late = True


@app.task(name="add")
def add(one: int, other: int) -> int:
    """Now."""
    return one + other


@app.task(name="remind", bind=True)
def remind(self, order: int) -> str:
    """Later. Until then no worker knows of it."""
    is_early = datetime.now(UTC) < datetime.fromisoformat(self.request.eta)
    return f"order {order} is not paid{', and it is too early' if is_early else ''}"


def main() -> None:
    print("2 + 3 =", add.delay(2, 3).get(timeout=60))
    print(remind.apply_async((17,), countdown=1).get(timeout=60))
    remind.apply_async((18,), eta=datetime.now(UTC) + timedelta(days=700))
    workers = app.control.inspect(timeout=30, limit=1).scheduled()
    print("held by workers:", sum(map(len, workers.values())))
    with app.connection_for_read() as connection:
        print("waiting at the broker:", connection.connect().broker.topic("celery").scheduled)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, tickwheel.embedded(folder) as broker:
        app.conf.broker_url = broker.url
        words = [
            "-A",
            "celery_app",
            "worker",
            "--pool",
            "threads",
            "--concurrency",
            "2",
            "--loglevel",
            "ERROR",
        ]
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", *words],
            cwd=Path(__file__).parent,
            env={**os.environ, "TICKWHEEL_URL": broker.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            main()
        finally:
            worker.terminate()
            worker.wait()
