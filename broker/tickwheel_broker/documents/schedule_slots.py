"""Recurring schedules, pure: which slots a schedule has, and what to do with those that have come.

A slot is a moment at which a schedule sends a message. Cron expressions are read by cronsim, in the schedule's zone,
with Debian cron's rule for daylight saving: a fixed time that falls into the hour that is skipped comes right after
it, one that falls into the hour that is repeated comes once. An expression whose minute or hour begins with ``*``
(``*/30 2 * * *``), and one with seconds, goes by elapsed time instead: it has no slot in an hour that does not exist.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from tickwheel.protocol.bodies import schedules
from tickwheel.protocol.bodies.base import Priority, TimeMs
from tickwheel.protocol.bodies.wording import of_shape
from tickwheel.protocol.errors import BadSchedule
from tickwheel.protocol.limits import MAX_TIME_MS

LATE_MS: Final = 5_000
"""A message that would be later than this was missed: the broker was down."""

LEAD_MS: Final = 5_000
"""A message is sent so long before its slot, so that the wheel delivers it to the millisecond."""

MOST_CAUGHT_UP: Final = 1_000
MOST_COUNTED: Final = 50_000
"""So many missed slots of a cron expression are counted one by one; of what comes after them only the last are
looked for."""

MOST_IN_WINDOW: Final = 1_000
STEP: Final = 100
"""Slots between two breaks: some milliseconds of work."""
SPAN_MS: Final = 5 * 366 * 86_400_000
"""Time that is looked through between two breaks, where slots are rare; those of 29 February on a Monday are 28 years
apart, and each of them takes some milliseconds."""

WRONG_CLOCK_MS: Final = 86_400_000
"""Slots that lie further ahead than this cannot be done with: the clock was wrong when they were."""

MOST_LOOKED_AT: Final = 2_000
"""Local times of a cron expression, when those are looked for that are skipped."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS: Final = 366 * 86_400_000
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
_FIRST_SPAN_MS: Final = 60_000


def zone_rules() -> str:
    """Which version of the time zones' rules this machine has, as `2025b`; empty: it does not say. Zones are read from
    the system where it has them, and from the package otherwise."""
    for folder in TZPATH:
        with suppress(OSError, UnicodeDecodeError), (Path(folder) / "tzdata.zi").open() as file:
            return file.readline().removeprefix("# version ").strip()
        if (Path(folder) / "UTC").exists():
            return ""
    return str(import_module("tzdata").IANA_VERSION)


