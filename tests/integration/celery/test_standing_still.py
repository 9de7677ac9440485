"""A worker's process that stands still (SIGSTOP), beside a worker that runs: the running worker does all tasks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import tickwheel
from tests.integration.celery.test_workers import Place
from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import wait_until


def test_no_task_waits_for_a_worker_that_stands_still(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(tickwheel.sync.Client(daemon.url))
        client.create_topic(queue, max_attempts=1)
        place = Place(daemon.url, queue, tmp_path)
        stack.enter_context(place.app)
        still, running = (stack.enter_context(place.worker("--pool", "prefork", "-c", "1")) for _ in range(2))

        def do(count: int) -> set[str]:
            done = len(place.lines())
            names = {f"{done}-{number}" for number in range(count)}
            for name in names:
                place.send("note", name)
            wait_until(lambda: names <= set(place.lines()), place.lines)
            return names

        wait_until(lambda: do(1) and all("received" in one.log.read_text() for one in (still, running)))
        still.suspend()
        do(20)
        began = running.log.read_text().count("received")
        do(20)
        assert running.log.read_text().count("received") == began + 20
        still.resume()
        running.suspend()
        do(20)
        running.resume()
        assert f"{queue}.dead" not in [topic.name for topic in client.topics()]
        assert still.stop() == running.stop() == 0
