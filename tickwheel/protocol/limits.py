"""The numbers that both ends of the protocol agree on.

Sizes are bytes, times are milliseconds since 1970, UTC.
"""

import re
from typing import Final

PROTOCOL_VERSION: Final = 1
DEFAULT_PORT: Final = 7411

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, which is also the last one that ``datetime`` can express."""

LEAST_NUMBER_MS: Final = 10**12
"""A moment that is a bare number is at least this, in September 2001: what is less are seconds, or no time at all."""

MAX_KEY_BYTES: Final = 255
MAX_HEADERS_BYTES: Final = 32_768
DEFAULT_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
HARD_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
LARGEST_DELIVERY_BYTES: Final = HARD_MAX_BODY_BYTES + 64 * 1024
"""A DELIVER frame with one message of the largest body that any broker ever allowed, and its headers."""

DEFAULT_PRIORITY: Final = 50
MAX_PRIORITY: Final = 255

MAX_CREDIT: Final = 1_000_000
"""The most messages that one subscription may hold un-acked."""

MAX_ID: Final = 0x7FFF_FFFF_FFFF_FFFF
"""The largest id that a request can name."""

MAX_IDS_A_REQUEST: Final = 100_000
MAX_PARTS_A_TRANSACTION: Final = 10_000
"""The most ids or keys in one CANCEL or RESCHEDULE."""

MAX_HORIZONS: Final = 64
"""The most horizons in one WHEEL."""

MAX_FETCH_BYTES: Final = 1024 * 1024
"""An answer to FETCH is filled up to about this size; one message alone may be larger."""

MAX_ORDERED_BATCH: Final = 256
"""The most messages of one ordering key that one FETCH is given."""

MAX_FETCH_WAIT_MS: Final = 600_000
"""The longest time that one FETCH waits for messages."""

MAX_TOKEN_CHARS: Final = 256
MAX_SQL_CHARACTERS: Final = 100_000
MAX_QUERY_ROWS: Final = 1_000_000
MAX_QUERY_PARAMETERS: Final = 1_000
DEFAULT_QUERY_ROWS: Final = 10_000
MAX_QUERY_TIMEOUT_MS: Final = 3_600_000

MAX_HISTORY_EVENTS: Final = 10_000
"""The most events that one HISTORY, or one EVENTS, tells."""

MAX_ATTEMPTS: Final = 1_000
"""The most attempts that one ATTEMPTS tells."""

MAX_HANDSHAKE_BYTES: Final = 65_536
"""No frame before the end of the handshake is larger than this, so that a stranger cannot make us buffer
much."""

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Topic and group names must match this in full."""

DEAD_SUFFIX: Final = ".dead"
PREPARED_SUFFIX: Final = ".prepared"
TESTS_SUFFIX: Final = ".push-tests"
MAX_TOPIC_NAME_CHARS: Final = 128 - len(DEAD_SUFFIX)
"""A new topic's name leaves room for that of its dead letters' topic, unless it is one."""


def is_valid_name(name: str) -> bool:
    """Whether ``name`` may be the name of a topic or of a group."""
    return NAME_PATTERN.fullmatch(name) is not None


def dead_topic(topic: str) -> str:
    """The topic that gets the dead letters of ``topic``; cut for names of topics from before they were limited."""
    return f"{topic[:MAX_TOPIC_NAME_CHARS]}{DEAD_SUFFIX}"


_EPOCHS_A_TIMELINE: Final = 1 << 20
"""After a part of the log was lost, epochs go on above a multiple of this."""


def delivery_number(epoch: int) -> int:
    """Which delivery to its group an epoch is, from 1, counted from the last time that a part of the log was lost."""
    return epoch % _EPOCHS_A_TIMELINE
