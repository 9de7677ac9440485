"""The backend with a broker in this process, and tasks that run where the test says so."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured, SuspiciousOperation
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

import tickwheel
from tests.support.frameworks.django_project import tasks
from tests.support.frameworks.django_project.models import Letter
from tickwheel.client.results import CancelResult, RescheduleResult
from tickwheel.django import TaskCancelled, TickwheelBackend, TickwheelTestMixin
from tickwheel.django.broker import client_of
from tickwheel.django.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
    task_backends,
)
from tickwheel.django.models import OutboxMessage, TaskRecord

READY, FAILED, SUCCESSFUL = TaskResultStatus.READY, TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
HOUR = timedelta(hours=1)


def with_options(**options: Any) -> Any:
    """Another TASKS, which the mixin points to its broker."""
    return override_settings(
        TASKS={
            "default": {
                "BACKEND": "tickwheel.django.TickwheelBackend",
                "QUEUES": ["default", "mails"],
                "OPTIONS": options,
            }
        }
    )


class ProjectTests(TickwheelTestMixin, TransactionTestCase):
    """Each of them has no rows and no messages at its beginning."""

    available_apps = ("tickwheel.django", "tests.support.frameworks.django_project")

    def backend(self) -> TickwheelBackend:
        """The default one."""
        found = task_backends["default"]
        assert isinstance(found, TickwheelBackend)
        return found

    def client_of_broker(self) -> tickwheel.sync.Client:
        """One that is open."""
        return client_of(self.backend().settings)


class EnqueueTests(ProjectTests):
    """What ``enqueue`` promises, as in Django's own tests of its backends."""

    def test_flags(self) -> None:
        backend = self.backend()
        flags = ("supports_defer", "supports_async_task", "supports_priority", "supports_get_result")
        assert all(getattr(backend, name) for name in flags)

    def test_a_result_that_was_not_run(self) -> None:
        for task in (tasks.add, tasks.add_async):
            result = task.enqueue(1, b=3)
            assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
            assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
            with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                result.return_value  # noqa: B018
            assert (result.task, result.args, result.kwargs) == (task, [1], {"b": 3})
            assert self.backend().get_result(result.id) == result
            assert result.errors == []

    def test_async(self) -> None:
        result = async_to_sync(tasks.add.aenqueue)(1)
        assert async_to_sync(self.backend().aget_result)(result.id) == result
        self.run_tasks()
        async_to_sync(result.arefresh)()
        assert result.return_value == 2

    def test_a_result_that_was_run(self) -> None:
        for task in (tasks.add, tasks.add_async):
            before = timezone.now()
            result = task.enqueue(1, b=3)
            (ran,) = self.run_tasks()
            result.refresh()
            assert result == ran
            assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 4, 1)
            assert before <= result.enqueued_at <= result.started_at <= result.finished_at
            assert result.last_attempted_at == result.started_at

    def test_missing_results(self) -> None:
        for wrong in ("123", "x" * 500):
            with pytest.raises(TaskResultDoesNotExist):
                self.backend().get_result(wrong)
            with pytest.raises(TaskResultDoesNotExist):
                async_to_sync(self.backend().aget_result)(wrong)

    def test_results_whose_code_is_gone(self) -> None:
        result = tasks.add.enqueue(1)
        TaskRecord.objects.update(task_path="tests.support.frameworks.django_project.tasks.nothing")
        with pytest.raises(ImportError):
            self.backend().get_result(result.id)
        TaskRecord.objects.update(task_path="tests.support.frameworks.django_project.tasks.no_task")
        with pytest.raises(SuspiciousOperation):
            self.backend().get_result(result.id)

    def test_what_cannot_be_enqueued(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "is not valid for backend"):
            tasks.add.using(queue_name="unknown").enqueue()
        with pytest.raises(TypeError):
            tasks.add.enqueue(object())
        with self.assertRaisesMessage(InvalidTask, "would have the topic 'any.a b'"):
            tasks.add.using(backend="any", queue_name="a b")
        with self.assertRaisesMessage(InvalidTask, "the broker takes"):
            tasks.add.enqueue("x" * (20 << 20))
        assert not TaskRecord.objects.exists()

    def test_signals(self) -> None:
        told: list[tuple[str, str, Any]] = []

        def hear(name: str) -> Any:
            def receiver(sender: Any, task_result: Any, **kwargs: Any) -> None:
                told.append((name, task_result.id, task_result.status))

            getattr(signals, name).connect(receiver, weak=False)
            self.addCleanup(getattr(signals, name).disconnect, receiver)
            return receiver

        for name in ("task_enqueued", "task_started", "task_finished"):
            hear(name)
        result, failing = tasks.add.enqueue(1), tasks.fail.enqueue()
        self.run_tasks()
        running = TaskResultStatus.RUNNING
        assert told == [
            ("task_enqueued", result.id, READY),
            ("task_enqueued", failing.id, READY),
            ("task_started", result.id, running),
            ("task_finished", result.id, SUCCESSFUL),
            ("task_started", failing.id, running),
            ("task_finished", failing.id, FAILED),
        ]

    def test_a_broker_that_is_away(self) -> None:
        self.tickwheel.close()
        with with_options(client={"connect_timeout": 0.05}), pytest.raises(tickwheel.errors.NotConnected):
            tasks.add.enqueue(1)
        assert not TaskRecord.objects.exists()

    def test_direct_does_not_wait_for_the_commit(self) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            transaction.set_rollback(True)
        assert not TaskRecord.objects.exists()
        (ran,) = self.run_tasks()
        assert (ran.id, ran.return_value) == (result.id, 2)


