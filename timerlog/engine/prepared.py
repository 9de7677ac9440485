"""Prepared messages: stored safely, and delivered only after their producer has committed them.

They wait in the topic ``<topic>.prepared``. Its group ``checks`` is how orphans are found: a prepared message
without a decision becomes due there, is delivered again and again to subscribers that can tell what became of its
transaction, and is a dead letter in the end. So check-backs are ordinary deliveries, and their times are settings of
the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from timerlog.commitlog.records import MessageView, Outbound, send_payload
from timerlog.engine.change import CANCELLED, DELIVERED, EXPIRED, READY, SCHEDULED, Change
from timerlog.engine.commit import Commit
from timerlog.engine.groups import Groups
from timerlog.engine.produce import Produce
from timerlog.engine.select import Select
from timerlog.engine.state import INTERNAL, Engine, LogWriter
from timerlog.engine.topics import Topics
from timerlog.errors import DECODE_ERRORS, TransactionRefused
from timerlog.layout import MAX_TIME_MS, MessageState, RecordType
from timerlog.names import PREPARED_HEADER, PREPARED_SUFFIX

GROUP: Final = "checks"


class Prepared:
    """Keeps prepared messages, and decides about them."""

    def __init__(
        self,
        *,
        engine: Engine,
        writer: LogWriter,
        topics: Topics,
        groups: Groups,
        produce: Produce,
        commit: Commit,
        change: Change,
        select: Select,
    ) -> None:
        self._writer, self._topics, self._groups, self._produce = writer, topics, groups, produce
        self._commit, self._change, self._select = commit, change, select
        self._engine, self._tables = engine, engine.tables

    def open(self, topic: str, settings: Mapping[str, Any], now_ms: int) -> int:
        """The number of the topic in which prepared messages of ``topic`` wait; ``settings`` hold if it is new."""
        known = self._tables.topic_ids.get(topic + PREPARED_SUFFIX)
        if known is None:
            known = self._topics.create(topic + PREPARED_SUFFIX, settings, 0, now_ms).topic_id
        self._groups.open(known, GROUP, now_ms)
        return known

    def decide(self, ids: Sequence[int], *, commit: bool, now_ms: int) -> tuple[list[str], list[int]]:
        """Commits or rolls back prepared messages, each by itself: a result for each (``committed``,
        ``already_committed``, ``rolled_back``, ``already_rolled_back``, ``not_found``, ``refused``: the topic or the
        time of its message cannot be any more) and the id of the message that it became, or 0. Raises ``DiskFull``;
        what was decided before that stands."""
        results, became = [], []
        for message_id in ids:
            result, new_id = self.decide_one(message_id, commit=commit, now_ms=now_ms)
            results.append(result)
            became.append(new_id)
        return results, became

    def decide_one(self, message_id: int, *, commit: bool, now_ms: int) -> tuple[str, int]:
        """As ``decide``, for one message."""
        state = int(self._change.judge(np.array([message_id], np.uint64))[0])
        if state not in (SCHEDULED, READY, DELIVERED, CANCELLED, EXPIRED):
            return "not_found", 0
        view = MessageView.read(self._engine.native, message_id)
        name = self._tables.topics[view.topic_id].record.name
        if not name.endswith(PREPARED_SUFFIX):
            return "not_found", 0
        topic = name.removesuffix(PREPARED_SUFFIX)
        key = view.key or f"{name}:{message_id}".encode()
        # One that was committed ends as expired, one that was rolled back as cancelled: then each can say so again,
        # whatever became of the message meanwhile.
        if state == EXPIRED:
            return "already_committed", self._select.find_key(self._tables.topic_ids.get(topic, 0), key)
        if state == CANCELLED:
            return "already_rolled_back", 0
        if not commit:
            self._writer.decided(("rolled_back", 0))
            self._change.stop(np.array([message_id], np.uint64))
            return "rolled_back", 0
        return self._commit_one(message_id, topic, key, view, now_ms)

    def _commit_one(
        self, message_id: int, topic: str, key: bytes, view: MessageView, now_ms: int
    ) -> tuple[str, int]:
        ids = np.array([message_id], np.uint64)
        topic_id = self._tables.topic_ids.get(topic)
        if topic_id is None:
            return "refused", 0  # the topic was deleted
        earlier = self._select.find_key(topic_id, key)
        if earlier:  # a message of this key was sent in the meantime: it counts once, as it would with send
            self._writer.decided(("already_committed", earlier))
            with self._groups.revoking(ids):
                self._change.end(RecordType.EXPIRED, ids)
            return "already_committed", earlier
        try:
            fields = msgspec.msgpack.decode(view.headers, type=dict[str, Any])
            deliver_at_ms = int(fields.pop(PREPARED_HEADER)["deliver_at_ms"])
        except (KeyError, TypeError, ValueError, OverflowError, *DECODE_ERRORS):
            return "not_found", 0  # it was sent to this topic, not prepared: producers write headers
        if not 0 <= deliver_at_ms <= MAX_TIME_MS:
            return "not_found", 0
        headers = msgspec.msgpack.encode(fields) if fields else b""
        message = Outbound(view.body, key, headers, view.order, view.priority)
        try:
            send = self._produce.judge(send_payload(topic_id, [message], deliver_at_ms), now_ms)
        except TransactionRefused:
            return "refused", 0  # its time or its size is not allowed
        ending = (RecordType.EXPIRED, 0, ids.tobytes())
        told_id = self._tables.next_id
        self._writer.decided(("committed", told_id))
        with self._groups.revoking(ids):
            new_id = self._commit.write(INTERNAL, [send], [ending], now_ms)[0][0]
        assert new_id == told_id, "a prepared message becomes the one that was told"
        assert self._tables.rows["state"][message_id] == MessageState.EXPIRED, "it is committed once"
        return "committed", new_id
