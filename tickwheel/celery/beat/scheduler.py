"""What ``celery beat -S tickwheel`` runs: it writes the entries into schedules of the broker, and then only watches."""

from __future__ import annotations

import copy
import logging
import time
from datetime import timedelta
from typing import Any, Final

from celery.beat import ScheduleEntry, Scheduler, event_t
from celery.schedules import crontab, solar
from celery.utils.log import get_logger

from tickwheel import sync
from tickwheel.celery.beat.errors import NotOnBroker
from tickwheel.celery.beat.message import task_message
from tickwheel.celery.beat.plan import Plan, app_mark, name_of, plan
from tickwheel.celery.beat.synchronisation import Synchronisation
from tickwheel.celery.broker import client_of
from tickwheel.celery.slots import SCHEDULE_HEADER, Mark, Slot
from tickwheel.client.times import EPOCH
from tickwheel.errors import ConfigError, TickwheelError

_RETRY_S: Final = 5.0
"""Until a broker is asked again that could not be reached."""
_WATCH_S: Final = 60.0
"""Between two looks at the broker's schedules."""
_CLIENT: Final = "celery beat"
_MINUTE: Final = timedelta(minutes=1)

_log: logging.Logger = get_logger(__name__)


class TickwheelScheduler(Scheduler):  # type: ignore[misc]
    """Celery's scheduler whose entries the broker keeps.

    It writes when it starts and when ``beat_schedule`` changes in its process. At other times it looks whether the
    broker's schedules are still those, and says so when they are not: a beat of an older version that is still running
    takes nothing back that a newer one has written. Entries that a schedule of the broker cannot express it keeps
    itself, as Celery does.
    """

    schedule: Any
    """The entries by name; the base class has it."""

    def __init__(self, app: Any, *args: Any, **options: Any) -> None:
        self._client: sync.Client | None = None
        self._plan = Plan({}, {})
        self._configured: dict[str, Any] = {}
        self._is_written = False
        self._watched_at_s = 0.0
        self._said = ""
        super().__init__(app, *args, **options)

    def setup_schedule(self) -> None:
        """Takes the entries from the configuration."""
        configured = self.app.conf.beat_schedule or {}
        self.merge_inplace(configured)
        self.install_default_entries(self.schedule)
        self._configured = copy.copy(configured)

    @property
    def info(self) -> str:
        """For the banner."""
        return f"    . schedules -> {client_of(self.app, _CLIENT).url}"

    def tick(self, *args: Any, **options: Any) -> float:
        """Does what is to be done now; the seconds until there may be more to do."""
        self._read_configuration()
        wait_s: float = super().tick(*args, **options)  # plans, if entries have changed
        return min(wait_s, self._meet_broker())

    def populate_heap(self, *args: Any, **options: Any) -> None:
        """Called when entries have changed: decides which of them the broker keeps."""
        self._plan = plan(self.app, self.schedule)
        self._is_written = False
        for name, reason in self._plan.own.items():
            _log.warning("beat itself keeps the entry %r, because %s", name, reason)
        self._heap_own()

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Sends the task of an entry that beat keeps itself: once for each slot, however many beats there are, if the
        slot follows from the entry."""
        if type(entry.schedule) in (crontab, solar):
            try:
                self._send_slot(entry)
                return
            except NotOnBroker:
                pass  # its message is made when it is sent
            except TickwheelError as error:
                _log.error("beat: the entry %r was not sent: %s", entry.name, error)
                return
        super().apply_entry(entry, producer)

    def close(self) -> None:
        """Ends the connection; what the broker keeps goes on."""
        try:
            super().close()
        finally:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _read_configuration(self) -> None:
        configured = self.app.conf.beat_schedule or {}
        if configured != self._configured:
            self._configured = copy.copy(configured)
            self.merge_inplace(configured)
            self.install_default_entries(self.schedule)

    def _heap_own(self) -> None:
        """The heap that Celery's tick works off has only what beat keeps itself."""
        everything = self.schedule
        try:
            self.schedule = {name: everything[name] for name in self._plan.own}
            super().populate_heap(event_t)
        finally:
            self.schedule = everything

    def _meet_broker(self) -> float:
        """Writes what is not written, or looks whether it still stands; the seconds until it is to be done again."""
        try:
            if not self._is_written:
                self._write()
            elif time.monotonic() - self._watched_at_s >= _WATCH_S:
                self._watch()
        except ConfigError:
            raise
        except (
            TickwheelError
        ) as error:  # it may be full, or be about to end, or a right is missing until it is given
            if self._said != str(error):
                self._said = str(error)
                _log.error("beat: %s It is tried again.", error)
            return _RETRY_S
        return _WATCH_S

    def _write(self) -> None:
        done = self._synchronisation.write(self._plan.schedules.values())
        self._is_written, self._said, self._watched_at_s = True, "", time.monotonic()
        _log.info(
            "beat: the broker keeps %d schedules: %d new, %d changed, %d deleted",
            len(self._plan.schedules) - len(done.foreign) - len(done.refused),
            *map(len, (done.created, done.changed, done.deleted)),
        )
        for name in done.foreign:
            _log.error(
                "beat: the schedule %r is not one of the app %r, so it stays as it is; "
                "give the entry another name, or delete the schedule",
                name,
                app_mark(self.app),
            )
        self._keep_refused(done.refused)

    def _keep_refused(self, refused: dict[str, str]) -> None:
        if not refused:
            return
        for entry, planned in list(self._plan.schedules.items()):
            if planned.name in refused:
                _log.error(
                    "beat itself keeps the entry %r, because the broker says: %s",
                    entry,
                    refused[planned.name],
                )
                del self._plan.schedules[entry]
                self._plan.own[entry] = refused[planned.name]
        self._heap_own()

    def _watch(self) -> None:
        self._watched_at_s = time.monotonic()
        found = self._synchronisation.compare(self._plan.schedules.values())
        said = (
            f"missing: {', '.join(found.missing) or 'none'}; changed: {', '.join(found.changed) or 'none'}; "
            f"not in beat_schedule: {', '.join(found.superfluous) or 'none'}"
        )
        if found and said != self._said:
            _log.warning("beat: the broker's schedules are not those of this beat any more (%s)", said)
        self._said = said if found else ""

    @property
    def _synchronisation(self) -> Synchronisation:
        return Synchronisation(self._broker, app_mark(self.app))

    @property
    def _broker(self) -> sync.Client:
        if self._client is None:
            client = client_of(self.app, _CLIENT)
            client.__enter__()
            self._client = client
        return self._client

    def _send_slot(self, entry: ScheduleEntry) -> None:
        """Raises NotOnBroker, TickwheelError."""
        # A slot of both kinds is told to the minute by each beat, whenever it looks.
        due = entry.default_now() + entry.schedule.remaining_estimate(entry.last_run_at)
        slot_ms = round((due - EPOCH) / _MINUTE) * 60_000
        slot = Slot(name_of(self.app, entry.name), slot_ms)
        message = task_message(self.app, entry, Mark(app_mark(self.app), entry.name))
        sent = self._broker.send(
            message.topic,
            message.body,
            key=f"celery-beat/{slot.name}/{slot_ms}",
            priority=message.priority,
            headers={**message.headers, SCHEDULE_HEADER: {"name": slot.name, "slot_ms": slot_ms}},
        )
        if sent.duplicate:
            _log.debug("beat: another beat has sent %s of %s", entry.name, slot.time)
        else:
            _log.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
