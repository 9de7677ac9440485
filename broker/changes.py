"""Requests that change messages after they were sent: one by one, by filter, or together in a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from broker.replying import Caller, check_name, when_durable
from tickwheel.protocol.bodies import Answer, Request
from tickwheel.protocol.errors import BadFrame, TransactionRefused
from tickwheel.protocol.requests import Cancel, CancelOk, Reschedule, RescheduleOk
from tickwheel.protocol.settling import (
    Change,
    ChangeOk,
    Extend,
    ExtendOk,
    MessageFilter,
    Nack,
    NackOk,
    Redeliver,
    RedeliverOk,
    Transaction,
    TransactionChange,
    TransactionOk,
)
from timerlog.selecting import Filter

if TYPE_CHECKING:
    from broker.core import Broker

_STEP = 4_096
"""As many messages are changed at once: a millisecond or two, then others get their turn."""
_STEP_OF_RECEIPTS = 1_024
"""The same for messages that are given back, whose failures are remembered one by one."""


def cancel(caller: Caller, correlation: int, request: Cancel) -> None:
    """CANCEL."""
    broker = caller.broker

    def act(part: slice) -> list[str]:
        return broker.store.cancel(_targets(broker, request, part), broker.clock.now_ms(), stop=request.stop)

    _in_steps(caller, correlation, request, _count(request), _STEP, act, CancelOk)


def reschedule(caller: Caller, correlation: int, request: Reschedule) -> None:
    """RESCHEDULE."""
    broker = caller.broker
    at_ms = _moment(request.deliver_at_ms, request.delay_ms, broker.clock.now_ms())

    def act(part: slice) -> list[str]:
        ids, now_ms = _targets(broker, request, part), broker.clock.now_ms()
        return broker.store.reschedule(ids, at_ms, now_ms, priority=request.priority)

    _in_steps(caller, correlation, request, _count(request), _STEP, act, RescheduleOk)


def redeliver(caller: Caller, correlation: int, request: Redeliver) -> None:
    """REDELIVER."""
    broker = caller.broker
    at_ms = _moment(request.deliver_at_ms, request.delay_ms, broker.clock.now_ms())

    def act(part: slice) -> list[str]:
        return broker.store.redeliver(
            _targets(broker, request, part),
            request.group,
            at_ms,
            broker.clock.now_ms(),
            acked=request.acked,
            postpone=request.postpone,
            reset_attempts=not request.keep_attempts,
        )

    _in_steps(caller, correlation, request, _count(request), _STEP, act, RedeliverOk)


def nack(caller: Caller, correlation: int, request: Nack) -> None:
    """NACK."""
    broker = caller.broker

    def act(part: slice) -> list[str]:
        ids, epochs = request.ids[part], request.epochs[part]
        now_ms = broker.clock.now_ms()
        results = broker.store.nack(request.group_id, ids, epochs, request.delay_ms, request.error, now_ms)
        broker.delivery.wake_group(request.group_id)
        return results

    _in_steps(caller, correlation, request, len(request.ids), _STEP_OF_RECEIPTS, act, NackOk)


def extend(caller: Caller, correlation: int, request: Extend) -> None:
    """EXTEND: all leases end at the same time."""
    broker = caller.broker
    until_ms = broker.clock.now_ms() + request.for_ms

    def act(part: slice) -> list[str]:
        ids, epochs = request.ids[part], request.epochs[part]
        return broker.store.extend(request.group_id, ids, epochs, until_ms)

    _in_steps(
        caller,
        correlation,
        request,
        len(request.ids),
        _STEP,
        act,
        lambda results: ExtendOk(results, until_ms),
    )


def _in_steps(
    caller: Caller,
    correlation: int,
    request: Request,
    count: int,
    step: int,
    act: Callable[[slice], list[str]],
    answer: Callable[[list[str]], Answer],
) -> None:
    """Change a few messages at once, in the order of the stream; many in steps, beside everything else."""
    broker = caller.broker
    if count <= step:
        results = act(slice(0, count))
        broker.after_change()
        when_durable(caller, correlation, request, answer(results))
        return

    async def work() -> Answer:
        results: list[str] = []
        async with broker.bulk:
            for start in range(0, count, step):
                results += act(slice(start, start + step))
                broker.after_change()
                await trio.lowlevel.checkpoint()
        return answer(results)

    caller.answer_later(correlation, request, work)


# Many at once ---------------------------------------------------------------------------------------------


def change(caller: Caller, correlation: int, request: Change) -> None:
    """CHANGE: in steps, beside everything else; the answer comes after the last one."""
    broker = caller.broker
    check_name(request.topic, "topic")
    topic_id = broker.store.topic(request.topic).topic_id

    async def work() -> ChangeOk:
        async with broker.bulk:
            return await _change_all(broker, topic_id, request)

    caller.answer_later(correlation, request, work)


async def _change_all(broker: Broker, topic_id: int, request: Change) -> ChangeOk:
    now_ms = broker.clock.now_ms()
    act = _action(broker, request, now_ms)
    matched, results = 0, Counter[str]()
    left = request.limit if request.limit is not None else 1 << 62
    for part in broker.store.select(topic_id, _filter(request.filter), now_ms):
        ids = part[:left]
        left -= len(ids)
        matched += len(ids)
        for start in range(0, 0 if request.dry_run else len(ids), _STEP):
            results.update(act(np.ascontiguousarray(ids[start : start + _STEP])))
            broker.after_change()
            await trio.lowlevel.checkpoint()
        if not left:
            break
        await trio.lowlevel.checkpoint()
    return ChangeOk(matched, dict(results))


def _action(broker: Broker, request: Change, now_ms: int) -> Callable[[Any], list[str]]:
    store = broker.store
    at_ms = _moment(request.deliver_at_ms, request.delay_ms, now_ms)
    if request.action == "cancel":
        return lambda ids: store.cancel(ids, now_ms, stop=request.stop)
    if request.action == "reschedule":
        return lambda ids: store.reschedule(ids, at_ms, now_ms, priority=request.priority)
    return lambda ids: store.redeliver(
        ids,
        request.filter.group,
        at_ms,
        broker.clock.now_ms(),
        acked=request.acked,
        reset_attempts=not request.keep_attempts,
    )


def _filter(wanted: MessageFilter) -> Filter:
    given = {
        "due_from_ms": wanted.due_from_ms,
        "due_until_ms": wanted.due_until_ms,
        "created_from_ms": wanted.created_from_ms,
        "created_until_ms": wanted.created_until_ms,
    }
    bounds = {name: value for name, value in given.items() if value is not None}
    return Filter(
        states=None if wanted.states is None else frozenset(wanted.states),
        priority_min=wanted.priority_min,
        priority_max=wanted.priority_max,
        epoch_min=wanted.epoch_min,
        group=wanted.group,
        **bounds,
    )


# All or nothing -------------------------------------------------------------------------------------------


def transaction(caller: Caller, correlation: int, request: Transaction) -> None:
    """TRANSACTION."""
    broker = caller.broker
    known = broker.store.committed(request.id)
    if known is not None:
        when_durable(caller, correlation, request, TransactionOk(known, repeated=True))
        return
    now_ms = broker.clock.now_ms()
    parts = broker.store.new_transaction(request.id, now_ms)
    try:
        for payload in request.sends:
            parts.send(payload)
        for ack in request.acks:
            parts.ack(ack.group_id, ack.ids, ack.epochs)
        for item in request.changes:
            _add_change(broker, parts, item, now_ms)
        stored = parts.commit()
    except ValueError as error:
        raise BadFrame(f"A send of the transaction was not understood: {error}.") from error
    finally:
        parts.close()
    broker.after_change()
    for ack in request.acks:
        broker.delivery.wake_group(ack.group_id)
    when_durable(caller, correlation, request, TransactionOk(stored))


def _add_change(broker: Broker, parts: Any, item: TransactionChange, now_ms: int) -> None:
    ids = _targets(broker, item)
    if 0 in ids:
        raise TransactionRefused("A message that the transaction changes does not exist.")
    at_ms = _moment(item.deliver_at_ms, item.delay_ms, now_ms)
    if at_ms is None and item.priority is None:
        parts.cancel(ids)
    else:
        parts.reschedule(ids, at_ms, item.priority)


def _moment(deliver_at_ms: int | None, delay_ms: int | None, now_ms: int) -> int | None:
    return deliver_at_ms if delay_ms is None else now_ms + delay_ms


def _count(request: Cancel | Reschedule | Redeliver) -> int:
    return len(request.ids if request.ids is not None else request.keys or ())


def _targets(
    broker: Broker, request: Cancel | Reschedule | Redeliver | TransactionChange, part: slice = slice(None)
) -> list[int]:
    """The ids that a part of a request means; 0, which no message has, for a key that is not known."""
    if request.ids is not None:
        return request.ids[part]
    assert request.topic is not None, "the request's own check leaves ids, or topic and keys"
    assert request.keys is not None, "the request's own check leaves ids, or topic and keys"
    check_name(request.topic, "topic")
    return broker.store.find(request.topic, request.keys[part])
