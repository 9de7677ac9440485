"""Rows of a DataFrame as messages: checked, keyed and sent through the blocking client, without Spark.

A message without a key could not be told from itself when Spark runs a task twice. So such a row gets one that is the
same in every run of the task: a digest of the job, the number of the task's partition, and all that the row says, and
then which of the rows with that same content it is. The order of rows in a partition does not matter to it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tickwheel import sync
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.limits import is_valid_name
from tickwheel.spark.errors import RowsRejected, SourceError

DEFAULT_BATCH_ROWS: Final = 10_000
MAX_TIME_MS: Final = 253_402_300_799_999
_SAMPLES: Final = 5
_WHOLE_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
#: Types that each column may have, as Spark spells them.
SINK_COLUMNS: Final[dict[str, frozenset[str]]] = {
    "key": frozenset({"string", "int", "bigint"}),
    "deliver_at": frozenset({"timestamp", "bigint"}),
    "body": frozenset({"string", "binary"}),
    "priority": _WHOLE_NUMBERS,
    "headers": frozenset({"string", "map<string,string>"}),
    "topic": frozenset({"string"}),
    "order_key": frozenset({"string"}),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """``url``: of the broker, None: the client's default. ``topic``: of rows that name none. ``job``: by which the keys
    of rows without one are made; None: a new one each time. ``report``: a file that gets the counts as JSON."""

    url: str | None = None
    topic: str | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    job: str | None = None
    report: str | None = None


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises ``SourceError``."""
    rows = options.get("batchRows", str(DEFAULT_BATCH_ROWS))
    if not rows.isdecimal() or int(rows) == 0:
        raise SourceError(f"The option batchRows is {rows!r}: use a whole number above 0.")
    topic = options.get("topic")
    if topic is not None and not is_valid_name(topic):
        raise SourceError(f"{topic!r} cannot be the name of a topic.")
    return WriteOptions(
        options.get("url"), topic, int(rows), options.get("jobId") or None, options.get("report")
    )


def check_columns(columns: Mapping[str, str], options: WriteOptions) -> None:
    """``columns``: names and types as Spark spells them. Raises ``SourceError``."""
    for name, kind in columns.items():
        if name not in SINK_COLUMNS:
            raise SourceError(f"A message has no column {name!r}: {', '.join(SINK_COLUMNS)}.")
        if kind == "timestamp_ntz":
            raise SourceError(
                f"The times of {name} have no time zone.",
                advice="Cast them to timestamp, in a session with the zone that they are meant in.",
            )
        if kind not in SINK_COLUMNS[name]:
            raise SourceError(f"The column {name} is {kind}: use {' or '.join(sorted(SINK_COLUMNS[name]))}.")
    for name in ("deliver_at", "body"):
        if name not in columns:
            raise SourceError(f"There is no column {name}: each message needs one.")
    if "topic" not in columns and options.topic is None:
        raise SourceError("There is no topic.", advice='Add a column topic, or .option("topic", …).')


@dataclass(slots=True)
class Written:
    """What a task has sent. ``duplicates``: rows whose key the broker had already, from an earlier run of this task or
    from anybody."""

    stored: int = 0
    duplicates: int = 0

    @property
    def rows(self) -> int:
        return self.stored + self.duplicates


class KeyOfRow:
    """Makes keys for rows without one; see this module's head."""

    def __init__(self, job: str, partition: int) -> None:
        self._salt = f"{job}\0{partition}".encode()
        self._seen: Counter[bytes] = Counter()

    def of(self, row: Sequence[Any]) -> str:
        digest = hashlib.blake2b(msgspec.msgpack.encode(row), key=self._salt[:64], digest_size=18)
        digest.update(self._salt)
        content = digest.digest()
        self._seen[content] += 1
        return f"spark-{content.hex()}-{self._seen[content]}"


@dataclass(slots=True)
class Outgoing:
    """Columns for one ``send_many``."""

    topic: str
    numbers: list[int]  #: which rows of the batch
    keys: list[str]
    bodies: list[bytes]
    times_ms: list[int]
    priorities: list[int] | None
    headers: list[dict[str, Any] | None]
    order_keys: list[str | None]


def send_rows(batches: Iterable[Any], options: WriteOptions, job: str, partition: int) -> Written:
    """Sends Arrow batches. Rows are checked before they are sent, ``batch_rows`` at a time.

    Raises ``RowsRejected`` when some cannot be sent: of their batch none was, and it says how many were before. Errors
    of the connection or the broker are raised as they are, with the same note.
    """
    written, keys = Written(), KeyOfRow(job, partition)
    with sync.Client(options.url) as client:
        for batch in _cut(batches, options.batch_rows):
            try:
                for outgoing in prepare(batch, options.topic, keys):
                    _send(client, outgoing, written)
            except TickwheelError as error:
                error.args = (f"{error.message} {_so_far(written, partition)}", *error.args[1:])
                raise
    return written


def _so_far(written: Written, partition: int) -> str:
    return (
        f"Partition {partition} had sent {written.rows:,} rows before ({written.stored:,} stored, "
        f"{written.duplicates:,} known already)."
    )


