"""Tasks over their time limit, in a workshop of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks.django_setup import Processes, finished, until


@contextmanager
def workshop(time_limit: timedelta | None = None) -> Iterator[Any]:
    """One of the default queue, that runs."""
    from tickwheel.django.backends import backend_named
    from tickwheel.django.broker import new_client
    from tickwheel.django.worker.workshop import Workshop

    backend = backend_named("default")
    with new_client(backend.settings, "worker") as client:
        made = Workshop(
            backend=backend,
            client=client,
            queues=["default"],
            threads=1,
            drain=timedelta(seconds=10),
            time_limit=time_limit,
        )
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join()


def test_a_task_that_ends_while_its_expiry_is_written_down_comes_again(
    processes: Callable[..., Processes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.frameworks.django_project import tasks
    from tickwheel.django.records import Records

    processes(attempts=2)
    write_down = Records.fail

    def fail(*arguments: Any, **options: Any) -> bool:
        counts = write_down(*arguments, **options)
        (tmp_path / "go").touch()
        until(lambda: not expired._execution.running())
        time.sleep(0.1)  # what the thread says of it goes to the broker
        return counts

    monkeypatch.setattr(Records, "fail", fail)
    result = tasks.begin.enqueue(str(tmp_path), "one", "go")
    with workshop(timedelta(seconds=0.3)) as expired:
        until(lambda: expired.has_expired)
    result.refresh()
    assert (result.status.value, result.attempts) == ("READY", 1)
    with workshop():
        until(lambda: finished(result))
    assert (result.status.value, result.attempts) == ("SUCCESSFUL", 2)
    assert [one.exception_class.__name__ for one in result.errors] == ["TimeLimitExceeded"]
