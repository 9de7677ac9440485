"""The settings of a store."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in milliseconds.

    ``segment_bytes`` holds for new directories; an existing one keeps what it was made with.
    """

    segment_bytes: int = 64 * MIB
    max_body_bytes: int = 4 * MIB
    max_frame_bytes: int = 8 * MIB
    max_topics: int = 1_000
    max_groups: int = 1_000
    ack_wait_ms: int = 30_000
    min_backoff_ms: int = 30_000
    max_backoff_ms: int = 3_600_000