class RunTests(ProjectTests):
    """What becomes of tasks."""

    def test_failures(self) -> None:
        for task, kind in (
            (tasks.fail, tasks.Unlucky),
            (tasks.leave, SystemExit),
            (tasks.interrupt, KeyboardInterrupt),
            (tasks.strange, TypeError),
            (tasks.give_up, tickwheel.GiveUp),
        ):
            result = task.enqueue()
            (ran,) = self.run_tasks()
            assert (ran.id, ran.status, ran.is_finished) == (result.id, FAILED, True)
            assert [one.exception_class for one in ran.errors] == [kind]
            assert task.name in ran.errors[0].traceback or kind is TypeError
            with self.assertRaisesMessage(ValueError, "Task failed"):
                ran.return_value  # noqa: B018
        assert len(self.client_of_broker().browse("django.default.dead")) == 5

    def test_context(self) -> None:
        result = tasks.identify.enqueue(1)
        (ran,) = self.run_tasks()
        assert ran.return_value == result.id

    def test_tasks_that_enqueue_tasks(self) -> None:
        tasks.enqueue_more.enqueue(3)
        assert [one.args for one in self.run_tasks()] == [[3], [2], [1], [0]]

    def test_run_after(self) -> None:
        result = tasks.add.using(run_after=timezone.now() + timedelta(days=365)).enqueue(1)
        assert self.backend().get_result(result.id) == result
        assert self.run_tasks() == []
        assert self.advance(timedelta(days=364)) == []
        (ran,) = self.advance(timedelta(days=2))
        assert ran.return_value == 2

    def test_priority(self) -> None:
        for priority in (-100, 0, 100, 1):
            tasks.add.using(priority=priority).enqueue(priority)
        # The one that waits longest may come first: no priority starves.
        assert sorted(one.args[0] for one in self.run_tasks()) == [-100, 0, 1, 100]
        priorities = [one.priority for one in self.client_of_broker().browse("django.default")]
        assert priorities == [255, 128, 0, 126]

    @with_options(attempts=3, delays=[60, 3600])
    def test_attempts(self) -> None:
        result = tasks.fail.enqueue()
        (first,) = self.run_tasks()
        assert (first.status, first.attempts, len(first.errors)) == (READY, 1, 1)
        assert self.advance(timedelta(seconds=59)) == []
        assert [one.attempts for one in self.advance(timedelta(seconds=2))] == [2]
        assert self.advance(timedelta(seconds=3590)) == []
        (last,) = self.advance(timedelta(seconds=20))
        assert (last.id, last.status, last.attempts, len(last.errors)) == (result.id, FAILED, 3, 3)
        assert self.advance(timedelta(days=3)) == []
        assert TaskRecord.objects.get().failures == 3

    @with_options(attempts=3)
    def test_retry_and_give_up_by_the_task(self) -> None:
        later, lost = tasks.later.enqueue(), tasks.give_up.enqueue()
        assert [one.status for one in self.run_tasks()] == [READY, FAILED]
        ran = self.advance(timedelta(minutes=11))
        assert [(one.id, one.status) for one in ran] == [(later.id, READY), (later.id, SUCCESSFUL)]
        lost.refresh()
        assert lost.attempts == 1

    def test_retry_that_does_not_count(self) -> None:
        result = tasks.wait_uncounted.enqueue()
        self.advance(timedelta(minutes=5))
        result.refresh()
        assert (result.status, result.attempts, result.errors) == (READY, 0, [])
        Letter.objects.create(text="now")
        self.advance(timedelta(minutes=1))
        result.refresh()
        assert (result.status, result.attempts) == (SUCCESSFUL, 1)

    def test_a_task_that_is_delivered_again_is_not_run_again(self) -> None:
        result = tasks.write.enqueue("once")
        self.run_tasks()
        client = self.client_of_broker()
        client.redeliver("django.mails", key=result.id, acked=True)
        assert [one.id for one in self.run_tasks()] == [result.id]
        assert Letter.objects.count() == 1
        result.refresh()
        assert (result.status, result.attempts) == (SUCCESSFUL, 1)

    def test_a_dead_letter_that_is_replayed_runs_again(self) -> None:
        result = tasks.fail.enqueue()
        self.run_tasks()
        assert self.client_of_broker().replay_dead("django.default")["replayed"] == 1
        (ran,) = self.run_tasks()
        assert (ran.id, ran.status, ran.attempts, len(ran.errors)) == (result.id, FAILED, 2, 2)

    def test_messages_that_are_no_tasks_are_given_up(self) -> None:
        client = self.client_of_broker()
        for body in (b"", b"\xff", b"[]", b"{}", b'{"id": 1}', b'{"schedule": "a"}'):
            client.send("django.default", body)
        with pytest.raises(ValueError, match="no task of Django"):
            self.run_tasks()
        # One was looked at; a worker goes on with the others.
        assert len(client.browse("django.default.dead")) == 1

    def test_code_that_is_gone(self) -> None:
        result = tasks.add.enqueue(1)
        TaskRecord.objects.update(task_path="tests.support.frameworks.django_project.tasks.nothing")
        with pytest.raises(ImportError):
            self.run_tasks()
        record = TaskRecord.objects.get(pk=result.id)
        assert (record.status, record.errors[0]["exception_class_path"]) == ("FAILED", "builtins.ImportError")


