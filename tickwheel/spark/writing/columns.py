"""Batches of rows as columns of messages, each row checked: Python runs once a batch, or once a distinct value.

``checked`` takes an Arrow batch as Spark hands it over. A row is good, or has the first reason why it cannot be a
message. Sending (``rows``) and bulk scheduling (``tickwheel.spark.scheduling``) share all of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.limits import (
    LEAST_NUMBER_MS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_TIME_MS,
    is_valid_name,
)
from tickwheel.spark.writing.headers import packed_headers
from tickwheel.spark.writing.moments import NAIVE, NUMBER, UNREADABLE, parse_moments
from tickwheel.spark.writing.reasons import CORRUPT, NUMBERS
from tickwheel.spark.writing.zones import instants

_WHOLE_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
#: Types that each column may have, as Spark spells them.
SINK_COLUMNS: Final[dict[str, frozenset[str]]] = {
    "key": frozenset({"string", "int", "bigint"}),
    "deliver_at": frozenset({"timestamp", "bigint", "string"}),
    "body": frozenset({"string", "binary"}),
    "priority": _WHOLE_NUMBERS,
    "headers": frozenset({"string", "map<string,string>"}),
    "topic": frozenset({"string"}),
    "order_key": frozenset({"string"}),
}
_NEEDED: Final = ("deliver_at", "body")
_SHOWN: Final = 80
_NO_TEXT: Final = "\ufffd"

#: The reason of a text that is no UTF-8, by column. A body may be any bytes.
_BROKEN: Final = {
    "deliver_at": "unreadable_time",
    "topic": "bad_topic",
    "priority": "bad_priority",
    "key": "bad_key",
    "order_key": "bad_order_key",
    "headers": "bad_headers",
}

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Checked:
    """Columns of a batch. ``reasons``: of each row, a place in ``CODES``; 0: it is good, only then its values count.
    ``topics[topic_of[i]]``: its topic. ``headers``: MessagePack, empty for an empty map. Texts are ``large_binary``."""

    reasons: npt.NDArray[np.uint8]
    deliver_at_ms: npt.NDArray[np.int64]
    body: Any
    key: Any | None
    order_key: Any | None
    headers: Any | None
    priority: Any | None
    topics: Sequence[str]
    topic_of: npt.NDArray[np.uint32]

    def refuse(self, code: str, rows: Mask) -> None:
        """These rows have this reason, unless they have one already."""
        self.reasons[rows & (self.reasons == 0)] = NUMBERS[code]


def check_columns(
    columns: Mapping[str, str], topic: str | None, *, are_texts: bool = False, has_zone: bool = False
) -> None:
    """``columns``: names and types as Spark spells them. ``are_texts``: they come from a file that has only texts.
    ``has_zone``: times without a zone have been given one. Raises ``SourceError``, which names everything that is
    wrong."""
    problems, advice = [], []
    unknown = [name for name in columns if name not in SINK_COLUMNS]
    if unknown:
        problems.append(f"A message has no column {', '.join(map(repr, unknown))}.")
        wanted = next((name for name in SINK_COLUMNS if name in _NEEDED and name not in columns), "key")
        advice.append(
            f"Rename columns (bulk scheduling: --rename {unknown[0]}={wanted}) or leave them out: a message has "
            f"{', '.join(SINK_COLUMNS)}."
        )
    if any(mark in name for name in unknown for mark in ";\t|"):
        advice.append("The columns of a CSV file have commas between them.")
    for name, kind in columns.items():
        if name in unknown:
            continue
        if kind == "timestamp_ntz" and name == "deliver_at":
            if has_zone:
                continue
            problems.append(f"The times of {name} have no time zone.")
            advice.append(
                "Cast them to timestamp, in a session with the zone that they are meant in; bulk scheduling takes the "
                "zone with --tz Europe/Berlin (tz='Europe/Berlin')."
            )
        elif kind not in SINK_COLUMNS[name] and not (are_texts and kind == "string"):
            problems.append(f"The column {name} is {kind}: use {one_of(SINK_COLUMNS[name])}.")
    problems += [
        f"There is no column {name}: each message needs one." for name in _NEEDED if name not in columns
    ]
    if "topic" not in columns and topic is None:
        problems.append("There is no topic.")
        advice.append("Name one, or add a column topic.")
    if problems:
        found = ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"
        text = f"{' '.join(problems)} The columns are: {found}."
        raise SourceError(text, advice=" ".join(advice) or None)


def one_of(kinds: frozenset[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *others, last = sorted(kinds)
    return f"{', '.join(others)} or {last}" if others else last


def checked(batch: Any, topic: str | None, zone: ZoneInfo | None = None) -> Checked:
    """The columns of a batch; ``topic``: of rows that name none; ``zone``: of times that name none."""
    column = {name: batch.column(name) for name in batch.schema.names}
    broken: dict[str, Mask] = {}
    for name in column.keys() - {"body", CORRUPT}:
        column[name], broken[name] = _without_broken(column[name])
    rows = batch.num_rows
    topics, topic_of, no_topic = _topics(column.get("topic"), topic, rows)
    times_ms, time_reasons = _times(column["deliver_at"], zone)
    found = Checked(
        reasons=np.zeros(rows, np.uint8),
        deliver_at_ms=times_ms,
        body=column["body"].cast(pa.large_binary()),
        key=_text(column.get("key")),
        order_key=_text(column.get("order_key")),
        headers=None,
        priority=None,
        topics=topics,
        topic_of=topic_of,
    )
    if CORRUPT in column:
        found.refuse("unreadable_row", valid(column[CORRUPT]))
        for texts in (one for one in column.values() if pa.types.is_string(one.type)):
            found.refuse("unreadable_row", _was_replaced(texts))
    for name, code in _BROKEN.items():
        if name in broken:
            found.refuse(code, broken[name])
    found.refuse("no_time", ~valid(column["deliver_at"]))
    for code, mask in time_reasons.items():
        found.refuse(code, mask)
    found.refuse("bad_time", (times_ms < 0) | (times_ms > MAX_TIME_MS))
    found.refuse("no_body", ~valid(found.body))
    found.refuse("no_topic", no_topic)
    bad_names = [not is_valid_name(name) for name in topics]
    if any(bad_names):
        found.refuse("bad_topic", np.array(bad_names)[topic_of])
    if "priority" in column:
        found.priority, is_bad = _priorities(column["priority"])
        found.refuse("bad_priority", is_bad)
    for code, texts in (("bad_key", found.key), ("bad_order_key", found.order_key)):
        if texts is not None:
            lengths = _lengths(texts)
            found.refuse(code, valid(texts) & ((lengths == 0) | (lengths > MAX_KEY_BYTES)))
    if "headers" in column:
        found.headers, is_bad = packed_headers(column["headers"])
        found.refuse("bad_headers", is_bad)
        found.refuse("headers_too_large", _lengths(found.headers) > MAX_HEADERS_BYTES)
    return found


def _without_broken(column: Any) -> tuple[Any, Mask]:
    """A column without the texts that are no UTF-8, as casts of binary columns make them, and where those were."""
    is_map = pa.types.is_map(column.type)
    if is_map or pa.types.is_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            broken = _broken_maps(column) if is_map else _broken_texts(column)
            return column.take(pa.array(np.arange(len(column)), mask=broken)), broken
    return column, np.zeros(len(column), np.bool_)


def _broken_texts(texts: Any) -> Mask:
    return np.array(
        [text is not None and not _is_utf8(text) for text in texts.cast(pa.binary()).to_pylist()], bool
    )


def _broken_maps(column: Any) -> Mask:
    offsets = np.asarray(column.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    broken = _broken_texts(column.keys.slice(first, last - first))
    broken |= _broken_texts(column.items.slice(first, last - first))
    until = np.concatenate([[0], np.cumsum(broken)])
    found: Mask = np.diff(until[offsets - first]) > 0
    return found


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _was_replaced(texts: Any) -> Mask:
    """Where Spark has read bytes of a text file that are no UTF-8."""
    return np.asarray(pc.match_substring(texts, _NO_TEXT).fill_null(False))


def valid(column: Any) -> Mask:
    """Which values are not NULL."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return np.asarray(column.is_valid())