class Schedule(schedules.Schedule, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule may say, and how far it is; times in epoch ms, durations in ms."""

    cron: _Text = ""
    tz: _Text = "UTC"
    every_ms: TimeMs = 0
    start_ms: TimeMs = 0
    until_ms: TimeMs = MAX_TIME_MS
    priority: Priority | None = None
    overlap: Literal["allow", "skip"] = "allow"
    catch_up: Literal["none", "last", "all"] = "last"
    window_ms: Annotated[int, msgspec.Meta(ge=0, le=_YEARS)] = 0
    born: int = 0
    """The next message's id when it was made: a message with a lower id is of an earlier schedule."""


OWN: Final = frozenset({"name", "last_slot_ms", "last_id", "sent", "skipped", "missed", "born"})
"""The fields that only the broker sets."""

_RHYTHM: Final = ("cron", "tz", "every_ms", "start_ms", "until_ms", "paused")


class Decision(msgspec.Struct, frozen=True):
    """What to do now: the slots to send, in order; how many were missed for good; up to which slot (epoch ms) all is
    decided then."""

    slots: list[int]
    missed: int
    reached_ms: int


def merged(schedule: Schedule | dict[str, Any], fields: dict[str, Any]) -> Schedule:
    """A schedule, or what is known of a new one, with other fields. Raises BadSchedule."""
    known = schedule if isinstance(schedule, dict) else fields_of(schedule)
    if not fields.keys() <= set(Schedule.__struct_fields__) - OWN:
        raise BadSchedule("The schedule has fields that do not exist, or that only the broker sets.")
    try:
        return msgspec.convert({**known, **fields}, Schedule)
    except msgspec.ValidationError as error:
        raise BadSchedule(f"The schedule was not understood: {of_shape(Schedule, error)}") from None


def fields_of(schedule: Schedule) -> dict[str, Any]:
    """All fields by name."""
    return {name: getattr(schedule, name) for name in Schedule.__struct_fields__}


def says_the_same(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules differ only in how far they are, and in whether somebody has paused them: who declares a
    schedule does not say that."""
    names = set(Schedule.__struct_fields__) - OWN - {"paused"}
    return all(getattr(one, name) == getattr(other, name) for name in names)


def has_other_rhythm(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules may have other slots."""
    return any(getattr(one, name) != getattr(other, name) for name in _RHYTHM)


def check(schedule: Schedule) -> None:
    """Raises BadSchedule with what is wrong."""
    if bool(schedule.cron) == bool(schedule.every_ms):
        raise BadSchedule("A schedule needs either a cron expression or an interval.")
    _zone(schedule.tz)
    if schedule.cron:
        _check_cron(schedule.cron)
    _check_window(schedule)


def _check_cron(expression: str) -> None:
    try:
        first = next(CronSim(expression, _EPOCH), None)
    except (CronSimError, ValueError) as error:
        raise BadSchedule(f"The cron expression {expression!r} cannot be read: {error}.") from None
    if first is None:
        raise BadSchedule(f"The cron expression {expression!r} never comes true.")


def _check_window(schedule: Schedule) -> None:
    """All messages that wait in their window can be called back at once, so they must not be too many."""
    if not schedule.window_ms:
        return
    first_ms = next(slots(schedule, schedule.last_slot_ms), None)
    if first_ms is None:
        return
    end_ms = first_ms + schedule.window_ms
    inside = takewhile(lambda slot_ms: slot_ms < end_ms, slots(schedule, first_ms - 1))
    if len(list(islice(inside, MOST_IN_WINDOW + 1))) > MOST_IN_WINDOW:
        raise BadSchedule(
            f"More than {MOST_IN_WINDOW:,} messages would wait in the window.",
            advice="Use a smaller window, or a schedule that comes less often.",
        )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(
            f"There is no time zone {name!r}.", advice="Use a name such as Europe/Paris or UTC."
        ) from None


def slots(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """The slots after a moment, in order, up to the schedule's end. Raises BadSchedule if there is no such zone."""
    times = _cron_slots(schedule, after_ms) if schedule.cron else _interval_slots(schedule, after_ms)
    return takewhile(lambda slot_ms: slot_ms <= schedule.until_ms, times)


def _interval_slots(schedule: Schedule, after_ms: int) -> Iterator[int]:
    number = max(0, (after_ms - schedule.start_ms) // schedule.every_ms + 1)
    while True:
        yield schedule.start_ms + number * schedule.every_ms
        number += 1


def _cron_slots(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """cronsim reads a fixed time as the first one of a repeated hour, also when it is asked from the second one on, so
    what it says may lie before what it was asked for: that is left out."""
    reached_ms = max(after_ms, schedule.start_ms - 1)
    zone = _zone(schedule.tz)
    try:
        moment = (_EPOCH + timedelta(milliseconds=reached_ms)).astimezone(zone)
        for found in CronSim(schedule.cron, moment):
            slot_ms = (found.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
            if slot_ms > reached_ms:
                reached_ms = slot_ms
                yield slot_ms
    except OverflowError:
        return  # the year 10000


def upcoming(schedule: Schedule, now_ms: int, count: int) -> list[int]:
    """The next slots, whatever happened before. Raises BadSchedule."""
    return list(islice(slots(schedule, now_ms), count))


def upcoming_in_steps(schedule: Schedule, now_ms: int, count: int) -> Iterator[int | None]:
    """The same, one by one, and None wherever something else may come first: many slots take long, and so do rare
    ones. Raises BadSchedule."""
    begin_ms, found = now_ms, 0
    for slot_ms in islice(slots(schedule, now_ms), count):
        yield slot_ms
        found += 1
        if found == STEP or slot_ms - begin_ms >= SPAN_MS:
            yield None
            begin_ms, found = slot_ms, 0


def repeated(schedule: Schedule, slot_ms: int) -> str:
    """Of a slot whose local time comes twice, because clocks were put back: `first` or `second`; empty: it does not."""
    try:
        local = _moment(slot_ms).astimezone(_zone(schedule.tz))
    except OverflowError:
        return ""  # the year 10000
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        return ""
    return "second" if local.fold else "first"


def skipped_in_steps(schedule: Schedule, after_ms: int, until_ms: int) -> Iterator[datetime | None]:
    """The local times of a cron expression that there are not, because clocks were put forward; the first of them, if
    they are many. None wherever something else may come first."""
    if not schedule.cron:
        return
    zone = _zone(schedule.tz)
    try:
        begin, end = (_moment(ms).astimezone(zone).replace(tzinfo=None) for ms in (after_ms, until_ms))
    except OverflowError:
        return  # the year 10000
    looked_at = 0
    for local in islice(_local_times(schedule.cron, begin), MOST_LOOKED_AT):
        if local > end:
            return
        if not _exists(local, zone):
            yield local
        looked_at += 1
        if looked_at == STEP or local - begin >= timedelta(milliseconds=SPAN_MS):
            yield None
            begin, looked_at = local, 0


def _local_times(cron: str, after: datetime) -> Iterator[datetime]:
    """Of a cron expression, whatever clocks do."""
    try:
        yield from CronSim(cron, after)
    except OverflowError:
        return  # the year 10000


def _exists(local: datetime, zone: ZoneInfo) -> bool:
    there = local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
    return there.replace(tzinfo=None) == local


def _moment(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


def handover_ms(schedule: Schedule, slot_ms: int) -> int:
    """When the message of a slot is sent. Usually ahead; but whether the one before is done can only be said at the
    slot, and what is not to be caught up must not lie in the wheel while the broker is down."""
    if schedule.catch_up == "none":
        return due_ms(schedule, slot_ms)
    return slot_ms if schedule.overlap == "skip" else slot_ms - LEAD_MS


def wake_ms(schedule: Schedule) -> int | None:
    """When there is something to do next; None: never. Raises BadSchedule."""
    if schedule.paused:
        return None
    slot_ms = next(slots(schedule, schedule.last_slot_ms), None)
    return None if slot_ms is None else handover_ms(schedule, slot_ms)


def decide(schedule: Schedule, now_ms: int) -> Iterator[Decision | None]:
    """What to do now. It can take long after a long downtime, so it comes in steps: None between them, the decision
    at the end. Raises BadSchedule."""
    if schedule.paused:
        yield Decision([], 0, schedule.last_slot_ms)
        return
    punctual_ms = now_ms - LATE_MS
    past_ms = min(punctual_ms - 1 - schedule.window_ms, schedule.until_ms)
    missed, tail = 0, deque[int](maxlen=MOST_CAUGHT_UP if schedule.catch_up == "all" else 1)
    for count in _walk(schedule, past_ms, tail):
        missed += count
        yield None
    reached_ms = tail[-1] if tail else schedule.last_slot_ms
    come: list[int] = []
    for slot_ms in slots(schedule, max(reached_ms, past_ms)):
        if handover_ms(schedule, slot_ms) > now_ms:
            break
        come.append(slot_ms)
        if len(come) % STEP == 0:
            yield None
    late = [*tail, *(slot_ms for slot_ms in come if due_ms(schedule, slot_ms) < punctual_ms)]
    in_time = [slot_ms for slot_ms in come if due_ms(schedule, slot_ms) >= punctual_ms]
    kept = _caught_up(schedule.catch_up, late, in_time)
    missed += len(late) - len(tail) - len(kept)
    yield Decision(sorted([*kept, *in_time]), missed, come[-1] if come else reached_ms)


def _caught_up(policy: str, late: list[int], in_time: list[int]) -> list[int]:
    if policy == "none" or (policy == "last" and in_time):
        return []
    return late[-1:] if policy == "last" else late[-MOST_CAUGHT_UP:]


def _walk(schedule: Schedule, past_ms: int, tail: deque[int]) -> Iterator[int]:
    """Counts the slots that are not done with up to ``past_ms``, in steps, and leaves the last of them in ``tail``."""
    if past_ms <= schedule.last_slot_ms:
        return
    if schedule.every_ms:
        yield _skip_interval(schedule, past_ms, tail)
        return
    counted = 0
    for slot_ms in slots(schedule, schedule.last_slot_ms):
        if slot_ms > past_ms:
            yield counted % STEP
            return
        tail.append(slot_ms)
        counted += 1
        if counted % STEP == 0:
            yield STEP
        if counted == MOST_COUNTED:
            break
    yield counted % STEP
    yield from _last_before(schedule, past_ms, tail)


def _skip_interval(schedule: Schedule, past_ms: int, tail: deque[int]) -> int:
    """Arithmetic instead of walking: how many slots there are, the last ones into ``tail``."""
    start_ms, every_ms = schedule.start_ms, schedule.every_ms
    first = max(0, (schedule.last_slot_ms - start_ms) // every_ms + 1)
    end = (past_ms - start_ms) // every_ms + 1
    assert tail.maxlen is not None
    tail.extend(start_ms + number * every_ms for number in range(max(first, end - tail.maxlen), end))
    return max(0, end - first)


def _last_before(schedule: Schedule, past_ms: int, tail: deque[int]) -> Iterator[int]:
    """Fills ``tail`` with the last slots up to ``past_ms``, looking further and further back; counts none of them."""
    span_ms, seen = _FIRST_SPAN_MS, 0
    while True:
        begin_ms = max(past_ms - span_ms, schedule.last_slot_ms)
        tail.clear()
        for slot_ms in takewhile(lambda slot_ms: slot_ms <= past_ms, slots(schedule, begin_ms)):
            tail.append(slot_ms)
            seen += 1
            if seen % STEP == 0:
                yield 0
        if len(tail) == tail.maxlen or begin_ms == schedule.last_slot_ms:
            return
        span_ms *= 2
        yield 0


def waiting(schedule: Schedule, now_ms: int, *, in_window: bool) -> list[int]:
    """The slots whose messages were sent and are not due yet: those that have not come, and with ``in_window`` also
    those that have, and whose message waits for its place in the window."""
    after_ms = now_ms - (schedule.window_ms if in_window else 0)
    sent = takewhile(lambda slot_ms: slot_ms <= schedule.last_slot_ms, slots(schedule, after_ms))
    return [slot_ms for slot_ms in sent if due_ms(schedule, slot_ms) > now_ms]


def due_ms(schedule: Schedule, slot_ms: int) -> int:
    """When the message of a slot is due: at the slot, or at its own place in the window, always the same one. With
    catch-up "none" all messages of a schedule have the same place, so that they are due in the order of the slots."""
    if not schedule.window_ms:
        return slot_ms
    seed = schedule.name if schedule.catch_up == "none" else f"{schedule.name}/{slot_ms}"
    digest = hashlib.blake2b(seed.encode(), digest_size=8).digest()
    return min(slot_ms + int.from_bytes(digest, "little") % schedule.window_ms, MAX_TIME_MS)


def after_wrong_clock(schedule: Schedule, now_ms: int) -> Schedule:
    """A schedule that was carried far into the future by a wrong clock goes on from now. What it sent for slots that
    come again is not sent twice: the keys of its messages are known."""
    if schedule.last_slot_ms <= now_ms + WRONG_CLOCK_MS:
        return schedule
    return msgspec.structs.replace(schedule, last_slot_ms=now_ms)


def key_of(schedule: Schedule, slot_ms: int) -> str:
    """Of the message of a slot: sending it twice stores it once. Names are at most 128 characters."""
    return f"~schedule/{schedule.name}/{slot_ms}"


def trigger_key(schedule: Schedule, token: str, *, is_taken: bool = False) -> str:
    """Of a message that was asked for beside the rhythm. Tokens are at most 64 characters. ``is_taken``: another
    schedule, which had the name before, has sent for this token."""
    life = f"now.{schedule.born}" if is_taken else "now"
    return f"~schedule/{schedule.name}/{life}/{token}"
