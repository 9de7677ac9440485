"""The settings of a message table, as they stand in its comment.

>>> MessageSettings(ack_wait_ms=30_000).comment()[:35]
'tickwheel_message,vt_ack_wait=30,vt'
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tickwheel.client.admin.vitess import parse_pairs, settings_of
from tickwheel.client.checks import encoded, shown
from tickwheel.outbox.errors import BadTable
from tickwheel.protocol.errors import BadTopicSettings

logger = logging.getLogger("tickwheel.outbox")
MAX_BATCH_SIZE: Final = 100_000
MAX_CACHE_SIZE: Final = 1_000_000
_MOST_MS: Final = (1 << 63) - 1
_BOUNDS: Final = {
    "ack_wait_ms": (1, _MOST_MS),
    "min_backoff_ms": (1, _MOST_MS),
    "max_backoff_ms": (0, _MOST_MS),
    "purge_after_ms": (0, _MOST_MS),
    "batch_size": (1, MAX_BATCH_SIZE),
    "cache_size": (1, MAX_CACHE_SIZE),
    "poller_interval_ms": (1, _MOST_MS),
}
HEADS: Final = ("tickwheel_message", "vitess_message")


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """How the messages of one table are delivered.

    ``ack_wait_ms``: how long the first delivery may take before the message comes again. ``min_backoff_ms``,
    ``max_backoff_ms``: bounds of the wait of later ones, which doubles (None: ``ack_wait_ms``; 0: no upper bound).
    ``purge_after_ms``: acked messages are deleted after that. ``batch_size``: the most that a subscriber gets at once.
    ``cache_size``: the most that are looked up ahead. ``poller_interval_ms``: how often the table is looked at even if
    nothing woke us, and purged. ``columns``: what is streamed (empty: ``id``, and all columns of the user).
    """

    ack_wait_ms: int = 30_000
    min_backoff_ms: int | None = None
    max_backoff_ms: int = 3_600_000
    purge_after_ms: int = 86_400_000
    batch_size: int = 100
    cache_size: int = 10_000
    poller_interval_ms: int = 30_000
    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name == "min_backoff_ms":
                continue
            if not _is_number(value) or not lowest <= value <= highest:
                raise BadTable(
                    f"{name} is {shown(value)}.", advice=f"Use a whole number from {lowest} to {highest:,}."
                )
        columns = self.columns
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise BadTable(
                f"columns is {shown(columns)}.", advice='Use a list of names: columns=["id", "message"]'
            )
        for name in columns:
            encoded(name, "The name of a column")
        if self.columns and self.columns[0] != "id":
            raise BadTable(
                "vt_message_cols does not start with id.", advice="Write id first: vt_message_cols=id|message"
            )
        bad = [name for name in self.columns if name.strip() != name or not name or set(name) & set("|,")]
        if bad:
            raise BadTable(
                f"The comment of a table cannot name the column {bad[0]!r}.",
                advice="Names with commas or bars, or spaces at their ends, can only be streamed with all others.",
            )

    def comment(self) -> str:
        """The comment that means these settings."""
        values = {
            "vt_min_backoff": None if self.min_backoff_ms is None else _seconds(self.min_backoff_ms),
            "vt_max_backoff": _seconds(self.max_backoff_ms) if self.max_backoff_ms else None,
            "vt_purge_after": _seconds(self.purge_after_ms),
            "vt_batch_size": str(self.batch_size),
            "vt_cache_size": str(self.cache_size),
            "vt_poller_interval": _seconds(self.poller_interval_ms),
            "vt_message_cols": "|".join(self.columns) or None,
        }
        pairs = [f"{key}={value}" for key, value in values.items() if value is not None]
        return ",".join([HEADS[0], f"vt_ack_wait={_seconds(self.ack_wait_ms)}", *pairs])


def parse_comment(comment: str | None, table: str) -> MessageSettings:
    """The settings that a table's comment means. What is more than works counts as the most that does, and is logged:
    the comment may be Vitess's, or be changed while the table is streamed. Raises BadTable."""
    if not comment or comment.partition(",")[0].strip() not in HEADS:
        raise BadTable(
            f"{table} is no message table: its comment does not begin with '{HEADS[0]},' or '{HEADS[1]},'.",
            advice="`tickwheel outbox init --adopt` makes it one; docs/how-to/outbox-message-tables.md has the keys.",
        )
    try:
        given = parse_pairs(comment, HEADS)
        values = settings_of(given)
    except BadTopicSettings as error:
        raise BadTable(f"The comment of {table} cannot be used: {error.message}") from None
    columns = [name.strip() for name in given.get("vt_message_cols", "").split("|") if name.strip()]
    return MessageSettings(columns=tuple(columns), **_limited(values, table))


def _limited(values: dict[str, Any], table: str) -> dict[str, Any]:
    limited = dict(values)
    for name, value in values.items():
        highest = _BOUNDS[name][1]
        if value > highest:
            logger.warning(
                "The comment of %s sets %s to %s, which counts as %d, the most.",
                table,
                name,
                _short(value),
                highest,
            )
            limited[name] = highest
    return limited


def _short(number: int) -> str:
    return str(number) if number < 1 << 64 else "more than 64 bits hold"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _seconds(value_ms: int) -> str:
    return f"{value_ms / 1000:.3f}".rstrip("0").rstrip(".")
