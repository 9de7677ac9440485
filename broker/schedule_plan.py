"""Recurring schedules, pure: which slots a schedule has, and what to do with those that have come.

A slot is a moment at which a schedule sends a message. Cron expressions are read by cronsim, in the schedule's zone,
with Debian cron's rule for daylight saving: a fixed time that falls into the hour that is skipped comes right after
it, one that falls into the hour that is repeated comes once; expressions with a step (``*/30``) go on by elapsed time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from tickwheel.protocol.errors import BadSchedule
from tickwheel.protocol.limits import MAX_TIME_MS

LATE_MS: Final = 5_000
"""A slot that is later than this was missed: the broker was down, or the schedule paused."""

MOST_CAUGHT_UP: Final = 1_000
LEAD_MS: Final = 5_000
"""A message is sent so long before its slot, so that the wheel delivers it to the millisecond."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS: Final = 366 * 86_400_000


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule says, and how far it is; times in epoch ms, durations in ms."""

    name: str
    topic: str
    cron: str = ""
    tz: str = "UTC"
    every_ms: Annotated[int, msgspec.Meta(ge=0)] = (
        0  #: instead of cron: a fixed interval, from ``start_ms`` on
    )
    start_ms: int = 0
    until_ms: int = MAX_TIME_MS
    body: bytes = b""
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
    priority: int | None = None
    overlap: Literal["allow", "skip"] = "allow"
    catch_up: Literal["none", "last", "all"] = "last"
    window_ms: Annotated[int, msgspec.Meta(ge=0, le=_YEARS)] = 0
    paused: bool = False
    last_slot_ms: int = 0  #: all slots up to here are done with
    last_id: int = 0  #: the message of the last slot that was sent
    sent: int = 0
    skipped: int = 0
    missed: int = 0


def check(schedule: Schedule) -> None:
    """Raises BadSchedule with what is wrong."""
    if bool(schedule.cron) == bool(schedule.every_ms):
        raise BadSchedule("A schedule needs either a cron expression or an interval.")
    _zone(schedule.tz)
    if schedule.cron:
        try:
            first = next(slots(schedule, schedule.last_slot_ms), None)
        except CronSimError as error:
            raise BadSchedule(f"The cron expression {schedule.cron!r} cannot be read: {error}.") from None
        if first is None:
            raise BadSchedule(f"The cron expression {schedule.cron!r} never comes true.")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(
            f"There is no time zone {name!r}.", advice="Use a name such as Europe/Paris or UTC."
        ) from None


def slots(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """The slots after a moment, in order, up to the schedule's end."""
    times = _cron_slots(schedule, after_ms) if schedule.cron else _interval_slots(schedule, after_ms)
    for slot_ms in times:
        if slot_ms > schedule.until_ms:
            return
        yield slot_ms


def _interval_slots(schedule: Schedule, after_ms: int) -> Iterator[int]:
    number = max(0, (after_ms - schedule.start_ms) // schedule.every_ms + 1)
    while True:
        yield schedule.start_ms + number * schedule.every_ms
        number += 1


def _cron_slots(schedule: Schedule, after_ms: int) -> Iterator[int]:
    after = max(after_ms, schedule.start_ms - 1)
    moment = (_EPOCH + timedelta(milliseconds=after)).astimezone(_zone(schedule.tz))
    for found in CronSim(schedule.cron, moment):
        yield (found.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


def upcoming(schedule: Schedule, now_ms: int, count: int) -> list[int]:
    """The next slots, whatever happened before."""
    return list(islice(slots(schedule, now_ms), count))


def wake_ms(schedule: Schedule) -> int | None:
    """When there is something to do next; None: never."""
    if schedule.paused:
        return None
    slot_ms = next(slots(schedule, schedule.last_slot_ms), None)
    if slot_ms is None:
        return None
    # Whether the one before is done can only be said when the slot has come.
    return slot_ms if schedule.overlap == "skip" else slot_ms - LEAD_MS


def due_slots(schedule: Schedule, now_ms: int) -> tuple[list[int], int, int]:
    """(slots to send now, how many were missed for good, up to which slot all is decided then)."""
    lead_ms = 0 if schedule.overlap == "skip" else LEAD_MS
    come: list[int] = []
    missed = 0
    reached_ms = schedule.last_slot_ms
    for slot_ms in slots(schedule, schedule.last_slot_ms):
        if slot_ms > now_ms + lead_ms:
            break
        reached_ms = slot_ms
        come.append(slot_ms)
        if len(come) > MOST_CAUGHT_UP:
            come.pop(0)
            missed += 1
    late = [slot_ms for slot_ms in come if slot_ms < now_ms - LATE_MS]
    in_time = come[len(late) :]
    kept = {"none": [], "last": late[-1:] if not in_time else [], "all": late}[schedule.catch_up]
    return [*kept, *in_time], missed + len(late) - len(kept), reached_ms


def due_ms(schedule: Schedule, slot_ms: int) -> int:
    """When the message of a slot is due: at the slot, or at its own place in the window, always the same one."""
    if not schedule.window_ms:
        return slot_ms
    digest = hashlib.blake2b(f"{schedule.name}/{slot_ms}".encode(), digest_size=8).digest()
    return slot_ms + int.from_bytes(digest, "little") % schedule.window_ms


def key_of(schedule: Schedule, slot_ms: int) -> str:
    """Of the message of a slot: sending it twice stores it once. Names are at most 128 characters."""
    return f"~schedule/{schedule.name}/{slot_ms}"
