"""The twin of ``native/keys.c``."""

from __future__ import annotations

from tests.twins.key_index import ENTRY_BYTES
from tests.twins.store import MESSAGE_HEAD_BYTES, TwinStore
from tickwheel_native import crc32c

MASK = 0xFFFFFFFF
SMALLEST_SHRUNK = 512


def key_hash(topic_id: int, key: bytes) -> int:
    """Never 0, which stands for "no key"."""
    value = crc32c(key, (topic_id * 0x9E3779B1 + 1) & MASK)
    value = ((value ^ value >> 16) * 0x85EBCA6B) & MASK
    value = ((value ^ value >> 13) * 0xC2B2AE35) & MASK
    return value ^ value >> 16 or 1


def message_key(store: TwinStore, message_id: int) -> bytes:
    record = store.record(store.rows[message_id])
    key_bytes = int.from_bytes(record[40:42], "little")
    return record[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + key_bytes]


def find(store: TwinStore, topic_id: int, key: bytes) -> int:
    """The id of the indexed message with this topic and key; 0 when there is none."""
    wanted, damaged = key_hash(topic_id, key), 0
    for message_id, entry_hash in store.keys.of(wanted).entries.items():
        if message_id in store.leaving:
            continue
        same_topic = store.key_topic(int(store.rows[message_id]["topic_id"])) == topic_id
        if entry_hash == wanted and same_topic and message_key(store, message_id) == key:
            return message_id
        if entry_hash == wanted and same_topic and not damaged and not _is_whole(store, message_id):
            damaged = message_id
    return damaged


def _is_whole(store: TwinStore, message_id: int) -> bool:
    """Whether a record still says its key: if not, the hash has to do."""
    record = store.record(store.rows[message_id])
    return int.from_bytes(record[:4], "little") == crc32c(record[4:])


def insert(store: TwinStore, message_id: int, entry_hash: int) -> None:
    store.keys.of(entry_hash).entries[message_id] = entry_hash


def remove(store: TwinStore, message_id: int) -> int:
    """1, or 0 when the message was not indexed."""
    entries = store.keys.of(int(store.rows[message_id]["key_hash"])).entries
    return 0 if entries.pop(message_id, None) is None else 1


def bytes_to_resize(store: TwinStore, capacity: int) -> int:
    """How big the file must be before a partition can get a table of this capacity."""
    return store.keys.end + capacity * ENTRY_BYTES


def bytes_to_grow(store: TwinStore, partition: int) -> int:
    """How big the file must be before a partition can grow."""
    return store.keys.end + 2 * store.keys.partitions[partition].capacity * ENTRY_BYTES


def grow(store: TwinStore, partition: int) -> tuple[int, int, int]:
    """Returns (0, the old table's offset, its bytes), or (-1, 0, 0) when the file is too small."""
    return resize(store, partition, 2 * store.keys.partitions[partition].capacity)


def resize(store: TwinStore, partition: int, capacity: int) -> tuple[int, int, int]:
    """As ``grow``, for any capacity that has room for all entries."""
    part, needed = store.keys.partitions[partition], bytes_to_resize(store, capacity)
    if needed > store.keys_allocated or len(part.entries) >= capacity:
        return -1, 0, 0
    freed = part.offset, part.capacity * ENTRY_BYTES
    part.offset, part.capacity = store.keys.end, capacity
    store.keys.end = needed
    return 0, *freed


def fitting(store: TwinStore, partition: int) -> int:
    """The capacity to which a partition should shrink; 0: none."""
    part = store.keys.partitions[partition]
    if part.capacity <= SMALLEST_SHRUNK or 8 * len(part.entries) > part.capacity:
        return 0
    capacity = part.capacity
    while capacity > SMALLEST_SHRUNK and 4 * len(part.entries) <= capacity:
        capacity //= 2
    return capacity


def count(store: TwinStore) -> int:
    return sum(len(part.entries) for part in store.keys.partitions)
