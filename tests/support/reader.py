"""One subscription of a group, straight on a store."""

from __future__ import annotations

import struct

from tests.support.driver import MIB, NOW_MS
from tests.support.frames import ack_payload, delivered
from timerlog.store import Store


class Reader:
    """Opens the group if need be, and holds messages under a number of its own. Receipts are (id, epoch)."""

    def __init__(self, store: Store, topic: int, group: str = "g") -> None:
        self.store = store
        self.group = store.groups.open(topic, group, NOW_MS)
        self.holder = store.holders.acquire(self.group)

    def fetch(
        self, limit: int = 100, now_ms: int = NOW_MS, limit_bytes: int = MIB, part: int | None = None
    ) -> list[tuple[int, int]]:
        """What one DELIVER frame brings; ``part``: the group of one shard."""
        group = self.group if part is None else part
        frame = self.store.deliver.fetch(group, self.holder, 7, limit, limit_bytes, now_ms)
        return [] if frame is None else list(zip(*delivered(frame), strict=True))

    def ack(self, *receipts: tuple[int, int]) -> tuple[int, list[int]]:
        """(accepted, codes of those that were refused)."""
        payload = ack_payload(self.group, [i for i, _ in receipts], [e for _, e in receipts])
        reply = self.store.deliver.ack(payload, 3, NOW_MS).reply
        accepted, refused = struct.unpack_from("<II", reply, 16)
        return accepted, [struct.unpack_from("<IIQ", reply, 24 + 16 * n)[1] for n in range(refused)]

    def nack(
        self, *receipts: tuple[int, int], delay_ms: int | None = 0, error: str = "", now_ms: int = NOW_MS
    ) -> list[str]:
        """The answers."""
        ids, epochs = [i for i, _ in receipts], [e for _, e in receipts]
        return self.store.settle.nack(self.group, ids, epochs, delay_ms, error, now_ms)

    def extend(self, *receipts: tuple[int, int], until_ms: int) -> list[str]:
        """The answers."""
        return self.store.settle.extend(
            self.group, [i for i, _ in receipts], [e for _, e in receipts], until_ms
        )