class ChangeTests(ProjectTests):
    """Cancel and reschedule, with true answers."""

    def test_cancel(self) -> None:
        backend = self.backend()
        result = tasks.write.using(run_after=timezone.now() + HOUR).enqueue("never")
        assert backend.cancel(result) is CancelResult.CANCELLED
        assert backend.cancel(result.id) is CancelResult.ALREADY_CANCELLED
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, TaskCancelled)
        assert self.advance(2 * HOUR) == []
        assert not Letter.objects.exists()
        assert self.client_of_broker().stats().cancelled == 1
        assert backend.cancel("nothing") is CancelResult.NOT_FOUND
        done = tasks.add.enqueue(1)
        self.run_tasks()
        assert backend.cancel(done) is CancelResult.ALREADY_ACKED

    def test_cancel_is_part_of_the_transaction(self) -> None:
        result = tasks.add.using(run_after=timezone.now() + HOUR).enqueue(1)
        with transaction.atomic():
            assert self.backend().cancel(result) is CancelResult.CANCELLED
            transaction.set_rollback(True)
        assert [one.return_value for one in self.advance(2 * HOUR)] == [2]

    def test_cancel_counts_although_the_message_stays(self) -> None:
        result = tasks.write.enqueue("never")
        TaskRecord.objects.filter(pk=result.id).update(
            status="FAILED", cancelled_at=timezone.now(), finished_at=timezone.now()
        )
        assert [one.attempts for one in self.run_tasks()] == [0]
        assert not Letter.objects.exists()

    @with_options(attempts=2, delays=[60])
    def test_cancel_between_attempts(self) -> None:
        result = tasks.fail.enqueue()
        self.run_tasks()
        assert self.backend().cancel(result) is CancelResult.ALREADY_DELIVERED
        assert self.backend().cancel(result, stop=True) is CancelResult.STOPPED
        assert self.advance(HOUR) == []
        result.refresh()
        assert [one.exception_class for one in result.errors] == [tasks.Unlucky, TaskCancelled]

    def test_reschedule(self) -> None:
        backend, now = self.backend(), timezone.now()
        result = tasks.add.using(run_after=now + HOUR).enqueue(1)
        assert backend.reschedule(result, now + 3 * HOUR) is RescheduleResult.RESCHEDULED
        assert backend.get_result(result.id).task.run_after == now + 3 * HOUR
        assert self.advance(2 * HOUR) == []
        assert async_to_sync(backend.areschedule)(result, now) is RescheduleResult.RESCHEDULED
        # What is past by the time it is moved there is due with the next tick of the broker's clock.
        assert [one.return_value for one in self.advance(timedelta(milliseconds=1))] == [2]
        assert backend.reschedule(result, now) is RescheduleResult.ALREADY_ACKED
        assert backend.reschedule("nothing", now) is RescheduleResult.NOT_FOUND
        with pytest.raises(InvalidTask):
            backend.reschedule(result, now.replace(tzinfo=None))

    @with_options(via="outbox")
    def test_the_outbox(self) -> None:
        with transaction.atomic():
            tasks.write.enqueue("never")
            transaction.set_rollback(True)
        assert (TaskRecord.objects.count(), OutboxMessage.objects.count()) == (0, 0)
        soon = timezone.now() + HOUR
        with transaction.atomic():
            kept, gone = (tasks.write.using(run_after=soon).enqueue(text) for text in ("kept", "gone"))
            at_once = tasks.write.enqueue("at once")
        assert OutboxMessage.objects.count() == 3
        assert self.backend().cancel(gone) is CancelResult.CANCELLED
        assert self.backend().reschedule(kept, soon + HOUR) is RescheduleResult.RESCHEDULED
        assert [one.id for one in self.run_tasks()] == [at_once.id]
        assert self.advance(HOUR * 1.5) == []
        assert [one.id for one in self.advance(HOUR)] == [kept.id]
        assert [one.text for one in Letter.objects.order_by("pk")] == ["at once", "kept"]


