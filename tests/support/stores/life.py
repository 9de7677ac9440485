"""The moves of messages and deliveries that a store makes, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from tickwheel_native import delivery
from timerlog.layout import DeliveryState, MessageState, RecordType, Runs
from timerlog.life import Move
from timerlog.recovery.replay import Replayer
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables

Step = tuple[RecordType, IntEnum, IntEnum]
"""A record, and a state before and after it."""


class Watch:
    """What records that a living store applies do to the messages and deliveries that the records name, but for records
    that name a range of the log or a whole group."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.messages: set[Step] = set()
        self.deliveries: set[Step] = set()
        self._is_replaying = False
        replay = Replayer.apply

        def replayed(replayer: Replayer, position: int, stop: int) -> None:
            was, self._is_replaying = self._is_replaying, True  # it may see rows of a later time
            try:
                replay(replayer, position, stop)
            finally:
                self._is_replaying = was

        patch.setattr(Replayer, "apply", replayed)
        for name, record in (
            ("lease", RecordType.LEASE),
            ("ack", RecordType.ACK),
            ("nack", RecordType.NACK),
            ("release", RecordType.RELEASE),
            ("returned", RecordType.RETURNED),
            ("redeliver", RecordType.REDELIVER),
            ("dead", RecordType.DEAD),
        ):
            patch.setattr(Applier, name, self._of_deliveries(record, getattr(Applier, name)))
        patch.setattr(Applier, "put", self._of_put(Applier.put))
        patch.setattr(Applier, "reschedule", self._of_reschedule(Applier.reschedule))
        patch.setattr(Applier, "end", self._of_end(Applier.end))

    def _of_deliveries(self, record: RecordType, real: Callable[..., None]) -> Callable[..., None]:
        def applied(applier: Applier, group_id: int, *arguments: Any) -> None:
            runs: Runs = next(one for one in arguments if isinstance(one, np.ndarray))
            seqs = values_of(runs)
            before = delivery_states(applier.tables, group_id, seqs)
            real(applier, group_id, *arguments)
            self._note(
                self.deliveries,
                record,
                DeliveryState,
                before,
                delivery_states(applier.tables, group_id, seqs),
            )

        return applied

    def _of_put(self, real: Callable[..., None]) -> Callable[..., None]:
        def applied(applier: Applier, topic_id: int, first_seq: int, tick_ms: int, runs: Runs) -> None:
            self._watched(
                RecordType.PUT,
                applier,
                values_of(runs),
                lambda: real(applier, topic_id, first_seq, tick_ms, runs),
            )

        return applied

    def _of_reschedule(self, real: Callable[..., None]) -> Callable[..., None]:
        def applied(applier: Applier, runs: Runs, priority: int) -> None:
            self._watched(
                RecordType.RESCHEDULE, applier, runs["first"], lambda: real(applier, runs, priority)
            )

        return applied

    def _of_end(self, real: Callable[..., None]) -> Callable[..., None]:
        def applied(applier: Applier, record: RecordType, ids: Any) -> None:
            self._watched(record, applier, ids, lambda: real(applier, record, ids))

        return applied

    def _watched(self, record: RecordType, applier: Applier, ids: Any, work: Callable[[], None]) -> None:
        """A record that names messages: it moves their deliveries, too."""
        tables = applier.tables
        topics, seqs = tables.rows["topic_id"][ids].copy(), tables.rows["topic_seq"][ids].copy()
        states = tables.rows["state"][ids].copy()
        is_ready = states == MessageState.READY
        places = [
            (group_id, seqs[is_ready & (topics == group.record.topic_id)])
            for group_id, group in tables.groups.items()
        ]
        before = [delivery_states(tables, *place) for place in places]
        work()
        self._note(self.messages, record, MessageState, states, tables.rows["state"][ids])
        for place, earlier in zip(places, before, strict=True):
            self._note(self.deliveries, record, DeliveryState, earlier, delivery_states(tables, *place))

    def _note(
        self, seen: set[Step], record: RecordType, states: type[IntEnum], before: Any, after: Any
    ) -> None:
        if not self._is_replaying:
            pairs = {(int(b), int(a)) for b, a in zip(before.tolist(), after.tolist(), strict=True)}
            seen |= {(record, states(one), states(other)) for one, other in pairs}


def values_of(runs: Runs) -> Any:
    values = np.empty(delivery.runs_values(runs), np.uint64)
    at = 0
    for first, count in runs[["first", "count"]].tolist():
        values[at : at + count] = np.arange(first, first + count, dtype=np.uint64)
        at += count
    return values


def delivery_states(tables: Tables, group_id: int, seqs: Any) -> Any:
    return tables.groups[group_id].deliveries.take_reached(seqs)["state"].copy()


def moves_of(record: RecordType, moves: Sequence[Move]) -> dict[IntEnum, IntEnum]:
    """The state after a record of a type, by the state before it, as a table has them."""
    return {before: move.after for move in moves if record in move.records for before in move.before}


def drawn(moves: Sequence[Move]) -> Iterator[str]:
    """The lines of a Mermaid state diagram, and of a table, of some moves."""
    yield from ("```mermaid", "stateDiagram-v2")
    for move in moves:
        names = ", ".join(record.name for record in move.records)
        yield from (f"    {_node(before)} --> {_node(move.after)}: {names}" for before in move.before)
    yield from ("```", "", "| record | from | to | why |", "|---|---|---|---|")
    for move in moves:
        before = ", ".join(state.name.lower() for state in move.before)
        records = ", ".join(f"`{record.name}`" for record in move.records)
        yield f"| {records} | {before} | {move.after.name.lower()} | {move.why} |"


def _node(state: IntEnum) -> str:
    return "[*]" if state is MessageState.NONE else state.name.lower()


def listed(moves: Sequence[Move]) -> set[Step]:
    """The steps of a table."""
    return {
        (record, before, after) for record in RecordType for before, after in moves_of(record, moves).items()
    }


def moving(steps: set[Step]) -> set[Step]:
    """Steps that change a state."""
    return {(record, before, after) for record, before, after in steps if before != after}
