"""A transaction that is being put together: each part is judged when it is added; nothing happens before commit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickwheel_native import Buffer
from timerlog.commitlog.records import AS_IT_IS, Control, in_records, reschedule_aux
from timerlog.engine.change import CANCELLED, READY, SCHEDULED, Change
from timerlog.engine.commit import Commit
from timerlog.engine.produce import JudgedSend, Produce
from timerlog.engine.settle import Settle
from timerlog.engine.state import Engine, check_time, check_transaction_id
from timerlog.errors import TransactionRefused
from timerlog.layout import RUN, DeliveryState, RecordType, UInt64Array


class OpenTransaction:
    """Add parts, then ``commit``; ``close`` in any case. Each method raises ``TransactionRefused`` for a part that
    could not be done; then the transaction should be closed."""

    def __init__(
        self,
        *,
        engine: Engine,
        produce: Produce,
        commit: Commit,
        settle: Settle,
        change: Change,
        transaction_id: bytes,
        now_ms: int,
    ) -> None:
        self._engine, self._produce, self._commit = engine, produce, commit
        self._settle, self._change = settle, change
        self._id = transaction_id
        self._now_ms = now_ms
        self._sends: list[JudgedSend] = []
        self._controls: list[Control] = []
        self._marked: list[tuple[int, UInt64Array]] = []
        self._changed: set[int] = set()
        self._cancelled: list[int] = []
        self._acked_groups: set[int] = set()

    def send(self, payload: Buffer) -> None:
        """The payload of a SEND. Its messages may have keys of those that were cancelled before. Raises ``ValueError``
        for one that does not add up, and ``UnknownTopic``."""
        with self._produce.without(self._cancelled):
            self._sends.append(self._produce.judge(payload, self._now_ms))

    def ack(self, group_id: int, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """Receipts. Raises ``UnknownGroup``."""
        # Its group would count it as done twice. The other order is refused already: it was delivered.
        for index, message_id in enumerate(ids):
            if message_id in self._changed:
                raise TransactionRefused(
                    f"message {message_id} is changed and acked",
                    index=index,
                    message_id=message_id,
                    reason="changed_twice",
                )
        self._acked_groups.add(group_id)
        receipts, refused = self._settle.mark_acks(group_id, ids, epochs)
        for part in receipts:
            self._marked.append((part.group_id, part.seqs))
            times = np.full(len(part.seqs), self._now_ms, np.int64)
            runs = self._engine.runs_of(part.seqs, part.epochs, times)
            self._controls += in_records(RecordType.ACK, part.group_id, runs)
        if refused:
            message_id, reason = refused[0]
            raise TransactionRefused(
                f"message {message_id} cannot be acked: {reason}",
                index=list(ids).index(message_id),
                message_id=message_id,
                reason=reason,
            )

    def cancel(self, ids: Sequence[int]) -> None:
        """Messages that no subscriber was given yet. Their keys are free for what is sent behind it."""
        chosen = self._undelivered(ids, "cancelled")
        self._cancelled += ids
        self._controls.append((RecordType.CANCEL, 0, chosen.tobytes()))

    def reschedule(self, ids: Sequence[int], deliver_at_ms: int | None, priority: int | None) -> None:
        """Messages that no subscriber was given yet. Raises ``BadTime``, ``DiskFull``."""
        if deliver_at_ms is not None:
            check_time(deliver_at_ms)
        chosen = self._undelivered(ids, "rescheduled")
        runs = self._change.prepare_reschedule(chosen, deliver_at_ms, self._now_ms)
        aux = reschedule_aux(AS_IT_IS if priority is None else priority)
        self._controls.append((RecordType.RESCHEDULE, aux, runs.astype(RUN).tobytes()))

    def _undelivered(self, ids: Sequence[int], done: str) -> UInt64Array:
        for index, (message_id, verdict) in enumerate(zip(ids, self._change.verdicts(ids), strict=True)):
            reason = "" if verdict in (SCHEDULED, READY) else self._change.answer_for(verdict)
            text = f"message {message_id} cannot be {done}: {reason}"
            if message_id in self._changed:
                reason, text = "changed_twice", f"message {message_id} is changed twice"
            if reason:
                raise TransactionRefused(text, index=index, message_id=message_id, reason=reason)
            self._changed.add(message_id)
        return np.array(ids, np.uint64)

    def commit(self) -> list[tuple[int, int]]:
        """(first id, count) of each send, in order. Raises ``TransactionRefused``, ``TransactionTooLarge``,
        ``DiskFull``: then nothing was done."""
        with self._produce.without(self._cancelled):
            stored = self._commit.write(self._id, self._sends, self._controls, self._now_ms, is_answer=True)
        assert set(self._change.verdicts(self._cancelled)) <= {CANCELLED}, "what was judged is cancelled"
        deliveries_of = self._engine.tables.deliveries_of
        assert all(
            (deliveries_of(group_id)["state"][seqs] == DeliveryState.ACKED).all()
            for group_id, seqs in self._marked
        ), "what was marked is acked"
        self._marked.clear()
        self._engine.changes.woken.update(self._acked_groups)
        return stored

    def close(self) -> None:
        """Takes back the marks of acks that were not committed."""
        for group_id, seqs in self._marked:
            self._settle.unmark_acks(group_id, seqs)
        self._marked.clear()


class Transactions:
    """Begins transactions."""

    def __init__(
        self, *, engine: Engine, produce: Produce, commit: Commit, settle: Settle, change: Change
    ) -> None:
        self._engine, self._produce, self._commit = engine, produce, commit
        self._settle, self._change = settle, change

    def begin(self, transaction_id: bytes, now_ms: int) -> OpenTransaction:
        """A transaction to put parts into; ``close`` it in any case. ``transaction_id``: 16 bytes by which it is known
        when it is repeated. Raises ``BadTransactionId``."""
        check_transaction_id(transaction_id)
        return OpenTransaction(
            engine=self._engine,
            produce=self._produce,
            commit=self._commit,
            settle=self._settle,
            change=self._change,
            transaction_id=transaction_id,
            now_ms=now_ms,
        )