class TransactionTests(TickwheelTestMixin, TestCase):
    """Within the transaction of a test, as most tests of projects are."""

    def test_tasks_see_what_the_test_has_written(self) -> None:
        Letter.objects.create(text="first")
        tasks.write.enqueue("second")
        assert [one.status for one in self.run_tasks()] == [SUCCESSFUL]
        assert [one.text for one in Letter.objects.order_by("pk")] == ["first", "second"]

    def test_nothing_is_left_of_another_test(self) -> None:
        assert (Letter.objects.count(), TaskRecord.objects.count()) == (0, 0)
        assert self.run_tasks() == []


class CommandTests(ProjectTests):
    """Commands, and what the settings may be."""

    def test_prune(self) -> None:
        tasks.add.enqueue(1), tasks.fail.enqueue()
        self.run_tasks()
        waiting = tasks.add.enqueue(2)
        TaskRecord.objects.update(finished_at=timezone.now() - timedelta(days=20))
        call_command("tickwheel_prune", "--dry-run", stdout=(out := Lines()))
        call_command("tickwheel_prune", "--failed-days", "30", stdout=out)
        assert out.lines == ["2 would be deleted.", "1 were deleted."]
        call_command("tickwheel_prune", "--days", "0", stdout=out)
        assert [one.pk for one in TaskRecord.objects.all()] == [waiting.id]

    def test_wrong_options(self) -> None:
        with override_settings(
            TASKS={
                "default": {
                    "BACKEND": "tickwheel.django.TickwheelBackend",
                    "QUEUES": ["default", "a/b"],
                    "OPTIONS": {
                        "url": "http://x",
                        "via": "post",
                        "database": "other",
                        "prefix": " ",
                        "lease": 0.1,
                        "attempts": 0,
                        "delays": 5,
                        "time_limit": -1,
                        "lost_workers": True,
                        "client": {"nothing": 1},
                        "retries": 3,
                    },
                }
            }
        ):
            backend = self.backend()
            errors = list(backend.check())
            assert [one.id for one in errors] == ["tickwheel.E001"] * 11 + ["tickwheel.E002"]
            assert all(one.hint for one in errors)
            texts = " ".join(one.msg for one in errors)
            for name in ("url", "via", "database", "prefix", "lease", "attempts", "delays", "retries", "a/b"):
                assert name in texts
            with pytest.raises(ImproperlyConfigured):
                tasks.add.using(queue_name="default").enqueue(1)

    def test_checks_of_an_app_that_is_missing(self) -> None:
        assert list(self.backend().check()) == []
        with override_settings(INSTALLED_APPS=[]):
            (error,) = self.backend().check()
            assert (error.id, "INSTALLED_APPS" in error.hint) == ("tickwheel.E003", True)

    def test_checks_of_a_relay_that_cannot_be(self) -> None:
        with with_options(via="outbox"):
            assert list(self.backend().check()) == []
            with mock.patch.object(connection, "vendor", "oracle"):
                (error,) = self.backend().check()
            assert (error.id, "direct" in error.hint) == ("tickwheel.E004", True)
            with mock.patch.dict(sys.modules, {"sqlalchemy": None}):
                (warning,) = self.backend().check()
            assert (warning.id, "pip install" in warning.hint) == ("tickwheel.W001", True)

    def test_worker_words(self) -> None:
        for words, text in (
            (["nothing"], "is no queue of this backend"),
            (["--threads", "0"], "must be 1 or more"),
            (["--drain", "-1"], "above 0"),
            (["--backend", "other"], "other"),
            (["--backend", "nope"], "TASKS has no backend 'nope'. Name one with --backend: "),
            (["--backend", "any"], "name the queues"),
        ):
            with self.assertRaisesMessage(CommandError, text):
                call_command("tickwheel_worker", *words)


