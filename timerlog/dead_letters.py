"""Dead letters: messages that a group was given as often as its topic allows, and did not ack.

The topic ``<topic>.dead`` gets a copy with the same body and headers, and one more header that says what happened. In
the same commit record the group is done with the original, so neither is ever there without the other.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from timerlog.core import UInt64Array
from timerlog.layout import MAX_HEADERS_BYTES, RUN, RecordType
from timerlog.messages import MessageView, Outbound
from timerlog.tables import DEAD_SUFFIX
from timerlog.transactions import Transactions

HEADER: Final = "tickwheel-dead"
_MAX_NAME: Final = 128
_BATCH: Final = 256


class DeadLetters(Transactions):
    def bury(self, group_id: int, seqs: UInt64Array, now_ms: int) -> None:
        """Makes dead letters of messages of a group. Raises ``DiskFull``: then some of them may not have been moved,
        and each is in one place only."""
        group = self.tables.groups[group_id].record
        topic = self.tables.topics[group.topic_id].record
        name = topic.name if not topic.parent else self.tables.topics[topic.parent].record.name
        dead_id = self.open_topic(f"{name[: _MAX_NAME - len(DEAD_SUFFIX)]}{DEAD_SUFFIX}", now_ms)
        for start in range(0, len(seqs), _BATCH):
            part = seqs[start : start + _BATCH]
            letters = [self._letter(group_id, group.name, name, seq, now_ms) for seq in part.tolist()]
            runs = np.zeros(len(part), RUN)
            runs["first"], runs["count"], runs["time_ms"] = part, 1, now_ms
            self.commit_internal(dead_id, letters, [(RecordType.DEAD, group_id, runs.tobytes())], now_ms)

    def _letter(self, group_id: int, group: str, topic: str, seq: int, now_ms: int) -> Outbound:
        message_id = int(
            self.tables.topics[self.tables.groups[group_id].record.topic_id].arrivals.items["id"][seq]
        )
        delivery = self.tables.groups[group_id].deliveries.items[seq]
        view = MessageView.read(self._native, message_id)
        history = self.tables.failures.of(group_id, seq)
        story: dict[str, Any] = {
            "topic": topic,
            "group": group,
            "id": message_id,
            "key": view.key.decode(errors="replace"),
            "attempts": int(delivery["epoch"]) - int(delivery["base_epoch"]),
            "error": history[-1].error if history else "",
            "deliver_at_ms": view.deliver_at_ms,
            "created_ms": view.created_ms,
            "dead_ms": now_ms,
            "history": [[failure.attempt, failure.at_ms, failure.error] for failure in history],
        }
        key = f"{group}:{message_id}:{int(delivery['epoch'])}"[-255:].encode()
        return Outbound(view.body, key, _with_story(view.headers, story), view.order, view.priority)


def _with_story(headers: bytes, story: dict[str, Any]) -> bytes:
    """The original headers and the story, as far as they fit: the story matters more."""
    try:
        own = msgspec.msgpack.decode(headers, type=dict[str, Any]) if headers else {}
    except msgspec.MsgspecError:
        own = {}
    shorter = {name: value for name, value in story.items() if name != "history"}
    for fields in ({**own, HEADER: story}, {**own, HEADER: shorter}, {HEADER: shorter}):
        encoded = msgspec.msgpack.encode(fields)
        if len(encoded) <= MAX_HEADERS_BYTES:
            return encoded
    return b""
