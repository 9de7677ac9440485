"""Requests that change messages after they were sent: one by one, by filter, or together in a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import trio

from tickwheel.protocol.bodies.base import Answer
from tickwheel.protocol.bodies.requests import Cancel, CancelOk, Reschedule, RescheduleOk
from tickwheel.protocol.bodies.settling import (
    Change,
    ChangeOk,
    Extend,
    ExtendOk,
    Nack,
    NackOk,
    Redeliver,
    RedeliverOk,
    Return,
    ReturnOk,
    Transaction,
    TransactionChange,
    TransactionOk,
)
from tickwheel.protocol.errors import BadFrame, TransactionRefused
from tickwheel.protocol.messages import decode_send
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.messages import filter_of
from tickwheel_broker.requests.remembered import Steps
from timerlog.engine.change import Change as Changer
from timerlog.engine.commit import Commit
from timerlog.engine.select import Select
from timerlog.engine.settle import Settle
from timerlog.engine.topics import Topics
from timerlog.engine.transaction import Transactions
from timerlog.errors import TransactionRefused as PartRefused
from timerlog.layout import UInt64Array
from timerlog.tables.tables import Tables

_STEP = 4_096
"""As many messages are changed at once: a millisecond or two, then others get their turn."""
_STEP_OF_RECEIPTS = 512
"""The same for messages that are given back, whose failures are remembered one by one."""
_RUNS = 65_536
"""So many messages times their groups are delivered again at once, because they are one record."""

Ids: TypeAlias = Sequence[int] | UInt64Array


class ChangeRequests:
    """A few messages at once; many in steps, beside everything else."""

    def __init__(
        self,
        *,
        change: Changer,
        settle: Settle,
        select: Select,
        transactions: Transactions,
        commit: Commit,
        topics: Topics,
        tables: Tables,
        clock: Clock,
    ) -> None:
        self._change = change
        self._settle = settle
        self._select = select
        self._transactions = transactions
        self._commit = commit
        self._topics = topics
        self._tables = tables
        self._clock = clock

    def cancel(self, request: Cancel, asked: Asked) -> Answer | Work:
        """CANCEL."""

        def act(ids: Ids, _at_ms: int | None) -> list[str]:
            return self._change.cancel(ids, self._clock.now_ms(), stop=request.stop)

        return self._change_targets(request, asked, _STEP, None, act, CancelOk)

    def reschedule(self, request: Reschedule, asked: Asked) -> Answer | Work:
        """RESCHEDULE."""
        at_ms = _moment(request.deliver_at_ms, request.delay_ms, self._clock.now_ms())

        def act(ids: Ids, at_ms: int | None) -> list[str]:
            return self._change.reschedule(ids, at_ms, self._clock.now_ms(), priority=request.priority)

        return self._change_targets(request, asked, _STEP, at_ms, act, RescheduleOk)

    def redeliver(self, request: Redeliver, asked: Asked) -> Answer | Work:
        """REDELIVER."""
        at_ms = _moment(request.deliver_at_ms, request.delay_ms, self._clock.now_ms())

        def act(ids: Ids, at_ms: int | None) -> list[str]:
            return self._change.redeliver(
                ids,
                request.group,
                at_ms,
                self._clock.now_ms(),
                acked=request.acked,
                postpone=request.postpone,
                reset_attempts=not request.keep_attempts,
            )

        return self._change_targets(request, asked, self._step_of_redeliveries(), at_ms, act, RedeliverOk)

    def _step_of_redeliveries(self) -> int:
        most_groups = max((len(topic.groups) for topic in self._tables.topics.values()), default=0)
        return max(1, min(_STEP, _RUNS // max(1, most_groups)))

    def nack(self, request: Nack, asked: Asked) -> Answer | Work:
        """NACK."""

        def act(part: slice) -> list[str]:
            ids, epochs = request.ids[part], request.epochs[part]
            return self._settle.nack(
                request.group_id,
                ids,
                epochs,
                request.delay_ms,
                request.error,
                self._clock.now_ms(),
                give_up=request.give_up,
                is_attempt=not request.uncounted,
            )

        return self._in_steps(asked, len(request.ids), _STEP_OF_RECEIPTS, act, NackOk)

    def extend(self, request: Extend, asked: Asked) -> Answer | Work:
        """EXTEND: all leases end at the same time, but for those that are to last longer anyway."""
        until_ms = self._clock.now_ms() + request.for_ms

        def act(part: slice) -> list[str]:
            ids, epochs = request.ids[part], request.epochs[part]
            return self._settle.extend(
                request.group_id, ids, epochs, until_ms, only_longer=request.only_longer
            )

        return self._in_steps(
            asked, len(request.ids), _STEP, act, lambda results: ExtendOk(results, until_ms)
        )

    def give_back(self, request: Return, asked: Asked) -> Answer | Work:
        """RETURN by receipts."""
        group_id = request.group_id
        assert group_id is not None, "the table sends the others elsewhere"

        def act(part: slice) -> list[str]:
            now_ms = self._clock.now_ms()
            return self._settle.give_back(group_id, request.ids[part], request.epochs[part], now_ms)

        return self._in_steps(
            asked,
            len(request.ids),
            _STEP,
            act,
            lambda results: ReturnOk(results.count("returned"), results),
        )

    def _in_steps(
        self,
        asked: Asked,
        count: int,
        step: int,
        act: Callable[[slice], list[str]],
        answer: Callable[[list[str]], Answer],
    ) -> Answer | Work:
        """Change a few messages at once, in the order of the stream; many in steps, beside everything else."""
        if count <= step:
            asked.expect(answer)
            results = act(slice(0, count))
            return answer(results)
        steps = asked.steps()

        async def work() -> Answer:
            return answer(await self._take_all(steps, count, step, act))

        return asked.bulk(work)

    async def _take_all(
        self, steps: Steps, count: int, step: int, act: Callable[[slice], list[str]]
    ) -> list[str]:
        results = [result for done in steps.done for result in done]
        for start in range(len(results), count, step):
            results += steps.take(partial(act, slice(start, start + step)))
            await steps.rest()
        return results

    def _change_targets(
        self,
        request: Cancel | Reschedule | Redeliver,
        asked: Asked,
        step: int,
        at_ms: int | None,
        act: Callable[[Ids, int | None], list[str]],
        answer: Callable[[list[str]], Answer],
    ) -> Answer | Work:
        """The same for messages by id or key. Which messages the keys mean, and which time is meant, is said before the
        first step: none that comes later is touched."""
        count = len(request.ids if request.ids is not None else request.keys or ())
        if count <= step:
            ids = self._targets(request)
            return self._in_steps(asked, count, step, lambda _: act(ids, at_ms), answer)
        if request.topic is not None:
            check_name(request.topic, "topic")
        steps = asked.steps()
        next_id = self._tables.next_id

        async def make_plan() -> list[Any]:
            if request.ids is not None:
                return [at_ms, b""]
            ids = await self._resolved(request, count, next_id)
            return [at_ms, ids.tobytes()]

        async def work() -> Answer:
            planned_ms, packed = await steps.plan(make_plan)
            ids: Ids = np.frombuffer(packed, np.uint64) if request.ids is None else request.ids
            results = await self._take_all(steps, count, step, lambda part: act(ids[part], planned_ms))
            return answer(results)

        return asked.bulk(work)

    async def _resolved(self, request: Any, count: int, next_id: int) -> UInt64Array:
        """The messages that keys mean, of those that were there when the request came."""
        found = np.zeros(count, np.uint64)
        for start in range(0, count, _STEP):
            part = slice(start, start + _STEP)
            found[part] = self._targets(request, part)
            await trio.lowlevel.checkpoint()
        found[found >= next_id] = 0
        return found

    def _targets(
        self, request: Cancel | Reschedule | Redeliver | TransactionChange, part: slice = slice(None)
    ) -> list[int]:
        """The ids that a part of a request means; 0, which no message has, for a key that is not known."""
        if request.ids is not None:
            return request.ids[part]
        assert request.topic is not None, "the request's own check leaves ids, or topic and keys"
        assert request.keys is not None, "the request's own check leaves ids, or topic and keys"
        check_name(request.topic, "topic")
        return self._select.find(request.topic, request.keys[part])

    # -- many at once --

    def change(self, request: Change, asked: Asked) -> Work:
        """CHANGE: in steps, beside everything else; the answer comes after the last one."""
        check_name(request.topic, "topic")
        topic_id = self._topics.record(request.topic).topic_id
        steps, came_ms = asked.steps(), self._clock.now_ms()
        next_id = self._tables.next_id

        async def make_plan() -> list[int]:
            return [topic_id, next_id, came_ms]

        async def work() -> ChangeOk:
            return await self._change_all(await steps.plan(make_plan), request, steps)

        return asked.bulk(work)

    async def _change_all(self, plan: Sequence[int], request: Change, steps: Steps) -> ChangeOk:
        """Nothing that came after the request is touched, however often it is begun again."""
        topic_id, next_id, now_ms = plan
        act = self._action(request, now_ms)
        step = self._step_of_redeliveries() if request.action == "redeliver" else _STEP
        reached, matched, results = 0, 0, Counter[str]()
        for last_id, count, counts in steps.done:
            reached, matched = last_id, matched + count
            results.update(counts)
        left = (request.limit if request.limit is not None else 1 << 62) - matched
        for part in self._select.matching(topic_id, filter_of(request.filter), now_ms, reached):
            ids = part[: np.searchsorted(part, next_id)][: max(0, left)]
            left -= len(ids)
            matched += len(ids)
            for start in range(0, 0 if request.dry_run else len(ids), step):
                some = np.ascontiguousarray(ids[start : start + step])
                results.update(steps.take(partial(act, some), partial(_as_step, some)))
                await steps.rest()
            if left <= 0:
                break
            await trio.lowlevel.checkpoint()
        return ChangeOk(matched, dict(results))

    def _action(self, request: Change, now_ms: int) -> Callable[[Any], list[str]]:
        at_ms = _moment(request.deliver_at_ms, request.delay_ms, now_ms)
        if request.action == "cancel":
            return lambda ids: self._change.cancel(ids, now_ms, stop=request.stop)
        if request.action == "reschedule":
            return lambda ids: self._change.reschedule(ids, at_ms, now_ms, priority=request.priority)
        return lambda ids: self._change.redeliver(
            ids,
            request.filter.group,
            at_ms,
            self._clock.now_ms(),
            acked=request.acked,
            reset_attempts=not request.keep_attempts,
        )

    # -- all or nothing --

    def transaction(self, request: Transaction, asked: Asked) -> TransactionOk:
        """TRANSACTION."""
        known = self._commit.committed(request.id)
        if known is not None:
            return TransactionOk(known, repeated=True)
        asked.expect(TransactionOk)
        now_ms = self._clock.now_ms()
        parts = self._transactions.begin(request.id, now_ms)
        try:
            self._add_parts(parts, request, now_ms)
            with _naming("send", 0, partial(_key_of_send, request.sends)):
                stored = parts.commit()
        except ValueError as error:
            raise BadFrame(f"A send of the transaction was not understood: {error}.") from error
        finally:
            parts.close()
        return TransactionOk(stored)

    def _add_parts(self, parts: Any, request: Transaction, now_ms: int) -> None:
        """Raises TransactionRefused, which names the part. What is cancelled leaves its key to what is sent."""
        sent = acked = changed = 0
        for item in request.changes:
            is_cancel = item.deliver_at_ms is None and item.delay_ms is None and item.priority is None
            key_of = partial(_key_of_change, changed, item.keys)
            with _naming("cancel" if is_cancel else "reschedule", changed, key_of):
                self._add_change(parts, item, now_ms)
            changed += len(item.ids if item.ids is not None else item.keys or ())
        for payload in request.sends:
            with _naming("send", sent, partial(_key_of_send, request.sends)):
                parts.send(payload)
            sent += int.from_bytes(payload[4:8], "little")
        for ack in request.acks:
            with _naming("ack", acked, lambda _: ""):
                parts.ack(ack.group_id, ack.ids, ack.epochs)
            acked += len(ack.ids)

    def _add_change(self, parts: Any, item: TransactionChange, now_ms: int) -> None:
        ids = self._targets(item)
        if 0 in ids:
            raise PartRefused("there is no such message", index=ids.index(0), reason="not_found")
        at_ms = _moment(item.deliver_at_ms, item.delay_ms, now_ms)
        if at_ms is None and item.priority is None:
            parts.cancel(ids)
        else:
            parts.reschedule(ids, at_ms, item.priority)


def _as_step(ids: UInt64Array, results: list[str]) -> list[Any]:
    """What is remembered of a step: how far it came, how many messages it had, and what became of them."""
    return [int(ids[-1]), len(ids), Counter(results)]


@contextmanager
def _naming(part: str, before: int, key_of: Callable[[int], str]) -> Iterator[None]:
    """Says which part of the transaction cannot be done. `before`: messages in earlier parts of its kind."""
    try:
        yield
    except PartRefused as error:
        index = before + error.index
        key = key_of(index)
        named = f" (key {key!r})" if key else ""
        refused = TransactionRefused(f"{part} {index}{named}: {error}")
        details = {"part": part, "index": index, "id": error.message_id or None, "key": key or None}
        refused.details = details | {"reason": error.reason}
        raise refused from error


def _key_of_send(payloads: Sequence[bytes], index: int) -> str:
    for payload in payloads:
        count = int.from_bytes(payload[4:8], "little")
        if index < count:
            keys = decode_send(payload)[1].keys
            return "" if keys is None else keys[index].decode(errors="replace")
        index -= count
    return ""


def _key_of_change(before: int, keys: Sequence[str] | None, index: int) -> str:
    return "" if keys is None else keys[index - before]


def _moment(deliver_at_ms: int | None, delay_ms: int | None, now_ms: int) -> int | None:
    return deliver_at_ms if delay_ms is None else now_ms + delay_ms
