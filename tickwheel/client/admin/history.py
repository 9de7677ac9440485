"""What has happened: to one message, and at all."""

from __future__ import annotations

from math import ceil
from typing import Any, Literal, TypeAlias

import msgspec

from tickwheel._moments import moment_or_none
from tickwheel.client.admin.query import query_seconds
from tickwheel.client.checks import one_id, one_key, whole
from tickwheel.client.columns import check_name
from tickwheel.client.requests import Requests
from tickwheel.protocol.bodies.groups import GetHistory
from tickwheel.protocol.bodies.operations import GetEvents
from tickwheel.protocol.errors import BadArgument
from tickwheel.protocol.limits import MAX_HISTORY_EVENTS


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    event: str
    """sent, due, delivered, extended, acked, nacked, released, returned, redelivered, dead, rescheduled, cancelled,
    expired, damaged; and, ``computed``, lease_ended, cascaded."""
    position: int
    """Of its record in the broker's log, or of that from which it follows."""
    time_ms: int | None = None
    """When; None: the log does not say."""
    next_ms: int | None = None
    """When the message is due (sent, rescheduled), its lease ends (delivered, extended), or it goes on (nacked,
    released, redelivered)."""
    group: str = ""
    """Empty: it concerns all groups."""
    epoch: int = 0
    """Of the delivery, as in its receipt."""
    error: str = ""
    """What the consumer said (nacked)."""

    time = moment_or_none("time_ms", none=None)
    next = moment_or_none("next_ms", none=None)


class HistoryEvent(_Event, frozen=True, kw_only=True):
    """Something that happened to a message."""

    after_ms: int | None = None
    """Without ``time_ms``: it was later than this."""
    level: int | None = None
    """To which level of the wheel it came (cascaded)."""
    computed: bool = False
    """It is not in the log, but follows from what is: a lease that ended, a move down the wheel."""

    after = moment_or_none("after_ms", none=None)


class MessageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The life of a message, in the order of the broker's log."""

    id: int
    topic: str
    events: list[HistoryEvent]
    missing: list[str]
    """Why there may have been more: ``purged`` (the log begins later), ``limit`` (more events than were asked for, or
    than fit into an answer), ``time`` (the log was not read to its end), ``damaged`` (a part of it cannot be read)."""

    @property
    def is_complete(self) -> bool:
        """These are all events."""
        return not self.missing


class LoggedEvent(_Event, frozen=True, kw_only=True):
    """Something that happened at the broker."""

    id: int = 0
    """Of the message; 0: it has been purged since."""
    topic: str = ""
    """Empty: it is gone."""


Place: TypeAlias = tuple[int, int]
"""In the broker's log: the position of a record, and how many of its events were told."""


class EventsTail(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened, in the order of the broker's log."""

    events: list[LoggedEvent]
    next: Place
    """Where to go on; it holds over restarts of the broker."""
    more: bool
    """There is more already."""
    has_gap: bool
    """Something before or between these events is gone (purged), or cannot be read."""


class _History(msgspec.Struct, frozen=True):
    history: MessageHistory | None


class HistoryRequests(Requests):
    """Looking back."""

    async def history(  # `timeout` goes to the broker: cancelling the wait alone would let the work go on
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        key: str | None = None,
        limit: int = 1_000,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> MessageHistory | None:
        """What has happened to a message, by its id, or by topic and key: at most ``limit`` events (up to 10,000) that
        the log has, and what follows from them. None: there is no such message, or none any more. ``timeout`` is the
        seconds that the broker may spend on it: a process of its own reads the log from where the message was sent."""
        if (id is None) == (key is None) or (topic is None) != (key is None):
            raise BadArgument("The message meant is not clear.", advice="Give id=, or a topic with key=.")
        timeout_s = query_seconds(timeout)
        if topic is not None:
            check_name(topic)
        request = GetHistory(
            timeout_ms=ceil(timeout_s * 1_000),
            id=None if id is None else one_id(id),
            topic=topic,
            key=None if key is None else one_key(key),
            limit=whole(limit, "limit", 1, MAX_HISTORY_EVENTS),
        )
        return (await self._ask(request, _History, timeout_s)).history

    async def events(  # as in `history`
        self,
        start: Literal["earliest", "latest"] | Place = "latest",
        *,
        limit: int = 1_000,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> EventsTail:
        """What has happened at the broker since ``start``: the beginning of its log, its end (nothing, but the place
        from which to go on), or the ``next`` of an earlier call; at most ``limit`` events (up to 10,000). Only what is
        safe on disk is told. Needs the permission ``query:*``."""
        timeout_s = query_seconds(timeout)
        request = GetEvents(
            start=_place(start),
            timeout_ms=ceil(timeout_s * 1_000),
            limit=whole(limit, "limit", 1, MAX_HISTORY_EVENTS),
        )
        return await self._ask(request, EventsTail, timeout_s)


def _place(start: Any) -> Literal["earliest", "latest"] | Place:
    if isinstance(start, str) and start in ("earliest", "latest"):
        return "earliest" if start == "earliest" else "latest"
    if isinstance(start, str):
        raise BadArgument(
            "That is no place in the log.", advice="Give earliest, latest, or the next of an answer."
        )
    return place_in_log(start)


def place_in_log(given: Any) -> Place:
    """Raises BadArgument."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise BadArgument("That is no place in the log.", advice="Give the next of an answer.")
    return one_id(given[0]), one_id(given[1])
