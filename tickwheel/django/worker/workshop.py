"""All queues of one process: a subscription each, threads that run their tasks, and who looks at the time they take."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import connections

from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.options import BackendOptions
from tickwheel.django.worker.execution import Execution, Running
from tickwheel.protocol.errors import TopicExists, UnknownTopic
from tickwheel.sync import Client
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.outcomes import GiveUp, Kind, Outcome, Retry
from tickwheel.worker.threads import ThreadWorker
from tickwheel.worker.worker import asked

_LOOK_S: Final = 0.2
"""How often the time of tasks is looked at."""

_log = logging.getLogger("tickwheel.django.worker")


class Workshop:
    """Runs tasks until `stop`. Use it once."""

    def __init__(
        self,
        *,
        backend: TickwheelBackend,
        client: Client,
        queues: Sequence[str],
        threads: int,
        drain: timedelta,
        time_limit: timedelta | None,
    ) -> None:
        """``threads``: of each queue. ``drain``: how long tasks that run may take when it is told to stop."""
        self._options = backend.settings
        self._client = client
        self._time_limit = time_limit
        self._execution = Execution(backend)
        self._worker_of = {
            self._options.topic_of(queue): self._worker(queue, threads, drain) for queue in queues
        }
        self._is_stopping = threading.Event()
        self._failed: BaseException | None = None
        self.has_expired = False
        """Whether a task was over its time limit: the thread that runs it cannot be stopped, so the process must."""

    def _worker(self, queue: str, threads: int, drain: timedelta) -> ThreadWorker:
        options = Options(
            group=self._options.group,
            concurrency=threads,
            prefetch=self._options.prefetch,
            max_hold=self._options.longest_lease,
        )
        handler = Handler(self._options.topic_of(queue), self._handle, options)
        subscribe = partial(self._client.subscribe_as, handler.topic, handler.group, asked(handler))
        return ThreadWorker(handler, subscribe, drain)

    def _handle(self, message: Any) -> Any:
        return self._execution(message)

    def run(self) -> None:
        """Until `stop`, until a queue cannot be served, or until a task has taken too long; and then until the
        others have ended. Raises what a subscription raises."""
        for topic in self._worker_of:
            prepare_topic(self._client, topic, self._options)
        threads = [
            threading.Thread(target=self._serve, args=(worker,), name="tickwheel-queue", daemon=True)
            for worker in self._worker_of.values()
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._look()
            threads[0].join(_LOOK_S) if threads[0].is_alive() else time.sleep(_LOOK_S / 10)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Begin no more tasks, and finish those that are begun. A second time: do not wait for them."""
        self._is_stopping.set()
        for worker in self._worker_of.values():
            worker.stop()

    def _serve(self, worker: ThreadWorker) -> None:
        try:
            worker.run()
        except BaseException as error:
            self._failed = self._failed or error
        finally:
            connections.close_all()
            if not self._is_stopping.is_set():
                self.stop()

    # -- time --

    def _look(self) -> None:
        if self._time_limit is None:
            return
        now_s = time.monotonic()
        for run in self._execution.running():
            if not run.is_over and now_s - run.began_s > self._time_limit.total_seconds():
                self._expire(run)
        if self.has_expired and not any(not run.is_over for run in self._execution.running()):
            self.stop()  # those that are left never end

    def _expire(self, run: Running) -> None:
        assert self._time_limit is not None
        worker = self._worker_of[run.message.topic]
        withdraw = partial(worker.withdraw, run.message)
        try:
            said = self._execution.expire(run, self._time_limit, withdraw)
        except Exception:
            _log.exception("a task is over its time limit, and this cannot be written down")
            said = Retry()
        finally:
            connections.close_all()
        if said is None:
            return
        _log.error("message %s is over its time limit; this process ends", run.message.id)
        if isinstance(said, GiveUp):
            worker.tell(run.message, Outcome(Kind.GIVEN_UP, reason=said.reason))
        else:
            worker.tell(run.message, Outcome(Kind.TIMED_OUT, said.after_ms, said.reason))
        self.has_expired = True
        if not self._is_stopping.is_set():
            self.stop()


def prepare_topic(client: Client, topic: str, options: BackendOptions) -> None:
    """Makes the topic of a queue, with the lease that the options ask for; one that is there gets it."""
    settings: dict[str, Any] = {} if options.lease is None else {"ack_wait": options.lease}
    while True:
        with suppress(TopicExists):
            client.create_topic(topic, **settings)
            return
        with suppress(UnknownTopic):  # it was deleted meanwhile
            _set_topic(client, topic, settings)
            return


def _set_topic(client: Client, topic: str, settings: dict[str, Any]) -> None:
    if client.topic(topic).settings.get("max_attempts"):
        _log.warning(
            "topic %r has max_attempts: its broker may give tasks up before their attempts are used",
            topic,
        )
    if settings:
        client.set_topic(topic, **settings)
