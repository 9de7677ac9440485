"""Reviving dead letters: back to the group that gave them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from timerlog.commitlog.records import Control, MessageView, Outbound, pack_redeliver, send_payload
from timerlog.engine.change import DELIVERED, READY, SCHEDULED, Change
from timerlog.engine.commit import Commit
from timerlog.engine.groups import Groups
from timerlog.engine.produce import Produce
from timerlog.engine.select import Select
from timerlog.engine.settle import Settle
from timerlog.engine.state import INTERNAL, Engine, LogWriter
from timerlog.engine.topics import Topics
from timerlog.errors import DECODE_ERRORS
from timerlog.layout import (
    MAX_KEY_BYTES,
    RESET_ATTEMPTS,
    RUN,
    WERE_DONE,
    DeliveryState,
    MessageState,
    RecordType,
    UInt64Array,
)
from timerlog.names import DEAD_HEADER, dead_topic

_GONE, _DEAD, _NOT_DEAD, _ENDED = range(4)
_RESULTS: Final = ("sent_again", "replayed", "not_dead", "ended")


class ReplayDead:
    """Gives dead letters back."""

    def __init__(
        self,
        *,
        engine: Engine,
        writer: LogWriter,
        topics: Topics,
        groups: Groups,
        produce: Produce,
        commit: Commit,
        settle: Settle,
        change: Change,
        select: Select,
    ) -> None:
        self._writer, self._topics, self._groups, self._produce = writer, topics, groups, produce
        self._commit, self._settle, self._change, self._select = commit, settle, change, select
        self._engine, self._tables = engine, engine.tables

    def replay(self, topic: str, ids: Sequence[int], now_ms: int) -> dict[str, int]:
        """Gives dead letters back to the groups that gave them up; counts of ``replayed``, ``sent_again`` (the original
        was purged, so the copy goes to all groups), ``not_dead`` (the group has the original again, or is done with it:
        only the letter goes), ``ended`` (the original was cancelled or has expired: the letter stays) and
        ``not_found``. Raises ``DiskFull``, ``TransactionRefused``; those before that were replayed."""
        counts: dict[str, int] = {}
        for message_id in ids:
            result = self.replay_one(topic, message_id, now_ms)
            counts[result] = counts.get(result, 0) + 1
        return counts

    def replay_one(self, topic: str, message_id: int, now_ms: int) -> str:
        """As ``replay``, for one letter; what became of it."""
        letter = np.array([message_id], np.uint64)
        if int(self._change.judge(letter)[0]) not in (SCHEDULED, READY, DELIVERED):
            return "not_found"
        view = MessageView.read(self._engine.native, message_id)
        if self._tables.topics[view.topic_id].record.name != dead_topic(topic):
            return "not_found"
        try:
            story = msgspec.msgpack.decode(view.headers, type=dict[str, Any])[DEAD_HEADER]
            original, group, key = int(story["id"]), str(story["group"]), str(story["key"]).encode()
            # Long names of earlier versions share a topic for their letters.
            if story["topic"] != topic or len(key) > MAX_KEY_BYTES:
                return "not_found"
        except (KeyError, TypeError, ValueError, OverflowError, *DECODE_ERRORS):  # int(inf) overflows
            return "not_found"
        if not self._is_of(topic, original):
            return "not_found"
        verdict = self._judge_original(original, group)
        if verdict == _DEAD:
            self._revive(letter, original, group, now_ms)
        elif verdict == _NOT_DEAD:
            self._writer.decided(_RESULTS[verdict])
            self._change.stop(letter)
        elif verdict == _GONE:
            self._send_again(letter, topic, key, view, now_ms)
        return _RESULTS[verdict]

    def _is_of(self, topic: str, original: int) -> bool:
        """Whether a message is of this topic, as far as that is known still. A story is a header, and producers write
        headers: one that names the message of another topic must not bring that back."""
        if not 0 < original < self._tables.next_id:
            return True
        found = self._tables.topics.get(int(self._tables.messages.at(original)["topic_id"]))
        return found is None or found.record.name.partition("/")[0] == topic

    def _judge_original(self, original: int, group: str) -> int:
        """What became of a dead message in the group that gave it up."""
        if not 0 < original < self._tables.next_id:
            return _GONE
        row = self._tables.messages.at(original)
        topic = self._tables.topics.get(int(row["topic_id"]))
        if topic is None or row["state"] in (MessageState.NONE, MessageState.DROPPED):
            return _GONE
        if row["state"] != MessageState.READY or group not in topic.groups:
            return _ENDED
        group_id, seq = topic.groups[group], int(row["topic_seq"])
        if seq < self._tables.groups[group_id].record.start_seq:
            return _ENDED
        if seq >= int(self._engine.native.groups[group_id].allocated):
            return _NOT_DEAD
        state = self._tables.groups[group_id].deliveries.at(seq)["state"]
        return _DEAD if state == DeliveryState.DEAD else _NOT_DEAD

    def _revive(self, letter: UInt64Array, original: int, group: str, now_ms: int) -> None:
        row = self._tables.rows[original]
        group_id, seq = self._tables.topics[int(row["topic_id"])].groups[group], int(row["topic_seq"])
        epoch = int(self._tables.deliveries_of(group_id)["epoch"][seq])
        run = np.array([(seq, 1, epoch, now_ms)], RUN)
        payload = pack_redeliver(run, RESET_ATTEMPTS | WERE_DONE)
        self._writer.decided(_RESULTS[_DEAD])
        with self._groups.revoking(letter):
            self._writer.write_together([(RecordType.REDELIVER, group_id, payload), _ending(letter)])
        state = self._tables.deliveries_of(group_id)["state"][seq]
        assert state == DeliveryState.WAITING, "what was dead is to be delivered"
        self._check_ended(letter)
        self._engine.changes.woken.add(group_id)
        self._settle.end_leases(group_id, run["first"].copy(), run["epoch"].copy(), now_ms)

    def _send_again(
        self, letter: UInt64Array, topic: str, key: bytes, view: MessageView, now_ms: int
    ) -> None:
        topic_id = self._topics.open(topic, now_ms)
        key = b"" if self._select.find_key(topic_id, key) else key
        message = Outbound(view.body, key, view.headers, view.order, view.priority)
        send = self._produce.judge(send_payload(topic_id, [message]), now_ms)
        self._writer.decided(_RESULTS[_GONE])
        with self._groups.revoking(letter):
            self._commit.write(INTERNAL, [send], [_ending(letter)], now_ms)
        self._check_ended(letter)

    def _check_ended(self, letter: UInt64Array) -> None:
        states = self._tables.rows["state"][letter]
        assert (states == MessageState.CANCELLED).all(), "a letter goes with what becomes of it"


def _ending(letter: UInt64Array) -> Control:
    return RecordType.CANCEL, 0, letter.tobytes()
