"""Changing what was sent: by id, by key, or all that a filter means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, TypedDict, Unpack, overload

from tickwheel.client.checks import listed, shown, whole
from tickwheel.client.columns import check_name
from tickwheel.client.requests import NewTime, Requests, size_of, targets, time_or_priority, typed, when
from tickwheel.client.results import CancelResult, ChangeResult, RedeliverResult, RescheduleResult
from tickwheel.client.times import Delay, Moment, moment_ms
from tickwheel.protocol.bodies.requests import Cancel, CancelOk, Reschedule, RescheduleOk
from tickwheel.protocol.bodies.settling import Change, ChangeOk, MessageFilter, Redeliver, RedeliverOk
from tickwheel.protocol.errors import BadArgument
from tickwheel.protocol.limits import MAX_PRIORITY
from tickwheel.protocol.message_states import STATES

_MOMENTS = ("due_from", "due_until", "created_from", "created_until", "done_from", "done_until")
_NUMBERS: Final = {
    "priority_min": partial(whole, low=0, high=MAX_PRIORITY),
    "priority_max": partial(whole, low=0, high=MAX_PRIORITY),
    "epoch_min": partial(whole, low=0, high=0xFFFF_FFFF),
}
_FILTERS = ("states", "priority_min", "priority_max", "epoch_min", "group", *_MOMENTS)


class Where(TypedDict, total=False):
    """Which messages of a topic are meant, as in ``Client.cancel_where``."""

    states: str | Iterable[str] | None
    due_from: Moment | None
    due_until: Moment | None
    created_from: Moment | None
    created_until: Moment | None
    done_from: Moment | None
    done_until: Moment | None
    priority_min: int | None
    priority_max: int | None
    epoch_min: int | None
    group: str | None


def filter_fields(given: Where) -> dict[str, Any]:
    """The fields of a ``MessageFilter`` that these arguments mean. Raises BadArgument, BadTime."""
    fields: dict[str, Any] = {}
    values: dict[str, Any] = {**given}
    for name, value in values.items():
        if name not in _FILTERS:
            raise BadArgument(f"There is no filter {name!r}.", advice=f"Use {', '.join(_FILTERS)}.")
        if value is None:
            continue
        if name in _MOMENTS:
            fields[f"{name}_ms"] = moment_ms(value, name)
        elif name == "states":
            fields[name] = _checked_states(value)
        else:
            fields[name] = _NUMBERS[name](value, name) if name in _NUMBERS else value
    return fields


def _checked_states(states: Any) -> list[Any]:
    """One state or several, as a list. Raises BadArgument."""
    wanted = [states] if isinstance(states, str) else listed(states, "states", '["ready"]')
    for state in wanted:
        if not isinstance(state, str) or state not in STATES:
            raise BadArgument(f"{shown(state)} is no state.", advice=f"Use {', '.join(STATES)}.")
    return wanted


class Changes(Requests):
    """Cancel, reschedule, redeliver."""

    @overload
    async def cancel(self, topic: str, *, key: str, stop: bool = False) -> CancelResult: ...
    @overload
    async def cancel(self, *, id: int, stop: bool = False) -> CancelResult: ...
    @overload
    async def cancel(self, topic: str, *, keys: Sequence[str], stop: bool = False) -> list[CancelResult]: ...
    @overload
    async def cancel(self, *, ids: Sequence[int], stop: bool = False) -> list[CancelResult]: ...
    async def cancel(
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        ids: Sequence[int] | None = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        stop: bool = False,
    ) -> CancelResult | list[CancelResult]:
        """Takes messages back before they are delivered: by id, or by topic and key.

        The result says truthfully whether it came in time; it is one for ``id`` and ``key``, a list for the
        others. ``stop``: a message that was delivered already, and that is not acked, is not delivered again.
        """
        results: list[CancelResult] = []
        for target in targets(topic, id, ids, key, keys):
            body = await self._answer(Cancel(**target, stop=stop), CancelOk)
            results += typed(CancelResult, body.results, size_of(target))
        return results[0] if id is not None or key is not None else results

    @overload
    async def reschedule(self, topic: str, *, key: str, **change: Unpack[NewTime]) -> RescheduleResult: ...
    @overload
    async def reschedule(self, *, id: int, **change: Unpack[NewTime]) -> RescheduleResult: ...
    @overload
    async def reschedule(
        self, topic: str, *, keys: Sequence[str], **change: Unpack[NewTime]
    ) -> list[RescheduleResult]: ...
    @overload
    async def reschedule(
        self, *, ids: Sequence[int], **change: Unpack[NewTime]
    ) -> list[RescheduleResult]: ...
    async def reschedule(
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        ids: Sequence[int] | None = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
    ) -> RescheduleResult | list[RescheduleResult]:
        """Gives messages that were not delivered yet another time, another priority, or both.

        Targets and results are those of ``cancel``.
        """
        found = targets(topic, id, ids, key, keys)
        change = time_or_priority(deliver_at, delay, delay_ms, priority)
        results: list[RescheduleResult] = []
        for target in found:
            body = await self._answer(Reschedule(**target, **change), RescheduleOk)
            results += typed(RescheduleResult, body.results, size_of(target))
        return results[0] if id is not None or key is not None else results

    async def redeliver(
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        ids: Sequence[int] | None = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        group: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        acked: bool = False,
        postpone: bool = False,
        keep_attempts: bool = False,
    ) -> list[RedeliverResult]:
        """Delivers messages again, at once or at a time, to ``group`` or to every group that is not done with them.

        ``acked``: also to those that are done. ``postpone``: what could be delivered again by now waits for the later
        time, too, where otherwise it goes on as it is. A subscriber that holds one loses it: its receipt is stale.
        Attempts are counted from 0 again, unless ``keep_attempts``.
        """
        results: list[RedeliverResult] = []
        options: dict[str, Any] = {
            "group": group,
            "acked": acked,
            "postpone": postpone,
            "keep_attempts": keep_attempts,
        }
        for target in targets(topic, id, ids, key, keys):
            request = Redeliver(**target, **options, **when(deliver_at, delay, delay_ms))
            body = await self._answer(request, RedeliverOk)
            results += typed(RedeliverResult, body.results, size_of(target))
        return results

    async def cancel_where(
        self,
        topic: str,
        /,
        *,
        stop: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        **where: Unpack[Where],
    ) -> ChangeResult:
        """Cancels all messages of a topic that the filter means.

        Filter: ``states`` (of scheduled, ready, leased, waiting, acked, dead), ``due_from``, ``due_until``,
        ``created_from``, ``created_until`` (moments; the upper ones exclusive), ``done_from``, ``done_until`` (when a
        group acked it, or gave it up), ``priority_min``, ``priority_max``, ``epoch_min`` (delivered at least so often),
        ``group``. ``dry_run`` only counts.
        """
        return await self._change("cancel", topic, where, stop=stop, limit=limit, dry_run=dry_run)

    async def reschedule_where(
        self,
        topic: str,
        /,
        *,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        **where: Unpack[Where],
    ) -> ChangeResult:
        """Reschedules all messages of a topic that the filter means; the filter is that of ``cancel_where``."""
        change = time_or_priority(deliver_at, delay, delay_ms, priority)
        return await self._change("reschedule", topic, where, limit=limit, dry_run=dry_run, **change)

    async def redeliver_where(
        self,
        topic: str,
        /,
        *,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        acked: bool = False,
        keep_attempts: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        **where: Unpack[Where],
    ) -> ChangeResult:
        """Delivers again all messages of a topic that the filter means; the filter is that of ``cancel_where``."""
        options: dict[str, Any] = {
            "acked": acked,
            "keep_attempts": keep_attempts,
            **when(deliver_at, delay, delay_ms),
        }
        return await self._change("redeliver", topic, where, limit=limit, dry_run=dry_run, **options)

    async def _change(self, action: Any, topic: str, where: Where, **options: Any) -> ChangeResult:
        check_name(topic)
        wanted = MessageFilter(**filter_fields(where))
        body = await self._answer(Change(action=action, topic=topic, filter=wanted, **options), ChangeOk)
        return ChangeResult(body.matched, body.results)
