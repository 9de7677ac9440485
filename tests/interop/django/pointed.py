"""What stands in the place of Django's Dummy and Immediate backends in their tests: Tickwheel's, with a real broker.

The one has two methods that only tests of Django want, and reads them from the table; the other runs what it
enqueues, with what a worker runs tasks with.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.db import connections
from django.tasks.backends import dummy, immediate
from django.test import SimpleTestCase
from django.test.runner import DiscoverRunner

from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.broker import client_of, close_clients
from tickwheel.testing import broker
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.outcomes import Kind

PATIENCE: Final = timedelta(seconds=10)


def beside(work: Callable[[], Any]) -> Any:
    """In a thread, where there is an event loop: Django refuses queries beside one, and tests have some."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()

    def close_after() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(close_after).result()


class DummyBackend(TickwheelBackend):
    """Enqueues, and runs nothing."""

    @property
    def results(self) -> list[Any]:
        """All of them."""
        rows = self.records.rows.order_by("enqueued_at")
        found: list[Any] = beside(lambda: [one.result() for one in rows])
        return found

    def clear(self) -> None:
        """Forgets them."""
        beside(lambda: self.records.rows.all().delete())


class ImmediateBackend(TickwheelBackend):
    """Runs what it has enqueued before ``enqueue`` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """As Django's, by way of the broker."""
        from tickwheel.django.worker.execution import Execution

        result = super().enqueue(task, args, kwargs)
        options = self.settings
        topic = options.topic_of(task.queue_name)
        handler = Handler(topic, Execution(self), Options(group=options.group))
        while True:
            for message in client_of(options).fetch(topic, options.group, wait=PATIENCE):
                outcome = handler.handle_here(message)
                if outcome.kind is Kind.DONE:
                    message.ack(confirm=True)
                else:
                    message.nack(error=outcome.reason, give_up=True)
            result.refresh()
            if result.is_finished:
                return result


class Runner(DiscoverRunner):
    """Puts them there, and tells what came of each test."""

    def setup_test_environment(self, **kwargs: Any) -> None:
        """See DiscoverRunner."""
        super().setup_test_environment(**kwargs)
        self._broker = broker()
        self._broker.__enter__()
        os.environ["TICKWHEEL_URL"] = self._broker.url
        dummy.DummyBackend = DummyBackend
        immediate.ImmediateBackend = ImmediateBackend
        SimpleTestCase.databases = {"default"}  # results are in a table

    def teardown_test_environment(self, **kwargs: Any) -> None:
        """See DiscoverRunner."""
        close_clients()
        self._broker.__exit__(None, None, None)
        super().teardown_test_environment(**kwargs)

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        """See DiscoverRunner."""
        names = [test.id() for test in suite]
        result = super().run_suite(suite, **kwargs)
        bad = [*result.failures, *result.errors]
        # What fails in a part of a test is told by that part.
        failed = {getattr(test, "test_case", test).id() for test, _ in bad}
        told = {"failed": sorted(failed), "passed": sorted(set(names) - failed)}
        Path(os.environ["TICKWHEEL_SUITE"], "told.json").write_text(json.dumps(told))
        return result
