"""``via="outbox"``: a task exists if and only if the transaction in which it was enqueued has committed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.support.frameworks.django_setup import Processes, finished, until
from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import amount, seed
from tickwheel import sync
from tickwheel.client.results import CancelResult, RescheduleResult


def keys(daemon: Daemon, topic: str) -> list[str]:
    """Of the messages of a topic, in the order in which they came."""
    with sync.Client(daemon.url) as client:
        try:
            return [one.key for one in client.browse(topic, limit=10_000)]
        except Exception:
            return []


def test_only_what_was_committed_is_sent(
    processes: Callable[..., Processes], daemon: Daemon, prefix: str
) -> None:
    from django.db import transaction

    from tests.support.frameworks.django_project import tasks
    from tests.support.frameworks.django_project.models import Letter
    from tickwheel.django.models import OutboxMessage, TaskRecord

    made = processes(via="outbox")
    with transaction.atomic():
        Letter.objects.create(text="an order")
        gone = tasks.write.enqueue("for an order that there is not")
        transaction.set_rollback(True)
    with transaction.atomic():
        Letter.objects.create(text="an order")
        kept = tasks.write.enqueue("for an order")
    alone = tasks.add.enqueue(1)
    assert not TaskRecord.objects.filter(pk=gone.id).exists()
    assert OutboxMessage.objects.count() == 2
    assert made.run("tickwheel_relay", "--once") == "2 sent.\n"
    assert made.run("tickwheel_relay", "--once") == "0 sent.\n"
    assert (keys(daemon, f"{prefix}mails"), keys(daemon, f"{prefix}default")) == ([kept.id], [alone.id])
    made.start("tickwheel_worker")
    until(lambda: finished(kept) and finished(alone))
    assert list(Letter.objects.order_by("id").values_list("text", flat=True)) == ["an order", "for an order"]


def test_tasks_of_one_time_are_sent_in_the_order_of_enqueueing(
    processes: Callable[..., Processes], daemon: Daemon, prefix: str
) -> None:
    from django.db import transaction
    from django.utils import timezone

    from tests.support.frameworks.django_project import tasks
    from tickwheel.django.models import SEQUENCE
    from tickwheel.outbox.sequence import SEQUENCE as OF_THE_RELAY

    made = processes(via="outbox")
    due = timezone.now() + timedelta(days=1)
    with transaction.atomic():
        ids = [tasks.add.using(run_after=due).enqueue(number).id for number in range(30)]
    ids += [tasks.add.using(run_after=due).enqueue(number).id for number in range(30)]
    assert SEQUENCE == OF_THE_RELAY
    backend: Any = tasks.add.get_backend()
    assert [row.pk for row in backend.outbox.unsent()] == ids
    assert made.run("tickwheel_relay", "--once") == "60 sent.\n"
    assert keys(daemon, f"{prefix}default") == ids


def test_a_relay_that_runs(processes: Callable[..., Processes]) -> None:
    from django.utils import timezone

    from tests.support.frameworks.django_project import tasks

    made = processes(via="outbox")
    relay = made.start("tickwheel_relay")
    made.start("tickwheel_worker", "--threads", "2")
    due = timezone.now() + timedelta(seconds=2)
    later = tasks.add.using(run_after=due, priority=7).enqueue(5)
    results = [tasks.add.enqueue(number) for number in range(20)]
    for one in (later, *results):
        until(lambda one=one: finished(one))
    assert [one.return_value for one in results] == list(range(1, 21))
    assert later.started_at >= due
    relay.terminate()
    _, err = relay.communicate(timeout=60)
    assert relay.returncode == 0, err


def test_cancel_and_reschedule_on_both_sides_of_the_relay(processes: Callable[..., Processes]) -> None:
    from django.db import transaction
    from django.utils import timezone

    from tests.support.frameworks.django_project import tasks
    from tickwheel.django.models import OutboxMessage

    made = processes(via="outbox")
    backend: Any = tasks.add.get_backend()
    day, soon = timezone.now() + timedelta(days=1), timezone.now() + timedelta(milliseconds=10)
    here, there, moved_here, moved_there = (tasks.add.using(run_after=day).enqueue(n) for n in range(4))
    assert backend.cancel(here) is CancelResult.CANCELLED
    assert backend.reschedule(moved_here, soon) is RescheduleResult.RESCHEDULED
    assert made.run("tickwheel_relay", "--once") == "3 sent.\n"
    with transaction.atomic():
        assert backend.cancel(there) is CancelResult.CANCELLED
        transaction.set_rollback(True)
    there.refresh()
    assert there.status.value == "READY"
    with transaction.atomic():
        assert backend.cancel(there) is CancelResult.CANCELLED
    assert backend.cancel(there) is CancelResult.ALREADY_CANCELLED
    assert backend.reschedule(moved_there, soon) is RescheduleResult.RESCHEDULED
    assert backend.reschedule(there, soon) is RescheduleResult.ALREADY_CANCELLED
    made.start("tickwheel_worker", "default")
    until(lambda: finished(moved_here) and finished(moved_there))
    # A worker writes down that a task has ended, and acks its message then.
    until(lambda: backend.cancel(moved_here) is CancelResult.ALREADY_ACKED)
    until(lambda: backend.reschedule(moved_there, day) is RescheduleResult.ALREADY_ACKED)
    for one in (here, there):
        one.refresh()
        assert (one.status.value, one.attempts) == ("FAILED", 0)
        assert one.errors[0].exception_class.__name__ == "TaskCancelled"
    assert OutboxMessage.objects.filter(time_acked=None).count() == 0


PRODUCER = """
import os, sys
import django
django.setup()
from django.db import transaction
from tests.support.frameworks.django_project import tasks
from tests.support.frameworks.django_project.models import Letter
number = 0
while True:
    with transaction.atomic():
        Letter.objects.create(text=f"order {number}")
        tasks.add.enqueue(number)
        if number % 3 == 0:
            transaction.set_rollback(True)
    number += 1
