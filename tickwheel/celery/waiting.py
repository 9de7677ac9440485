"""Tasks that wait at the broker: list them, take them back, give them another time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from tickwheel import sync
from tickwheel.celery.keys import task_key
from tickwheel.celery.slots import mark_of, slot_of
from tickwheel.celery.transport.envelope import ID_HEADER, TASK_HEADER, decode
from tickwheel.client.admin.topics import BrowsedMessage
from tickwheel.client.results import CancelResult, RescheduleResult
from tickwheel.errors import UnknownTopic
from tickwheel.stats import datetime_of

_RETRIES_TRIED: Final = 16
"""A task's key has the number of its retry, so that many are asked for; what has more is searched for."""

_BROWSED: Final = 1_000
_BODY_BYTES: Final = 65_536
"""Of a body that is larger, the arguments of its task are not shown."""

_WAITING: Final = ("scheduled", "ready", "waiting")


class Outcome(StrEnum):
    """What became of a task that was to be cancelled or rescheduled."""

    CANCELLED = "cancelled"
    """It was waiting at the broker, and will not run."""
    RESCHEDULED = "rescheduled"
    """It was waiting at the broker, and will run at the new time."""
    ALREADY_DELIVERED = "already_delivered"
    """A worker was given it: it waits there, runs, or has run."""
    ALREADY_CANCELLED = "already_cancelled"
    EXPIRED = "expired"
    """Its topic kept it no longer (a retention)."""
    UNKNOWN = "unknown"
    """No queue that was looked through has, or remembers, such a task."""


_OUTCOMES: Final[dict[str, Outcome]] = {
    CancelResult.CANCELLED: Outcome.CANCELLED,
    CancelResult.STOPPED: Outcome.ALREADY_DELIVERED,
    CancelResult.ALREADY_DELIVERED: Outcome.ALREADY_DELIVERED,
    CancelResult.ALREADY_ACKED: Outcome.ALREADY_DELIVERED,
    CancelResult.ALREADY_CANCELLED: Outcome.ALREADY_CANCELLED,
    CancelResult.EXPIRED: Outcome.EXPIRED,
    CancelResult.NOT_FOUND: Outcome.UNKNOWN,
    RescheduleResult.RESCHEDULED: Outcome.RESCHEDULED,
}
_DONE: Final = (Outcome.CANCELLED, Outcome.RESCHEDULED)
_WEIGHT: Final = tuple(Outcome)
"""Of several messages of one task (its retries) the first of these outcomes counts."""


class WaitingTask(msgspec.Struct, frozen=True):
    """A task that waits for its time."""

    id: str
    name: str
    eta: datetime
    """In UTC."""
    queue: str
    args: str
    kwargs: str
    """Both as text (``argsrepr``, ``kwargsrepr``)."""
    retries: int
    priority: int
    """The broker's: 50 is the usual one, lower numbers come first."""
    entry: str
    """Of ``beat_schedule``, if a schedule sent it."""
    message_id: int
    """The broker's."""


class CancelledTask(msgspec.Struct, frozen=True):
    """A task that was taken back, with its message; empty: it is not there any more."""

    id: str
    body: bytes
    headers: dict[str, Any]
    """At the broker."""


class _Found(msgspec.Struct, frozen=True):
    task_id: str
    message_id: int


class _Changed:
    """What became of tasks, and by what those were found that were changed: their ids by topic and key, or by the
    message's id."""

    def __init__(self, outcomes: dict[str, Outcome]) -> None:
        self.outcomes = outcomes
        self.keys: dict[str, dict[str, str]] = {}
        self.ids: dict[int, str] = {}

    def enter(self, task_id: str, result: str, topic: str, which: str | int) -> None:
        """What became of a message of a task."""
        outcome = _OUTCOMES[result]
        self.outcomes[task_id] = min(self.outcomes[task_id], outcome, key=_WEIGHT.index)
        if outcome not in _DONE:
            return
        if isinstance(which, int):
            self.ids[which] = task_id
        else:
            self.keys.setdefault(topic, {})[which] = task_id


class Queue(msgspec.Struct, frozen=True):
    """A queue of Celery, and where its messages lie."""

    name: str
    topic: str


