"""Tasks that wait at the broker: list them, take them back, give them another time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from tickwheel import sync
from tickwheel._moments import datetime_of
from tickwheel.celery.keys import task_keys
from tickwheel.celery.slots import mark_of, slot_of
from tickwheel.celery.transport.envelope import ID_HEADER, TASK_HEADER, decode
from tickwheel.client.admin.topics import BrowsedMessage
from tickwheel.client.results import CancelResult, RescheduleResult
from tickwheel.errors import Forbidden, UnknownTopic
from tickwheel.protocol.headers import readable_headers
from tickwheel.protocol.message_states import NOT_DONE

_BROWSED: Final = 1_000
_BODY_BYTES: Final = 65_536
"""Of a body that is larger, the arguments of its task are not shown."""

_GIVEN_OUT: Final = tuple(state for state in NOT_DONE if state != "scheduled")


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
    is_copy: bool = False
    """Its id has another message, or had it."""


class Queue(msgspec.Struct, frozen=True):
    """A queue of Celery, and where its messages lie."""

    name: str
    topic: str


class WaitingTasks:
    """The tasks that wait in some queues of a broker."""

    def __init__(self, client: sync.Client, queues: Sequence[Queue], *, have_all_keys: bool = True) -> None:
        """``have_all_keys``: whether each task has a key that follows from its id, also if it is for now."""
        self._client = client
        self._queues = queues
        self._have_all_keys = have_all_keys

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
        outcomes, changed = self._change(task_ids, lambda ids: self._client.cancel(ids=ids, stop=True))
        messages = self._client.messages(ids=[one.message_id for one in changed]) if changed else []
        return outcomes, [
            CancelledTask(one.task_id, b"", {})
            if message is None
            else CancelledTask(one.task_id, message.body, readable_headers(message) or {})
            for one, message in zip(changed, messages, strict=True)
        ]

    def reschedule(self, task_id: str, eta: datetime | timedelta) -> Outcome:
        """Gives a task that waits another time. Raises TickwheelError (BadTime, NaiveDatetime)."""
        when: dict[str, Any] = {"delay": eta} if isinstance(eta, timedelta) else {"deliver_at": eta}
        outcomes, _ = self._change([task_id], lambda ids: self._client.reschedule(ids=ids, **when))
        return outcomes[task_id]

    def _change(
        self, task_ids: Iterable[str], change: Callable[[list[int]], Sequence[str]]
    ) -> tuple[dict[str, Outcome], list[_Found]]:
        """What became of each task, and which messages were changed."""
        outcomes, changed = dict.fromkeys(task_ids, Outcome.UNKNOWN), list[_Found]()

        def carry_out(found: list[_Found]) -> None:
            results = change([one.message_id for one in found]) if found else []
            self._check_rights(
                [one for one, result in zip(found, results, strict=True) if result == "not_found"]
            )
            for one, result in zip(found, results, strict=True):
                outcome = _OUTCOMES[result]
                outcomes[one.task_id] = min(outcomes[one.task_id], outcome, key=_WEIGHT.index)
                if outcome in _DONE:
                    changed.append(one)

        by_key = [one for queue in self._queues for one in self._by_key(queue, outcomes)]
        carry_out(by_key)
        # What has another key: a task that a schedule sent, or a further message of an id that has very many.
        others = {task_id for task_id, outcome in outcomes.items() if outcome not in _DONE}
        others |= {one.task_id for one in by_key if one.is_copy}
        known = {one.message_id for one in by_key}
        for ids, states in ((others, NOT_DONE), (outcomes.keys() - others, _GIVEN_OUT)):
            if ids and (states is NOT_DONE or not self._have_all_keys):
                found = [one for queue in self._queues for one in self._search(queue, ids, states)]
                carry_out([one for one in found if one.message_id not in known])
        return outcomes, changed

    def _check_rights(self, not_there: list[_Found]) -> None:
        """What may not be changed is said not to be there, but it may be looked at. Raises Forbidden."""
        seen = (
            self._client.messages(ids=[one.message_id for one in not_there], max_body_bytes=0)
            if not_there
            else []
        )
        topics = sorted({message.topic for message in seen if message is not None})
        if topics:
            raise Forbidden(
                f"The token does not allow to change tasks in {', '.join(topics)}.",
                advice=f"It needs the right publish:{topics[0]}.",
            )

    def _by_key(self, queue: Queue, task_ids: Iterable[str]) -> Iterator[_Found]:
        keys = [(key, one, is_copy) for one in task_ids for key, is_copy in task_keys(one)]
        try:
            messages = self._client.messages(queue.topic, keys=[key for key, _, _ in keys], max_body_bytes=0)
        except UnknownTopic:
            return
        for (_, task_id, is_copy), message in zip(keys, messages, strict=True):
            if message is not None:
                yield _Found(task_id, message.id, is_copy)

    def _search(self, queue: Queue, task_ids: set[str], states: Sequence[str]) -> Iterator[_Found]:
        for message in self._browse(queue, states, 0):
            task_id = _task_id(readable_headers(message) or {})
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
    at_broker = readable_headers(message) or {}
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