class ScheduleTests(ProjectTests):
    """Schedules of the settings."""

    def synchronise(self, *words: str) -> list[str]:
        """What the command says."""
        call_command("tickwheel_schedules", *words, stdout=(out := Lines()))
        return out.lines

    def test_synchronising(self) -> None:
        path = "tests.support.frameworks.django_project.tasks"
        first = {
            "hourly": {"task": f"{path}.write", "args": ["tick"], "every": HOUR, "overlap": "skip"},
            "nightly": {"task": f"{path}.add", "args": [1], "cron": "0 3 * * *", "priority": 10},
        }
        client = self.client_of_broker()
        client.create_schedule("django.by-hand", "django.default", cron="0 0 1 1 *")
        with override_settings(TICKWHEEL_SCHEDULES=first):
            planned = self.synchronise("--dry-run")
            assert planned[-1] == "2 declared, 2 would change."
            assert len(client.schedules()) == 1
            assert self.synchronise()[-1] == "2 declared, 2 changed."
            assert self.synchronise() == ["2 declared, 0 changed."]
            nightly = client.schedule("django.nightly")
            assert (nightly.tz, nightly.cron, nightly.priority) == ("Europe/Paris", "0 3 * * *", 115)
            ran = self.advance(HOUR * 3)
            assert [one.return_value for one in ran if one.task.name == "write"] == [None] * 3
        second = {"hourly": {**first["hourly"], "args": ["tock"]}}
        with override_settings(TICKWHEEL_SCHEDULES=second):
            assert sorted(line.split()[0] for line in self.synchronise()) == ["1", "change", "delete"]
            self.advance(HOUR)
        assert {one.name for one in client.schedules()} == {"django.by-hand", "django.hourly"}
        assert [one.text for one in Letter.objects.order_by("pk")] == ["tick", "tick", "tick", "tock"]
        assert TaskRecord.objects.filter(schedule="hourly").count() == 4

    def test_schedules_of_others_stay(self) -> None:
        """Another project has this broker, the same prefix, and a schedule that this one does not declare."""
        path = "tests.support.frameworks.django_project.tasks"
        theirs = {"count": {"task": f"{path}.add", "args": [1], "every": HOUR}}
        ours = {"hourly": {"task": f"{path}.write", "args": ["tick"], "every": HOUR}}
        client = self.client_of_broker()
        with override_settings(TICKWHEEL_SCHEDULES=theirs, ROOT_URLCONF="bakery.urls"):
            self.synchronise()
        with override_settings(TICKWHEEL_SCHEDULES=ours):
            assert [line.split()[0] for line in self.synchronise()] == ["create", "1"]
        with override_settings(TICKWHEEL_SCHEDULES={**ours, **theirs}):
            before = client.schedules()
            with self.assertRaisesMessage(CommandError, "is not of this project"):
                self.synchronise()
            assert client.schedules() == before
        with override_settings(TICKWHEEL_SCHEDULES={}):
            assert [line.split()[0] for line in self.synchronise()] == ["delete", "0"]
        assert [one.name for one in client.schedules()] == ["django.count"]

    def test_a_slot_that_is_delivered_again_runs_once(self) -> None:
        path = "tests.support.frameworks.django_project.tasks.write"
        schedule = {"hourly": {"task": path, "args": ["tick"], "every": HOUR}}
        with override_settings(TICKWHEEL_SCHEDULES=schedule):
            self.synchronise()
            (ran,) = self.advance(HOUR)
            (message,) = self.client_of_broker().browse("django.mails", limit=1)
            self.client_of_broker().redeliver(id=message.id, acked=True)
            assert [one.id for one in self.run_tasks()] == [ran.id]
        assert Letter.objects.count() == 1

    def test_what_is_wrong(self) -> None:
        from tickwheel.django.checks import check_schedules

        path = "tests.support.frameworks.django_project.tasks.add"
        wrong: dict[str, Any] = {
            "a": 1,
            "b": {"task": path},
            "c": {"task": "nothing.there", "cron": "* * * * *"},
            "d": {"task": "tests.support.frameworks.django_project.tasks.no_task", "every": 1},
            "e": {"task": path, "every": 1, "queue": "unknown"},
            "f": {"task": path, "every": 0},
            "g": {"task": path, "every": 1, "args": [object()]},
            "h": {"task": path, "every": 1, "overlap": "often"},
            "i j": {"task": path, "every": 1},
            "k": {"task": path, "every": 1, "at": "noon"},
        }
        with override_settings(TICKWHEEL_SCHEDULES=wrong):
            errors = list(check_schedules())
            assert [one.id for one in errors] == ["tickwheel.E010"] * len(wrong)
            assert all(one.hint for one in errors)
            with pytest.raises(CommandError):
                self.synchronise()
        with override_settings(TICKWHEEL_SCHEDULES={"a": {"task": path, "cron": "61 * * * *"}}):
            assert list(check_schedules()) == []
            with self.assertRaisesMessage(CommandError, "BadSchedule"):
                self.synchronise("--dry-run")


