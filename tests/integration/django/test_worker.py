"""``manage.py tickwheel_worker`` as processes, with a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks.django_setup import PATIENCE_S, ROOT, Processes, finished, until
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync


def begun(folder: Path, name: str) -> list[int]:
    """The processes that began a task of this name."""
    return [int(one.name.split("-")[2]) for one in folder.glob(f"begun-{name}-*")]


def test_tasks_of_each_kind(processes: Callable[..., Processes]) -> None:
    from tests.support.frameworks.django_project import tasks
    from tests.support.frameworks.django_project.models import Letter

    worker = processes().start("tickwheel_worker", "--threads", "2")
    sum_, letter = tasks.add.enqueue(1, b=2), tasks.write.enqueue("a letter")
    later = tasks.add_async.enqueue(3)
    failed = tasks.fail.enqueue()
    left, interrupted, strange = tasks.leave.enqueue(), tasks.interrupt.enqueue(), tasks.strange.enqueue()
    known = tasks.identify.enqueue(1)
    for one in (sum_, letter, later, failed, left, interrupted, strange, known):
        until(lambda one=one: finished(one))
    assert (sum_.return_value, later.return_value, known.return_value) == (3, 4, known.id)
    assert Letter.objects.get().text == "a letter"
    assert [one.status.value for one in (failed, left, interrupted, strange)] == ["FAILED"] * 4
    assert failed.errors[0].exception_class is tasks.Unlucky
    assert left.errors[0].exception_class is SystemExit
    assert interrupted.errors[0].exception_class is KeyboardInterrupt
    assert "no luck" in failed.errors[0].traceback
    assert (failed.attempts, len(sum_.worker_ids)) == (1, 1)
    worker.terminate()
    out, err = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, "default, mails" in out) == (0, True), err


def test_a_stop_waits_for_what_runs(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    worker = processes().start("tickwheel_worker", "default", "--threads", "1")
    running = tasks.begin.enqueue(str(tmp_path), "one", "go")
    until(lambda: begun(tmp_path, "one"))
    waiting = tasks.add.enqueue(1)
    worker.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(timeout=0.3)
    (tmp_path / "go").touch()
    _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, err
    assert finished(running)
    assert running.return_value == worker.pid
    assert not finished(waiting)
    assert waiting.attempts == 0


def test_a_second_signal_does_not_wait(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    made = processes()
    worker = made.start("tickwheel_worker", "default")
    running = tasks.begin.enqueue(str(tmp_path), "one", "go")
    until(lambda: begun(tmp_path, "one"))
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, err
    (tmp_path / "go").touch()
    made.start("tickwheel_worker", "default")
    until(lambda: finished(running))
    assert (running.status.value, running.errors) == ("SUCCESSFUL", [])  # it was no attempt, and no death


def test_a_killed_worker(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    made = processes(lease=1)
    worker = made.start("tickwheel_worker", "default")
    running = tasks.begin.enqueue(str(tmp_path), "one", "go")
    until(lambda: begun(tmp_path, "one"))
    worker.kill()
    (tmp_path / "go").touch()
    made.start("tickwheel_worker", "default")
    until(lambda: finished(running))
    assert (running.status.value, running.attempts) == ("SUCCESSFUL", 2)
    assert [one.exception_class.__name__ for one in running.errors] == ["WorkerLost"]


def test_a_task_that_ends_its_workers_is_given_up(
    processes: Callable[..., Processes], tmp_path: Path
) -> None:
    from tests.support.frameworks.django_project import tasks

    made = processes(lease=1, lost_workers=1)
    made.start("tickwheel_worker", "default", "--processes", "2")
    result = tasks.die.enqueue(str(tmp_path), 100)
    until(lambda: finished(result))
    assert (result.status.value, len(list(tmp_path.glob("died-*")))) == ("FAILED", 2)
    assert {one.exception_class.__name__ for one in result.errors} == {"WorkerLost"}


def test_processes_are_started_again_and_stopped(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    worker = processes(lease=1).start("tickwheel_worker", "default", "--processes", "2", "--threads", "1")
    results = [tasks.begin.enqueue(str(tmp_path), str(number), "go") for number in range(2)]
    until(lambda: begun(tmp_path, "0") and begun(tmp_path, "1"))
    first, second = begun(tmp_path, "0")[0], begun(tmp_path, "1")[0]
    assert first != second
    assert worker.pid not in (first, second)
    os.kill(first, signal.SIGKILL)
    until(lambda: len(begun(tmp_path, "0")) == 2)
    (third,) = set(begun(tmp_path, "0")) - {first}
    (tmp_path / "go").touch()
    for one in results:
        until(lambda one=one: finished(one))
    worker.send_signal(signal.SIGINT)
    _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, err
    for pid in (second, third):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_children_end_with_their_supervisor(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    worker = processes().start("tickwheel_worker", "default", "--processes", "2")
    result = tasks.begin.enqueue(str(tmp_path), "one", "go")
    until(lambda: begun(tmp_path, "one"))
    (child,) = begun(tmp_path, "one")
    worker.kill()
    worker.wait()
    (tmp_path / "go").touch()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(is_gone)
    assert finished(result)  # in order: what ran was finished


def test_a_time_limit(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    made = processes(time_limit=1)
    made.start("tickwheel_worker", "default", "--threads", "2", "--drain", "20")
    result = tasks.begin.enqueue(str(tmp_path), "one", "never")
    until(lambda: finished(result))
    assert (result.status.value, result.attempts) == ("FAILED", 1)
    assert [one.exception_class.__name__ for one in result.errors] == ["TimeLimitExceeded"]
    after = tasks.add.enqueue(1)
    until(lambda: finished(after))
    assert after.worker_ids[0].split("/")[1] != result.worker_ids[0].split("/")[1]  # another process


def test_leases_are_renewed(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    made = processes(lease=1)
    made.start("tickwheel_worker", "default")
    made.start("tickwheel_worker", "default")
    result = tasks.begin.enqueue(str(tmp_path), "one", "go")
    until(lambda: begun(tmp_path, "one"))
    noted = time.monotonic()
    others = tasks.begin.enqueue(str(tmp_path), "two")
    until(lambda: finished(others))
    until(lambda: time.monotonic() > noted + 3)  # three leases
    (tmp_path / "go").touch()
    until(lambda: finished(result))
    assert (len(begun(tmp_path, "one")), result.attempts, result.errors) == (1, 1, [])


def test_priorities_and_times(processes: Callable[..., Processes], daemon: Daemon, prefix: str) -> None:
    from django.utils import timezone

    from tests.support.frameworks.django_project import tasks
    from tickwheel.django.models import TaskRecord

    made = processes()
    results = [tasks.add.using(priority=priority).enqueue(priority) for priority in (-100, 0, 100)]
    made.start("tickwheel_worker", "default", "--threads", "1")
    for one in results:
        until(lambda one=one: finished(one))
    due = timezone.now() + timedelta(seconds=0.5)
    later = tasks.add.using(run_after=due).enqueue(7)
    until(lambda: finished(later))
    assert later.started_at >= due
    rows = TaskRecord.objects.order_by("started_at").values_list("priority", flat=True)
    assert list(rows) == [100, 0, -100, 0]
    with sync.Client(daemon.url) as client:
        assert [one.priority for one in client.browse(f"{prefix}default")] == [255, 128, 0, 128]


def test_reload(processes: Callable[..., Processes], tmp_path: Path) -> None:
    from tests.support.frameworks.django_project import tasks

    (tmp_path / "edited.py").write_text("")
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    worker = processes().start(
        "tickwheel_worker", "default", "--reload", PYTHONPATH=path, TICKWHEEL_TEST_IMPORT="edited"
    )
    first = tasks.begin.enqueue(str(tmp_path), "one")
    until(lambda: finished(first))

    def is_another() -> bool:
        (
            tmp_path / "edited.py"
        ).touch()  # again: what was there at its first look is nothing new to the reloader
        result = tasks.begin.enqueue(str(tmp_path), "more")
        until(lambda: finished(result))
        return bool(result.return_value != first.return_value)

    until(is_another)
    worker.terminate()
    worker.communicate(timeout=PATIENCE_S)


def test_wrong_words(processes: Callable[..., Processes]) -> None:
    made = processes()
    for words, text in (
        (("nothing",), "is no queue of this backend"),
        (("--threads", "0"), "must be 1 or more"),
        (("--backend", "other"), "other"),
        (("--backend", "any"), "name the queues"),
    ):
        process = made.start("tickwheel_worker", *words)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert text in err


def test_a_broker_that_is_not_there(project: dict[str, Any]) -> None:
    made = Processes(project, "tickwheel://127.0.0.1:1", client={"connect_timeout": 0.1})
    process = made.start("tickwheel_worker")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "NotConnected" in err


def test_health(processes: Callable[..., Processes]) -> None:
    from django.test import Client

    from tests.support.frameworks.django_project import tasks

    processes()
    tasks.add.enqueue(1)
    answer = Client().get("/health/tasks/")
    assert answer.status_code == 200
    state = json.loads(answer.content)
    assert state["ok"]
    assert state["backends"]["default"]["queues"]["mails"] == {
        "backlog": 0,
        "running": 0,
        "workers": 0,
        "dead": 0,
    }
