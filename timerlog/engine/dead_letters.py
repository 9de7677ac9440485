"""Dead letters: messages that a group was given as often as its topic allows, and did not ack.

The topic ``<topic>.dead`` gets a copy with the same body and headers, and one more header that says what happened. In
the same commit record the group is done with the original, so neither is ever there without the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from timerlog.commitlog.records import MessageView, Outbound
from timerlog.engine.commit import Commit
from timerlog.engine.state import Engine
from timerlog.engine.topics import Topics
from timerlog.errors import DECODE_ERRORS, DiskFull, LogFailed, StoreError, TooManyTopics
from timerlog.layout import MAX_HEADERS_BYTES, RUN, DeliveryState, RecordType, UInt64Array
from timerlog.names import DEAD_HEADER, dead_topic

#: Letters of about so many bytes go into one record, or half of what a frame may have, if that is less.
_BATCH_BYTES: Final = 1024 * 1024
_STORY_BYTES: Final = 1024


@dataclass(slots=True)
class Unburied:
    """Messages of a group that should have become dead letters and could not, for the same kind of reason: they are
    delivered again. ``error`` is the last one."""

    topic: str
    group: str
    messages: int
    error: StoreError


class DeadLetters:
    """Moves messages of groups to the topics of their dead letters."""

    def __init__(self, engine: Engine, topics: Topics, commit: Commit) -> None:
        self._topics, self._commit = topics, commit
        self._engine, self._tables = engine, engine.tables
        #: By group and error code, since it was last taken.
        self._unburied: dict[tuple[int, str], Unburied] = {}

    def bury(self, group_id: int, seqs: UInt64Array, now_ms: int) -> UInt64Array:
        """Makes dead letters of messages of a group. Returns those (by topic_seq) that could not be moved and are where
        they were: the disk is full, there may be no more topics, or the letters' topic refuses one;
        ``take_unburied`` tells why. Raises ``LogFailed``."""
        left = seqs[:0]
        for batch in self._batches(group_id, seqs):
            left = np.concatenate([left, self._bury_some(group_id, batch, now_ms)])
        return left

    def take_unburied(self) -> list[Unburied]:
        """What could not become a dead letter since the last call."""
        unburied, self._unburied = self._unburied, {}
        return list(unburied.values())

    def _batches(self, group_id: int, seqs: UInt64Array) -> Iterator[UInt64Array]:
        """Letters that are committed together: letters are made in memory, and a record has a largest size."""
        if not len(seqs):
            return
        topic_id = self._tables.groups[group_id].record.topic_id
        ids = self._tables.ids_of(topic_id)[seqs]
        letter_bytes = self._tables.rows["record_bytes"][ids].astype(np.int64) + _STORY_BYTES
        batches = np.cumsum(letter_bytes) // min(_BATCH_BYTES, self._engine.settings.max_frame_bytes // 2)
        yield from np.split(seqs, np.flatnonzero(np.diff(batches)) + 1)

    def _bury_some(self, group_id: int, seqs: UInt64Array, now_ms: int) -> UInt64Array:
        """All of them in one record, or in smaller ones, so that a letter that is refused stands in no other's way."""
        try:
            self._commit_letters(group_id, seqs, now_ms)
        except LogFailed:
            raise
        except StoreError as error:
            if len(seqs) == 1 or isinstance(error, DiskFull | TooManyTopics):
                self._note_unburied(group_id, len(seqs), error)
                return seqs
            halves = np.array_split(seqs, 2)
            return np.concatenate([self._bury_some(group_id, half, now_ms) for half in halves])
        return seqs[:0]

    def _commit_letters(self, group_id: int, seqs: UInt64Array, now_ms: int) -> None:
        states = self._tables.deliveries_of(group_id)["state"][seqs]
        is_done = (states == DeliveryState.ACKED) | (states == DeliveryState.DEAD)
        assert not is_done.any(), "what becomes a dead letter was not done before"
        group, topic = self._tables.groups[group_id].record.name, self._topic_name(group_id)
        dead_id = self._topics.open(dead_topic(topic), now_ms)
        letters = [self._letter(group_id, group, topic, seq, now_ms) for seq in seqs.tolist()]
        runs = np.zeros(len(seqs), RUN)
        runs["first"], runs["count"], runs["time_ms"] = seqs, 1, now_ms
        self._commit.write_internal(dead_id, letters, [(RecordType.DEAD, group_id, runs.tobytes())], now_ms)
        states = self._tables.deliveries_of(group_id)["state"][seqs]
        assert (states == DeliveryState.DEAD).all(), "what has a letter is not delivered again"

    def _topic_name(self, group_id: int) -> str:
        """The topic as its users know it, not the shard."""
        record = self._tables.topics[self._tables.groups[group_id].record.topic_id].record
        return self._tables.topics[record.parent].record.name if record.parent else record.name

    def _note_unburied(self, group_id: int, messages: int, error: StoreError) -> None:
        known = self._unburied.get((group_id, error.code))
        if known is None:
            group = self._tables.groups[group_id].record.name
            known = Unburied(self._topic_name(group_id), group, 0, error)
            self._unburied[group_id, error.code] = known
        known.messages += messages
        known.error = error

    def _letter(self, group_id: int, group: str, topic: str, seq: int, now_ms: int) -> Outbound:
        message_id = int(self._tables.ids_of(self._tables.groups[group_id].record.topic_id)[seq])
        delivery = self._tables.deliveries_of(group_id)[seq]
        view = MessageView.read(self._engine.native, message_id)
        history = self._tables.failures.of(group_id, seq)
        base_epoch = int(delivery["base_epoch"])
        story: dict[str, Any] = {
            "topic": topic,
            "group": group,
            "id": message_id,
            "key": view.key.decode(errors="replace"),
            "attempts": int(delivery["epoch"]) - base_epoch,
            "error": history[-1].error if history else "",
            "deliver_at_ms": view.deliver_at_ms,
            "created_ms": view.created_ms,
            "dead_ms": now_ms,
            "history": [
                [max(0, failure.epoch - base_epoch), min(failure.at_ms, now_ms), failure.error]
                for failure in history
            ],
        }
        key = f"{group}:{message_id}:{int(delivery['epoch'])}"[-255:].encode()
        return Outbound(view.body, key, _with_story(view.headers, story), view.order, view.priority)


def _with_story(headers: bytes, story: dict[str, Any]) -> bytes:
    """The original headers and the story, as far as they fit: the story matters more."""
    try:
        own = msgspec.msgpack.decode(headers, type=dict[str, Any]) if headers else {}
    except DECODE_ERRORS:
        own = {}
    shorter = {name: value for name, value in story.items() if name != "history"}
    for fields in ({**own, DEAD_HEADER: story}, {**own, DEAD_HEADER: shorter}, {DEAD_HEADER: shorter}):
        encoded = msgspec.msgpack.encode(fields)
        if len(encoded) <= MAX_HEADERS_BYTES:
            return encoded
    return b""