def _cut(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def prepare(batch: Any, topic: str | None, keys: KeyOfRow) -> list[Outgoing]:
    """The messages of a batch, by topic and whether they name a priority. Raises ``RowsRejected``."""
    columns = _plain_columns(batch, topic)
    problems = _problems(columns)
    if problems:
        raise _rejected(problems, columns, batch.num_rows)
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for number, (name, priority) in enumerate(zip(columns["topic"], columns["priority"], strict=True)):
        groups[name, priority is None].append(number)
    made = _keys(columns, keys)
    return [
        Outgoing(
            name,
            numbers,
            [made[i] for i in numbers],
            [columns["body"][i] for i in numbers],
            [columns["deliver_at"][i] for i in numbers],
            None if is_default else [columns["priority"][i] for i in numbers],
            [columns["headers"][i] for i in numbers],
            [columns["order_key"][i] for i in numbers],
        )
        for (name, is_default), numbers in groups.items()
    ]


def _keys(columns: dict[str, list[Any]], keys: KeyOfRow) -> list[str]:
    order = [name for name in SINK_COLUMNS if name != "key"]
    return [
        key if key is not None else keys.of([columns[name][number] for name in order])
        for number, key in enumerate(columns["key"])
    ]


def _plain_columns(batch: Any, topic: str | None) -> dict[str, list[Any]]:
    """Each column as plain values; what cannot be understood becomes the reason why, see ``Bad``."""
    found = {name: batch.column(name) for name in batch.schema.names}
    none = [None] * batch.num_rows
    columns = {name: found[name].to_pylist() if name in found else none for name in SINK_COLUMNS}
    columns["deliver_at"] = _times_ms(found["deliver_at"])
    columns["body"] = [body.encode() if isinstance(body, str) else body for body in columns["body"]]
    columns["key"] = [key if key is None else str(key) for key in columns["key"]]
    columns["topic"] = [topic if name is None else name for name in columns["topic"]]
    columns["headers"] = [_headers(value) for value in columns["headers"]]
    return columns


class Bad(str):
    """Why a value cannot be used, in its place."""


def _times_ms(column: Any) -> list[int | None]:
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        # A message is never early: what lies within a millisecond is due when it is over.
        values = -(-np.asarray(micros.fill_null(0)) // 1_000)
        return [int(v) if ok else None for v, ok in zip(values, micros.is_valid().to_pylist(), strict=True)]
    listed: list[int | None] = column.to_pylist()
    return listed


def _headers(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        return dict(value)  # a map comes as pairs
    try:
        parsed = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return Bad("the headers are no JSON")
    return parsed if isinstance(parsed, dict) else Bad("the headers are no JSON object")


def _problems(columns: dict[str, list[Any]]) -> list[tuple[int, str]]:
    """(row, reason) of the rows that cannot be sent."""
    problems = []
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        reason = _problem(dict(zip(columns, values, strict=True)))
        if reason:
            problems.append((number, reason))
    return problems


def _problem(row: dict[str, Any]) -> str:
    if row["deliver_at"] is None:
        return "there is no deliver_at"
    if not 0 <= row["deliver_at"] <= MAX_TIME_MS:
        return "deliver_at is before 1970 or after the year 9999"
    if row["body"] is None:
        return "there is no body"
    if row["topic"] is None:
        return "there is no topic"
    if not is_valid_name(row["topic"]):
        return "this cannot be the name of a topic"
    if row["priority"] is not None and not 0 <= row["priority"] <= 255:
        return "the priority is not between 0 and 255"
    for name in ("key", "order_key"):
        if row[name] is not None and not 0 < len(row[name].encode()) <= 255:
            return f"the {name} is empty or longer than 255 bytes"
    return row["headers"] if isinstance(row["headers"], Bad) else ""


def _rejected(problems: list[tuple[int, str]], columns: dict[str, list[Any]], rows: int) -> RowsRejected:
    counts = Counter(reason for _, reason in problems)
    what = "; ".join(f"{count:,} × {reason}" for reason, count in counts.most_common())
    samples = [
        {name: _shown(columns[name][number]) for name in SINK_COLUMNS if columns[name][number] is not None}
        for number, _ in problems[:_SAMPLES]
    ]
    return RowsRejected(
        f"{len(problems):,} of a batch of {rows:,} rows cannot be sent, so none of it was: {what}. For example "
        f"{msgspec.json.encode(samples).decode()}."
    )


def _shown(value: Any) -> Any:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(text, Bad):
        return f"({text})"
    return text if not isinstance(text, str) or len(text) <= 80 else f"{text[:80]}…"


def _send(client: sync.Client, outgoing: Outgoing, written: Written) -> None:
    results = client.send_many(
        outgoing.topic,
        outgoing.bodies,
        keys=outgoing.keys,
        deliver_at=np.array(outgoing.times_ms, np.int64),
        priority=outgoing.priorities,
        headers=outgoing.headers if any(outgoing.headers) else None,
        order_keys=outgoing.order_keys if any(outgoing.order_keys) else None,
    )
    errors = results.errors
    duplicates = sum(not isinstance(item, TickwheelError) and item.duplicate for item in results)
    written.duplicates += duplicates
    written.stored += len(results) - len(errors) - duplicates
    if errors:
        number, error = next(iter(errors.items()))
        raise RowsRejected(
            f"{len(errors):,} rows were refused by the broker, and the others of their batch were sent. The first, "
            f"with the key {outgoing.keys[number]!r}: [{error.code}] {error.message}"
        )
