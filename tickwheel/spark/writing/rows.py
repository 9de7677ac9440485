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
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.options import refuse_misspelt, refuse_token
from tickwheel.client.times import EpochMs
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.limits import LEAST_NUMBER_MS, is_valid_name
from tickwheel.spark.errors import RowsRejected
from tickwheel.spark.writing.columns import SINK_COLUMNS, Checked, checked, shown
from tickwheel.spark.writing.reasons import CODES, REASONS

DEFAULT_BATCH_ROWS: Final = 10_000
_OPTIONS: Final = ("url", "tokenFile", "caFile", "topic", "batchRows", "jobId", "report")
_SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """``url``: of the broker, None: the client's default. ``topic``: of rows that name none. ``job``: by which the keys
    of rows without one are made; None: a new one each time. ``report``: a file that gets the counts as JSON.
    ``token_file``, ``ca_file``: on each machine that has tasks; None: what is in the environment there."""

    url: str | None = None
    topic: str | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    job: str | None = None
    report: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises ``SourceError``."""
    refuse_misspelt(options, _OPTIONS)
    refuse_token(options)
    rows = options.get("batchRows", str(DEFAULT_BATCH_ROWS))
    if not rows.isdecimal() or int(rows) == 0:
        raise SourceError(f"The option batchRows is {rows!r}: use a whole number above 0.")
    topic = options.get("topic")
    if topic is not None and not is_valid_name(topic):
        raise SourceError(f"{topic!r} cannot be the name of a topic.")
    return WriteOptions(
        url=options.get("url"),
        topic=topic,
        batch_rows=int(rows),
        job=options.get("jobId") or None,
        report=options.get("report"),
        token_file=options.get("tokenFile") or None,
        ca_file=options.get("caFile") or None,
    )


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
    with sync.Client(options.url, token_file=options.token_file, ca_file=options.ca_file) as client:
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
    found = checked(batch, topic)
    if found.reasons.any():
        raise _rejected(found, batch)
    columns = _plain_columns(found)
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for number, (name, priority) in enumerate(zip(columns["topic"], columns["priority"], strict=True)):
        groups[name, priority is None].append(number)
    made = _keys(columns, keys)
    return [
        Outgoing(
            topic=name,
            numbers=numbers,
            keys=[made[i] for i in numbers],
            bodies=[columns["body"][i] for i in numbers],
            times_ms=[columns["deliver_at"][i] for i in numbers],
            priorities=None if is_default else [columns["priority"][i] for i in numbers],
            headers=[columns["headers"][i] for i in numbers],
            order_keys=[columns["order_key"][i] for i in numbers],
        )
        for (name, is_default), numbers in groups.items()
    ]


def _keys(columns: dict[str, list[Any]], keys: KeyOfRow) -> list[str]:
    order = [name for name in SINK_COLUMNS if name != "key"]
    return [
        key if key is not None else keys.of([columns[name][number] for name in order])
        for number, key in enumerate(columns["key"])
    ]


def _plain_columns(found: Checked) -> dict[str, list[Any]]:
    """Each column as plain values."""
    none = [None] * len(found.reasons)

    def texts(column: Any | None) -> list[Any]:
        return none if column is None else column.cast(pa.large_string()).to_pylist()

    headers = none if found.headers is None else [_headers(packed) for packed in found.headers.to_pylist()]
    return {
        "key": texts(found.key),
        "deliver_at": found.deliver_at_ms.tolist(),
        "body": found.body.to_pylist(),
        "priority": none if found.priority is None else found.priority.to_pylist(),
        "headers": headers,
        "topic": [found.topics[i] for i in found.topic_of.tolist()],
        "order_key": texts(found.order_key),
    }


def _headers(packed: bytes | None) -> dict[str, Any] | None:
    if not packed:
        return None if packed is None else {}
    unpacked: dict[str, Any] = msgspec.msgpack.decode(packed)
    return unpacked


def _rejected(found: Checked, batch: Any) -> RowsRejected:
    rows = np.flatnonzero(found.reasons).tolist()
    counts = Counter(REASONS[CODES[number]][1] for number in found.reasons[rows].tolist())
    what = "; ".join(f"{count:,} × {reason}" for reason, count in counts.most_common())
    samples = [
        {name: value for name in SINK_COLUMNS if (value := shown(batch, name, row)) is not None}
        for row in rows[:_SAMPLES]
    ]
    return RowsRejected(
        f"{len(rows):,} of a batch of {batch.num_rows:,} rows cannot be sent, so none of it was: {what}. For example "
        f"{msgspec.json.encode(samples).decode()}."
    )


def _moments(times_ms: Sequence[int]) -> Any:
    """Judged already: a timestamp may be of any year."""
    if min(times_ms, default=LEAST_NUMBER_MS) < LEAST_NUMBER_MS:
        return [EpochMs(time_ms) for time_ms in times_ms]
    return np.array(times_ms, np.int64)


def _send(client: sync.Client, outgoing: Outgoing, written: Written) -> None:
    results = client.send_many(
        outgoing.topic,
        outgoing.bodies,
        keys=outgoing.keys,
        deliver_at=_moments(outgoing.times_ms),
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
