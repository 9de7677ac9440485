"""Reviving dead letters: back to the group that gave them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from timerlog.apply import pack_redeliver
from timerlog.changing import DELIVERED, READY, SCHEDULED, Changing
from timerlog.core import INTERNAL
from timerlog.dead_letters import HEADER
from timerlog.layout import RESET_ATTEMPTS, RUN, WERE_DONE, DeliveryState, MessageState, RecordType
from timerlog.messages import MessageView, Outbound, send_payload


class Reviving(Changing):
    def replay_dead(self, topic: str, ids: Sequence[int], now_ms: int) -> dict[str, int]:
        """Gives dead letters back to the groups that gave them up; counts of ``replayed``, ``sent_again`` (the original
        is gone, so the copy goes to all groups) and ``not_found``. Raises ``DiskFull``, ``TransactionRefused``; those
        before that were replayed."""
        counts: dict[str, int] = {}
        for message_id in ids:
            result = self._replay(topic, message_id, now_ms)
            counts[result] = counts.get(result, 0) + 1
        return counts

    def _replay(self, topic: str, message_id: int, now_ms: int) -> str:
        state = int(self._judge_ids(np.array([message_id], np.uint64))[0])
        if state not in (SCHEDULED, READY, DELIVERED):
            return "not_found"
        view = MessageView.read(self._native, message_id)
        try:
            story = msgspec.msgpack.decode(view.headers, type=dict[str, Any])[HEADER]
            original, group, key = int(story["id"]), str(story["group"]), str(story["key"]).encode()
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
            return "not_found"
        ending = (RecordType.CANCEL, 0, np.array([message_id], np.uint64).tobytes())
        revoked = self._holders_of_messages(np.array([message_id], np.uint64))
        again = self._revival(original, group, now_ms)
        if again is not None:
            self._write_together([again, ending])
            self._revoked.extend(revoked)
            group_id, payload = again[1], again[2]
            self._wake_revived(group_id, payload, now_ms)
            return "replayed"
        topic_id = self.open_topic(topic, now_ms)
        key = b"" if self._find(topic_id, key) else key
        message = Outbound(view.body, key, view.headers, view.order, view.priority)
        send = self.judge_send(send_payload(topic_id, [message]), now_ms)
        self.commit_records(INTERNAL, [send], [ending], now_ms)
        self._revoked.extend(revoked)
        return "sent_again"

    def _revival(self, original: int, group: str, now_ms: int) -> tuple[RecordType, int, bytes] | None:
        """The record that brings a dead message back to life in its group; None when it is gone."""
        if not 0 < original < self.tables.next_id:
            return None
        row = self.tables.rows[original]
        topic = self.tables.topics.get(int(row["topic_id"]))
        if topic is None or row["state"] != MessageState.READY or group not in topic.groups:
            return None
        group_id, seq = topic.groups[group], int(row["topic_seq"])
        delivery = self.tables.groups[group_id].deliveries.items[seq]
        if delivery["state"] != DeliveryState.DEAD:
            return None
        runs = np.array([(seq, 1, int(delivery["epoch"]), now_ms)], RUN)
        return RecordType.REDELIVER, group_id, pack_redeliver(runs, RESET_ATTEMPTS | WERE_DONE)

    def _wake_revived(self, group_id: int, payload: bytes, now_ms: int) -> None:
        run = np.frombuffer(payload, RUN, offset=8)
        self._woken.add(group_id)
        self._expire(group_id, run["first"].copy(), run["epoch"].copy(), now_ms)