def _lengths(column: Any) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).fill_null(0), np.int64)


def _text(column: Any | None) -> Any | None:
    if column is None:
        return None
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_binary())


def _topics(
    column: Any | None, default: str | None, rows: int
) -> tuple[list[str], npt.NDArray[np.uint32], Mask]:
    """Names, the place of each row's among them, and which rows have none."""
    none = np.zeros(rows, np.bool_)
    if column is None:
        assert default is not None
        return [default], np.zeros(rows, np.uint32), none
    encoded = column.dictionary_encode()
    names = [*encoded.dictionary.to_pylist(), default if default is not None else "none"]
    of = np.asarray(encoded.indices.fill_null(len(names) - 1), np.uint32)
    return names, of, none if default is not None else ~valid(column)


def _times(column: Any, zone: ZoneInfo | None) -> tuple[npt.NDArray[np.int64], dict[str, Mask]]:
    """Milliseconds, and which rows have none that can be read."""
    if pa.types.is_timestamp(column.type):
        micros = np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(0))
        if column.type.tz is None and zone is not None:
            micros = instants(micros, zone)
        # A message is never early: what lies within a millisecond is due when it is over.
        return -(-micros // 1_000), {}
    if pa.types.is_integer(column.type):
        times_ms = np.asarray(column.cast(pa.int64()).fill_null(0), np.int64)
        return times_ms, {"seconds_time": valid(column) & _are_seconds(times_ms)}
    times_ms, states = parse_moments(column, zone)
    return times_ms, {
        "naive_time": states == NAIVE,
        "unreadable_time": states == UNREADABLE,
        "seconds_time": (states == NUMBER) & _are_seconds(times_ms),
    }


def _are_seconds(times_ms: npt.NDArray[np.int64]) -> Mask:
    """Which bare numbers are too small for milliseconds."""
    return np.asarray((times_ms >= 0) & (times_ms < LEAST_NUMBER_MS))


def _priorities(column: Any) -> tuple[Any, Mask]:
    """As int64, and which rows have none that can be used."""
    unreadable = np.zeros(len(column), np.bool_)
    if not pa.types.is_integer(column.type):
        is_number = pc.match_substring_regex(column, r"^\s*\d{1,3}\s*$")
        unreadable = ~np.asarray(is_number.fill_null(True))
        column = pc.utf8_trim_whitespace(pc.if_else(is_number, column, None))
    numbers = column.cast(pa.int64())
    values = np.asarray(numbers.fill_null(0))
    return numbers, unreadable | (values < 0) | (values > 255)


def shown(batch: Any, name: str, row: int) -> str | None:
    """A value as a text for people, cut; None: there is none."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())  # what is no time cannot be shown as one
    try:
        value = column[row].as_py()
    except UnicodeDecodeError:
        return "no UTF-8"
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    elif not isinstance(value, str | int):
        value = msgspec.json.encode(dict(value)).decode()
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