class PageTests(ProjectTests):
    """The admin and the health page."""

    available_apps = None

    def test_admin(self) -> None:
        from django.contrib.auth.models import User
        from django.test import Client

        User.objects.create_superuser("admin", password="x")
        client = Client()
        client.login(username="admin", password="x")
        failed, waiting = (
            tasks.fail.enqueue("<b>"),
            tasks.add.using(run_after=timezone.now() + HOUR).enqueue(1),
        )
        self.run_tasks()
        page = client.get("/admin/tickwheel/taskrecord/")
        assert page.status_code == 200
        assert failed.id in page.content.decode()
        page = client.get(f"/admin/tickwheel/taskrecord/{failed.id}/change/")
        assert "&lt;b&gt;" in page.content.decode()
        assert "<b>" not in page.content.decode()
        assert client.get("/admin/tickwheel/taskrecord/add/").status_code == 403
        chosen = {"action": "cancel_tasks", "_selected_action": [waiting.id, failed.id]}
        page = client.post("/admin/tickwheel/taskrecord/", chosen, follow=True)
        assert "1 cancelled" in page.content.decode()
        assert "1 already acked" in page.content.decode()
        waiting.refresh()
        assert waiting.errors[0].exception_class is TaskCancelled

    def test_health(self) -> None:
        from django.test import Client

        tasks.add.enqueue(1), tasks.fail.enqueue()
        self.run_tasks()
        answer = Client().get("/health/tasks/")
        default = answer.json()["backends"]["default"]
        assert (answer.status_code, default["broker"], default["database"]) == (200, "ok", "ok")
        assert default["queues"]["default"] == {"backlog": 0, "running": 0, "workers": 0, "dead": 1}
        self.tickwheel.close()
        with with_options(client={"connect_timeout": 0.05}):
            answer = Client().get("/health/tasks/")
            assert (answer.status_code, answer.json()["ok"]) == (503, False)
        with with_options(via="outbox", client={"connect_timeout": 0.05}):
            tasks.add.enqueue(1)
            answer = Client().get("/health/tasks/")
            state = answer.json()["backends"]["default"]
            assert (answer.status_code, state["unsent"], "NotConnected" in state["broker"]) == (200, 1, True)
        assert Client().post("/health/tasks/").status_code == 405


class Lines:
    """What a command writes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        """See TextIO."""
        self.text += text

    def flush(self) -> None:
        """See TextIO."""

    def isatty(self) -> bool:
        """See TextIO."""
        return False

    @property
    def lines(self) -> list[str]:
        """Without the ends."""
        return self.text.splitlines()
