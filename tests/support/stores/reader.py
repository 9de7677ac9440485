"""One subscription of a group, straight on a store."""

from __future__ import annotations

import struct

from tests.support.native.driver import MIB, NOW_MS
from tests.support.native.frames import ack_payload, delivered
from timerlog.store import Store


class Reader:
    """Opens the group if need be, and holds messages under a number of its own. Receipts are (id, epoch)."""

    def __init__(self, store: Store, topic: int, group: str = "g") -> None:
        self.store = store
        self.group = store.groups.open(topic, group, NOW_MS)
        self.holder = store.holders.acquire(self.group)

    @property
    def has_ready(self) -> bool:
        """Whether a lane or a retry chain has something that was not taken."""
        group = self.store.tables.native.groups[self.group]
        topic = self.store.tables.native.topics[group.topic_id]
        waiting = any(group.cursor[lane] != topic.lane_last[lane] for lane in range(256))
        return waiting or any(group.retry_lanes)

    def fetch(
        self, limit: int = 100, now_ms: int = NOW_MS, limit_bytes: int = MIB, part: int | None = None
    ) -> list[tuple[int, int]]:
        """What one DELIVER frame brings; ``part``: the group of one shard."""
        group = self.group if part is None else part
        frame = self.store.deliver.fetch(group, self.holder, 7, limit, limit_bytes, now_ms)
        return list(zip(*delivered(frame), strict=True)) if frame else []

    def ack(self, *receipts: tuple[int, int], now_ms: int = NOW_MS) -> tuple[int, list[int]]:
        """(accepted, codes of those that were refused)."""
        payload = ack_payload(self.group, [i for i, _ in receipts], [e for _, e in receipts])
        reply = self.store.deliver.ack(payload, 3, now_ms).reply
        accepted, refused = struct.unpack_from("<II", reply, 16)
        return accepted, [struct.unpack_from("<IIQ", reply, 24 + 16 * n)[1] for n in range(refused)]

    def nack(
        self,
        *receipts: tuple[int, int],
        delay_ms: int | None = 0,
        error: str = "",
        now_ms: int = NOW_MS,
        give_up: bool = False,
        is_attempt: bool = True,
    ) -> list[str]:
        """The answers."""
        ids, epochs = [i for i, _ in receipts], [e for _, e in receipts]
        return self.store.settle.nack(
            self.group, ids, epochs, delay_ms, error, now_ms, give_up=give_up, is_attempt=is_attempt
        )

    def extend(self, *receipts: tuple[int, int], until_ms: int) -> list[str]:
        """The answers."""
        return self.store.settle.extend(
            self.group, [i for i, _ in receipts], [e for _, e in receipts], until_ms
        )