"""


KILLED = """
import os, signal
import django
django.setup()
from django.db import transaction
from tests.support.frameworks.django_project import tasks
tasks.add.enqueue(1)
with transaction.atomic():
    tasks.add.enqueue(2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_producer_that_is_killed_before_its_commit(processes: Callable[..., Processes]) -> None:
    from tickwheel.django.models import TaskRecord

    made = processes(via="outbox")
    assert made.start_python(KILLED).wait(60) == -signal.SIGKILL
    assert made.run("tickwheel_relay", "--once") == "1 sent.\n"
    assert [one.args for one in TaskRecord.objects.all()] == [[1]]


def test_kills_of_producers_relays_and_workers(processes: Callable[..., Processes]) -> None:
    """Orders and tasks are written in one transaction; whatever is killed, each order's task runs, and no other."""
    from tests.support.frameworks.django_project.models import Letter
    from tickwheel.django.models import OutboxMessage, TaskRecord

    made = processes(via="outbox", lease=1, lost_workers=1_000)
    chosen = random.Random(seed("django kills"))
    running = {
        "producer": made.start_python(PRODUCER),
        "relay": made.start("tickwheel_relay", "--poll", "0.5"),
        "worker": made.start("tickwheel_worker", "default"),
    }

    def start(name: str) -> Any:
        if name == "producer":
            return made.start_python(PRODUCER)
        return made.start(f"tickwheel_{name}", *(["--poll", "0.5"] if name == "relay" else ["default"]))

    for _ in range(amount("django_kills")):
        count = TaskRecord.objects.filter(status="SUCCESSFUL").count()
        until(lambda count=count: TaskRecord.objects.filter(status="SUCCESSFUL").count() > count + 2)
        for name in chosen.sample(sorted(running), 2):
            running[name].send_signal(signal.SIGKILL)
            running[name].wait()
            running[name] = start(name)
    running["producer"].kill()
    running["producer"].wait()
    # However much the producer has left, as long as it becomes less.
    while left := TaskRecord.objects.exclude(status="SUCCESSFUL").count():
        until(lambda left=left: TaskRecord.objects.exclude(status="SUCCESSFUL").count() < left)
    assert not OutboxMessage.objects.filter(time_acked=None).exists()
    ordered = sorted(int(text.split()[1]) for text in Letter.objects.values_list("text", flat=True))
    ran = sorted(args[0] for args in TaskRecord.objects.values_list("args", flat=True))
    assert ran == ordered
    assert len(ran) > 2
