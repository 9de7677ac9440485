"""Why a row cannot be a message: codes, the columns that they are about, and what they say."""

from __future__ import annotations

from typing import Final

from tickwheel.protocol.limits import MAX_HEADERS_BYTES

#: A line of a text file that is no row, whole; Spark fills it in.
CORRUPT: Final = "_corrupt_record"
#: Code of a reason: (the column that it is about, what it says). Of several, the first one is a row's.
REASONS: Final[dict[str, tuple[str, str]]] = {
    "": ("", ""),
    "unreadable_row": (CORRUPT, "the line is no row, or no UTF-8"),
    "no_time": ("deliver_at", "there is no deliver_at"),
    "naive_time": ("deliver_at", "deliver_at has no time zone"),
    "unreadable_time": ("deliver_at", "deliver_at is neither an ISO 8601 time nor epoch milliseconds"),
    "bad_time": ("deliver_at", "deliver_at is before 1970 or after the year 9999"),
    "seconds_time": (
        "deliver_at",
        "deliver_at is a number of milliseconds before September 2001: are seconds meant?",
    ),
    "no_body": ("body", "there is no body"),
    "no_topic": ("topic", "there is no topic"),
    "bad_topic": ("topic", "this cannot be the name of a topic"),
    "bad_priority": ("priority", "the priority is not between 0 and 255"),
    "bad_key": ("key", "the key is empty, longer than 255 bytes or no UTF-8"),
    "bad_order_key": ("order_key", "the order_key is empty, longer than 255 bytes or no UTF-8"),
    "bad_headers": ("headers", "the headers are no JSON object"),
    "headers_too_large": (
        "headers",
        f"the headers are longer than {MAX_HEADERS_BYTES:,} bytes, or than the broker takes",
    ),
    "body_too_large": ("body", "the body is larger than the topic allows"),
}
CODES: Final = tuple(REASONS)
NUMBERS: Final = {code: number for number, code in enumerate(CODES)}