class WaitingTasks:
    """The tasks that wait in some queues of a broker."""

    def __init__(self, client: sync.Client, queues: Sequence[Queue]) -> None:
        self._client = client
        self._queues = queues

    def __iter__(self) -> Iterator[WaitingTask]:
        """Those that wait for their time, in no order that means anything."""
        for queue in self._queues:
            for message in self._browse(queue, ("scheduled",), _BODY_BYTES):
                yield _task_of(queue, message)

    def earliest(self, count: int) -> list[WaitingTask]:
        """Those that are due first, in order."""
        return heapq.nsmallest(count, self, key=lambda task: (task.eta, task.message_id))

    def cancel(self, task_ids: Iterable[str]) -> tuple[dict[str, Outcome], list[CancelledTask]]:
        """Takes tasks back before a worker is given them: what became of each, and those that were. One that was
        delivered and is not acked is not delivered again. Raises TickwheelError."""
        changed = self._change(
            task_ids,
            lambda topic, keys: self._client.cancel(topic, keys=keys, stop=True),
            lambda ids: self._client.cancel(ids=ids, stop=True),
        )
        return changed.outcomes, self._cancelled(changed)

    def reschedule(self, task_id: str, eta: datetime | timedelta) -> Outcome:
        """Gives a task that waits another time. Raises TickwheelError (BadTime, NaiveDatetime)."""
        when: dict[str, Any] = {"delay": eta} if isinstance(eta, timedelta) else {"deliver_at": eta}
        changed = self._change(
            [task_id],
            lambda topic, keys: self._client.reschedule(topic, keys=keys, **when),
            lambda ids: self._client.reschedule(ids=ids, **when),
        )
        return changed.outcomes[task_id]

    def _change(
        self,
        task_ids: Iterable[str],
        by_keys: Callable[[str, list[str]], Sequence[str]],
        by_ids: Callable[[list[int]], Sequence[str]],
    ) -> _Changed:
        changed = _Changed(dict.fromkeys(task_ids, Outcome.UNKNOWN))
        tried = {task_key(one, retries): one for one in changed.outcomes for retries in range(_RETRIES_TRIED)}
        for queue in self._queues:
            with suppress(UnknownTopic):
                for key, result in zip(tried, by_keys(queue.topic, [*tried]), strict=True):
                    changed.enter(tried[key], result, queue.topic, key)
        # What has another key: a later retry, a task that was replaced, one that a schedule sent, or that has no ETA.
        open_ids = {one for one, outcome in changed.outcomes.items() if outcome not in _DONE}
        found = [one for queue in self._queues for one in self._search(queue, open_ids)] if open_ids else []
        if found:
            for one, result in zip(found, by_ids([one.message_id for one in found]), strict=True):
                changed.enter(one.task_id, result, "", one.message_id)
        return changed

    def _cancelled(self, changed: _Changed) -> list[CancelledTask]:
        found = []
        for topic, keys in changed.keys.items():
            found += zip(keys, self._client.messages(topic, keys=[*keys]), strict=True)
        found += (
            zip(changed.ids, self._client.messages(ids=[*changed.ids]), strict=True) if changed.ids else ()
        )
        by_which = {
            **{key: one for keys in changed.keys.values() for key, one in keys.items()},
            **changed.ids,
        }
        return [  # without its message, if that was purged since
            CancelledTask(
                by_which[which], *((b"", {}) if message is None else (message.body, message.headers))
            )
            for which, message in found
        ]

    def _search(self, queue: Queue, task_ids: set[str]) -> Iterator[_Found]:
        for message in self._browse(queue, _WAITING, 0):
            task_id = _task_id(message.headers)
            if task_id in task_ids:
                yield _Found(task_id, message.id)

    def _browse(self, queue: Queue, states: Sequence[str], body_bytes: int) -> Iterator[BrowsedMessage]:
        after_id = 0
        while True:
            try:
                messages = self._client.browse(
                    queue.topic, after_id=after_id, limit=_BROWSED, max_body_bytes=body_bytes, states=states
                )
            except UnknownTopic:
                return
            if not messages:
                return
            yield from messages
            after_id = messages[-1].id


def _task_id(at_broker: dict[str, Any]) -> str:
    slot = slot_of(at_broker)
    return str(at_broker.get(ID_HEADER, "")) if slot is None else slot.task_id


def _task_of(queue: Queue, message: BrowsedMessage) -> WaitingTask:
    at_broker = message.headers
    headers = decode(message.body, at_broker)["headers"] if len(message.body) == message.body_bytes else {}
    mark = mark_of(at_broker)
    retries = headers.get("retries")
    return WaitingTask(
        id=_task_id(at_broker),
        name=str(at_broker.get(TASK_HEADER, "")),
        eta=datetime_of(message.deliver_at_ms),
        queue=queue.name,
        args=str(headers.get("argsrepr") or ""),
        kwargs=str(headers.get("kwargsrepr") or ""),
        retries=retries if isinstance(retries, int) else 0,
        priority=message.priority,
        entry="" if mark is None else mark.entry,
        message_id=message.id,
    )
