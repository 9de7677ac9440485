"""What waits under the id of a schedule of Taskiq, at most one thing, and how it is replaced.

A task with a time is a message, under one of the keys that follow from the id: the key of a message that has run is
taken until the message is purged. Where all keys are taken, and where the id was a schedule of the broker once, it is a
schedule of one slot. A message takes the place of a message in one transaction, a schedule that of a schedule in one
request. From one to the other the new thing comes first, and then the old thing goes: whoever is killed between has
lost nothing, and of several that set an id at once the last wins.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tickwheel.client.admin.schedules import Schedule
from tickwheel.client.client import Client
from tickwheel.client.times import EpochMs
from tickwheel.errors import BadSchedule, TransactionRefused, UnknownSchedule
from tickwheel.sharing.copy_keys import copy_keys, copy_keys_to_try

_DAY: Final = timedelta(days=1)
"""The interval of a schedule of one slot: the next slot lies behind its end."""


def is_once(schedule: Schedule) -> bool:
    """Whether a schedule is a task with a time."""
    return schedule.start_ms == schedule.until_ms


class Waiting:
    """What waits under one id."""

    def __init__(self, client: Client, topic: str, schedule_id: str, *, name: str) -> None:
        """``name``: of the broker's schedule."""
        self._client = client
        self._topic = topic
        self._name = name
        self._key = f"schedule:{schedule_id}"
        self._keys = [self._key, *copy_keys(self._key)]

    async def add_once(self, body: bytes, time: datetime, message: dict[str, Any]) -> None:
        """A task with a time, if nothing has, or had, the first key of the id. ``message``: priority and headers."""
        await self._client.send(self._topic, body, key=self._key, deliver_at=time, **message)

    async def set_once(self, body: bytes, time: datetime, message: dict[str, Any]) -> None:
        """A task with a time takes the place of what waits."""
        is_later = time > datetime.now(UTC)
        if is_later and await self._is_scheduled() and await self._set_slot(body, time, message):
            return
        if await self._send(body, time, message):
            if await self._is_scheduled():  # made meanwhile, or its time has passed
                await self._set_slot(body, time, message)
        elif not await self._set_slot(body, time, message):  # the time has passed
            await self.send_first(body, message)

    async def _set_slot(self, body: bytes, time: datetime, message: dict[str, Any]) -> bool:
        """As a schedule of one slot. False: its time has passed, so nothing comes of the schedule any more."""
        slot = {"every": _DAY, "start": time, "until": time, "catch_up": "last", "overlap": "allow"}
        try:
            schedule = await self._set({"body": body, **message, **slot})
        except BadSchedule:
            return False
        if not schedule.next_ms and not schedule.paused:
            return False
        await self._cancel()
        return True

    async def set_recurring(self, body: bytes, rhythm: dict[str, Any], message: dict[str, Any]) -> None:
        """A schedule of the broker takes the place of what waits."""
        await self._set({"body": body, **message, **rhythm})
        await self._cancel()

    async def send_first(self, body: bytes, message: dict[str, Any]) -> None:
        """A task that is due now, beside the schedule; it goes with what waits when the id is set again."""
        for key in (self._key, *copy_keys_to_try(self._key)):
            if not (await self._client.send(self._topic, body, key=key, **message)).duplicate:
                return

    async def delete(self) -> None:
        """Nothing waits any more."""
        with suppress(UnknownSchedule):
            await self._client.delete_schedule(self._name)
        await self._cancel()

    async def _send(self, body: bytes, time: datetime, message: dict[str, Any]) -> bool:
        """Puts a message in the place of the message that waits, or where there is none. False: all keys are taken by
        messages that have run."""
        sent = await self._client.send(self._topic, body, key=self._key, deliver_at=time, **message)
        if not sent.duplicate:
            return True
        for key in self._keys:
            with suppress(TransactionRefused):  # no message has the key, or the message was delivered
                async with self._client.transaction() as replacing:
                    replacing.cancel(self._topic, key=key)
                    replacing.send(self._topic, body, key=key, deliver_at=time, **message)
                return True
        for key in self._keys:
            sent = await self._client.send(self._topic, body, key=key, deliver_at=time, **message)
            if not (sent.duplicate and sent.differs):
                return True
        return False

    async def _cancel(self) -> None:
        await self._client.cancel(self._topic, keys=self._keys)

    async def _is_scheduled(self) -> bool:
        try:
            return (await self._client.schedule(self._name, count=0)).topic == self._topic
        except UnknownSchedule:
            return False

    async def _set(self, fields: dict[str, Any]) -> Schedule:
        """Makes the schedule, or changes it if it is there. A pause of it stays."""
        fields = {"start": EpochMs(0), **fields}
        unset = [name for name in ("until", "priority") if fields.get(name) is None]
        schedule, _ = await self._client._put_schedule(self._name, self._topic, unset=unset, **fields)
        return schedule
