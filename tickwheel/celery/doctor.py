"""What may be wrong between an app of Celery and its broker, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from celery import Celery
from celery.backends.base import DisabledBackend

from tickwheel import sync
from tickwheel.celery.beat.plan import Plan, app_mark, configured_entries, plan
from tickwheel.celery.beat.synchronisation import Synchronisation
from tickwheel.celery.broker import client_of, queues_of
from tickwheel.celery.control import Control
from tickwheel.celery.names import GROUP, SCHEDULE_PREFIX
from tickwheel.celery.slots import mark_of
from tickwheel.celery.waiting import Queue
from tickwheel.errors import TickwheelError
from tickwheel.stats import TopicStats

_CLIENT: Final = "celery tickwheel doctor"
_CLOCKS_APART_MS: Final = 1_000
_BEAT: Final = "tickwheel"
_START: Final = "Start celery -A … beat -S tickwheel. It may be stopped once it has written."


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Literal["ok", "note", "problem"]
    subject: str
    text: str
    advice: str = ""


def examine(app: Celery, queues: Iterable[str] = ()) -> Iterator[Finding]:
    """Looks at an app, its broker, its queues (and those of these names), and its schedules; changes nothing. What
    keeps it from looking is a finding, too."""
    yield from _configuration(app)
    try:
        with client_of(app, _CLIENT) as client:
            yield from _broker(client)
            yield from _queues(client, queues_of(app, queues))
            yield from _beat(app, client)
    except TickwheelError as error:
        yield Finding("problem", "broker", error.message, error.advice)


def _configuration(app: Celery) -> Iterator[Finding]:
    if app.conf.task_protocol != 2:
        yield Finding("problem", "task_protocol", f"it is {app.conf.task_protocol}", "Set it to 2.")
    if app.conf.broker_transport_options.get("eta") == "worker":
        yield Finding(
            "note",
            "eta",
            "workers hold tasks that wait for their time; the broker does not",
            'Remove "eta" from broker_transport_options.',
        )
    if isinstance(app.control, Control):
        yield Finding("ok", "revoke", "cancels at the broker")
    else:
        yield Finding(
            "note",
            "revoke",
            "tells workers only, and they forget it when they end",
            'Make the app with Celery(…, control="tickwheel.celery.control:Control").',
        )
    if isinstance(app.backend, DisabledBackend):
        yield Finding("note", "results", "there is no result backend; Tickwheel is none")


def _broker(client: sync.Client) -> Iterator[Finding]:
    began_s = time.time()
    now_ms = client.stats().now_ms
    ended_s = time.time()
    yield Finding("ok", "broker", f"{client.url} answers in {(ended_s - began_s) * 1_000:.1f} ms")
    apart_ms = max(began_s * 1_000 - now_ms, now_ms - ended_s * 1_000)
    if apart_ms > _CLOCKS_APART_MS:
        yield Finding(
            "note",
            "clocks",
            f"this machine's clock and the broker's are {apart_ms / 1_000:.1f} s apart",
            "The broker's counts for ETAs; countdown and expires are computed with this machine's.",
        )


def _queues(client: sync.Client, queues: Iterable[Queue]) -> Iterator[Finding]:
    topics = {topic.name: topic for topic in client.topics()}
    for queue in queues:
        topic = topics.get(queue.topic)
        if topic is None:
            yield Finding(
                "note", f"queue {queue.name}", "nothing was ever sent to it, and no worker has read it"
            )
        else:
            yield from _queue(queue, topic)


def _queue(queue: Queue, topic: TopicStats) -> Iterator[Finding]:
    subject = f"queue {queue.name}"
    groups = {group.name: group for group in topic.groups}
    group = groups.get(GROUP)
    backlog = topic.ready if group is None else group.backlog
    workers = 0 if group is None else group.subscribers
    text = f"{topic.scheduled:,} scheduled, {backlog:,} due, {workers:,} {'consumer' if workers == 1 else 'consumers'}"
    if backlog and not workers:
        yield Finding("problem", subject, text, f"Start a worker: celery -A … worker -Q {queue.name}")
    else:
        yield Finding("ok", subject, text)
    if topic.paused:
        yield Finding("problem", subject, "it is paused", f"tickwheel topics resume {queue.topic}")
    if group is not None and group.dead:
        yield Finding(
            "note",
            subject,
            f"dead letters: {group.dead:,}",
            f"tickwheel dead list {queue.topic}",
        )


def _beat(app: Celery, client: sync.Client) -> Iterator[Finding]:
    there = {one.name: one for one in client.schedules(count=0) if one.name.startswith(SCHEDULE_PREFIX)}
    mark = app_mark(app)
    kept = [
        one for one in there.values() if (found := mark_of(one.headers)) is not None and found.app == mark
    ]
    if not app.conf.beat_schedule and not kept:
        return
    if app.conf.beat_scheduler != _BEAT and not kept:
        yield Finding("note", "beat", "the broker keeps no entry of beat_schedule", _START)
        return
    yield from _schedules(client, app, plan(app, configured_entries(app)))
    for one in kept:
        if one.trouble:
            yield Finding("problem", f"schedule {one.name}", one.trouble)
        if one.paused:
            yield Finding(
                "note", f"schedule {one.name}", "it is paused", f"tickwheel schedules resume {one.name}"
            )


def _schedules(client: sync.Client, app: Celery, planned: Plan) -> Iterator[Finding]:
    found = Synchronisation(client, app_mark(app)).compare(planned.schedules.values())
    differences: Mapping[str, list[str]] = {
        "is missing at the broker": found.missing,
        "is another one at the broker": found.changed,
    }
    for text, names in differences.items():
        for name in names:
            yield Finding("problem", f"schedule {name}", text, _START)
    for name in found.superfluous:
        yield Finding("problem", f"schedule {name}", "it is not in beat_schedule any more", _START)
    for name in found.foreign:
        advice = "Give the entry another name, or delete the schedule."
        yield Finding("problem", f"schedule {name}", "it belongs to another app, or to none", advice)
    for entry, reason in planned.own.items():
        yield Finding("note", f"entry {entry}", f"beat itself keeps it, because {reason}", "Let a beat run.")
    if not found:
        count = len(planned.schedules)
        yield Finding("ok", "beat", f"the broker keeps {count:,} of {count + len(planned.own):,} entries")
