"""Prepared messages: stored safely, and delivered only once their producer says so.

They wait in the topic ``<topic>.prepared``. Its group ``checks`` is how orphans are found: a prepared message that
nobody has decided about becomes due there, is delivered to whoever can tell what became of its transaction, again and
again, and is a dead letter in the end. So check-backs are ordinary deliveries, and their times are topic settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from timerlog.commitlog.records import MessageView, Outbound, send_payload
from timerlog.engine.change import CANCELLED, DELIVERED, EXPIRED, READY, SCHEDULED, Changing
from timerlog.engine.state import INTERNAL
from timerlog.errors import DECODE_ERRORS, TransactionRefused
from timerlog.layout import MessageState, RecordType
from timerlog.names import PREPARED_HEADER, PREPARED_SUFFIX

GROUP: Final = "checks"


class Prepared(Changing):
    def open_prepared(self, topic: str, settings: Mapping[str, Any], now_ms: int) -> int:
        """The number of the topic in which prepared messages of ``topic`` wait; ``settings`` hold if it is new."""
        known = self.tables.topic_ids.get(topic + PREPARED_SUFFIX)
        if known is None:
            known = self.create_topic(topic + PREPARED_SUFFIX, settings, 0, now_ms).topic_id
        self.open_group(known, GROUP, now_ms)
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
        state = int(self._judge_ids(np.array([message_id], np.uint64))[0])
        if state not in (SCHEDULED, READY, DELIVERED, CANCELLED, EXPIRED):
            return "not_found", 0
        view = MessageView.read(self._native, message_id)
        name = self.tables.topics[view.topic_id].record.name
        if not name.endswith(PREPARED_SUFFIX):
            return "not_found", 0
        topic = name.removesuffix(PREPARED_SUFFIX)
        key = view.key or f"{name}:{message_id}".encode()
        # One that was committed ends as expired, one that was rolled back as cancelled: then each can say so again,
        # whatever became of the message meanwhile.
        if state == EXPIRED:
            return "already_committed", self._find(self.tables.topic_ids.get(topic, 0), key)
        if state == CANCELLED:
            return "already_rolled_back", 0
        if not commit:
            self.decided(("rolled_back", 0))
            self._stop(np.array([message_id], np.uint64))
            return "rolled_back", 0
        return self._commit(message_id, topic, key, view, now_ms)

    def _commit(
        self, message_id: int, topic: str, key: bytes, view: MessageView, now_ms: int
    ) -> tuple[str, int]:
        ids = np.array([message_id], np.uint64)
        topic_id = self.tables.topic_ids.get(topic)
        if topic_id is None:
            return "refused", 0  # the topic was deleted
        earlier = self._find(topic_id, key)
        if earlier:  # a message of this key was sent in the meantime: it counts once, as it would with send
            revoked = self._holders_of_messages(ids)
            self.decided(("already_committed", earlier))
            self._end(ids, RecordType.EXPIRED, MessageState.EXPIRED)
            self._revoked.extend(revoked)
            return "already_committed", earlier
        try:
            fields = msgspec.msgpack.decode(view.headers, type=dict[str, Any])
            deliver_at_ms = int(fields.pop(PREPARED_HEADER)["deliver_at_ms"])
        except (KeyError, TypeError, ValueError, *DECODE_ERRORS):
            return "not_found", 0  # it was sent to this topic, not prepared: producers write headers
        headers = msgspec.msgpack.encode(fields) if fields else b""
        message = Outbound(view.body, key, headers, view.order, view.priority)
        try:
            send = self.judge_send(send_payload(topic_id, [message], deliver_at_ms), now_ms)
        except TransactionRefused:
            return "refused", 0  # its time or its size is not allowed
        ending = (RecordType.EXPIRED, 0, ids.tobytes())
        revoked = self._holders_of_messages(ids)
        self.decided(("committed", self.tables.next_id))
        new_id = self.commit_records(INTERNAL, [send], [ending], now_ms)[0][0]
        self._revoked.extend(revoked)
        return "committed", new_id
