"""The columns of each table, as ``describe messages`` tells them, which would take a process of the broker."""

from __future__ import annotations

from typing import Final

COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "id": ("BIGINT", "of the message"),
    "topic": ("VARCHAR", ""),
    "group": ("VARCHAR", 'whose view the row is; write `"group"`'),
    "key": ("VARCHAR", "null: none"),
    "order_key": ("VARCHAR", "null: none"),
    "priority": ("INTEGER", "0 goes first"),
    "state": (
        "VARCHAR",
        "scheduled, ready, leased, waiting, acked, dead, cancelled, expired, damaged",
    ),
    "epoch": ("BIGINT", "deliveries to the group"),
    "attempts": ("BIGINT", "those that were seen, since they were last counted from 0 again"),
    "time_next": ("TIMESTAMPTZ", "when it goes on: its time, the end of the lease, the next try"),
    "time_acked": ("TIMESTAMPTZ", ""),
    "time_created": ("TIMESTAMPTZ", "when the broker took it"),
    "deliver_at": ("TIMESTAMPTZ", "when it is due"),
    "headers": ("VARCHAR", "JSON: `headers->>'trace'`"),
    "body": ("BLOB", "`decode(body)` is its text"),
    "body_bytes": ("BIGINT", ""),
    "shard": ("VARCHAR", "the key range, if the topic has shards"),
    "dead_reason": ("VARCHAR", "the last error of a dead letter"),
}
"""With their types, and what they are where the name does not say it."""
