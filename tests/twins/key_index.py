"""The key index without its tables: which entries each partition holds, and how much room it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PARTITIONS: Final = 1_024
FIRST_CAPACITY: Final = 64
FIRST_TABLE: Final = 20_480
ENTRY_BYTES: Final = 8


@dataclass
class Partition:
    """One table: at most three quarters of its ``capacity`` are used."""

    offset: int
    capacity: int = FIRST_CAPACITY
    entries: dict[int, int] = field(default_factory=dict)  # id → hash

    def has_room(self, more: int) -> bool:
        return len(self.entries) + more <= self.capacity * 3 // 4


class KeyIndex:
    """All partitions, and where the file's next table would start."""

    def __init__(self) -> None:
        size = FIRST_CAPACITY * ENTRY_BYTES
        self.partitions = [Partition(FIRST_TABLE + p * size) for p in range(PARTITIONS)]
        self.end = FIRST_TABLE + PARTITIONS * size

    def of(self, key_hash: int) -> Partition:
        """A hash's partition: its top ten bits."""
        return self.partitions[key_hash >> 22]
