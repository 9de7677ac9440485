"""Whether a process of Spark reaches a broker's tables by Arrow Flight: the driver, and each executor, by the same
steps that a reading takes.
"""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tickwheel import sync
from tickwheel.arrow.network import Flights
from tickwheel.errors import Forbidden, TickwheelError
from tickwheel.spark.errors import SparkError, plain_text, spark_errors, understood

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK_LIMIT_MS: Final = 1_000
"""Clocks that differ by more make times of reports and of schedules look wrong."""

_TASKS: Final = 16
"""Where Spark does not say how many run at a time: a session of Spark Connect."""
_STREAM_S: Final = 0.5
"""So long the test stream is read."""
_COLUMNS: Final = ("id", "topic", "state", "deliver_at")
_FIELDS: Final = {
    **dict.fromkeys(("host", "versions", "error", "query"), "string"),
    **dict.fromkeys(("clock_ms", "rows", "bytes"), "bigint"),
    "seconds": "double",
}
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64()}
_SCHEMA: Final = pa.schema([(name, _ARROW[kind]) for name, kind in _FIELDS.items()])


@dataclass(frozen=True, slots=True)
class Reach:
    """What a process found. ``error``: why it reads nothing; then the rest is not known. ``query``: the topics that the
    token may query. ``clock_ms``: how far this clock is ahead of the broker's, None where the broker does not tell.
    ``rows``, ``bytes``, ``seconds``: the test stream."""

    host: str
    versions: str
    error: str = ""
    query: str = ""
    clock_ms: int | None = None
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        """Whether tables can be read here, by a clock that is the broker's."""
        return not self.error and abs(self.clock_ms or 0) <= CLOCK_LIMIT_MS

    def told(self) -> str:
        """All of it on one line."""
        if self.error:
            return f"{self.host}: {self.error}"
        stream = "there are no rows to measure a stream with"
        if self.rows:
            rate, size = self.rows / self.seconds, self.bytes / self.seconds / 1e6
            stream = f"a stream of {rate:,.0f} rows/s, {size:,.0f} MB/s"
        clock = "the broker does not tell its clock"
        if self.clock_ms is not None:
            way = "ahead of" if self.clock_ms > 0 else "behind"
            clock = f"the clock is {abs(self.clock_ms)} ms {way} the broker's"
            if not self.is_well:
                clock += ": set it (NTP)"
        return f"{self.host}: {self.versions}; may query {self.query}; {stream}; {clock}"


def reach_of_this_process(source: Mapping[str, str]) -> Reach:
    """Log in, ask for a plan, and read some of it. ``source``: ``url``, ``tokenFile``, ``caFile``, as options of the
    data source."""
    host, versions = socket.gethostname(), versions_of_this_process()
    try:
        url, token_file, ca_file = source["url"], source.get("tokenFile"), source.get("caFile")
        with sync.Client(url, name="doctor", token_file=token_file, ca_file=ca_file) as client:
            clock_ms, query = _clock_ms(client), _query(client.grants)
        flights = Flights.of_broker(url, token_file=token_file, ca_file=ca_file)
        rows, size, seconds = _test_stream(flights)
    except TickwheelError as error:
        return Reach(host, versions, error=" ".join(filter(None, (error.message, error.advice))))
    return Reach(host, versions, query=query, clock_ms=clock_ms, rows=rows, bytes=size, seconds=seconds)


def reach_of_executors(spark: SparkSession, source: Mapping[str, str]) -> list[Reach]:
    """What tasks find, of each host the worst. Raises ``TickwheelError`` where the tasks cannot run."""
    given = dict(source)

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pylist([asdict(reach_of_this_process(given))], schema=_SCHEMA)

    try:
        # Twice as many as run at a time, for a task goes where there is room first.
        tasks = 2 * spark.sparkContext.defaultParallelism
    except spark_errors():
        tasks = _TASKS
    try:
        rows = (
            spark.range(0, tasks, 1, tasks)
            .mapInArrow(look, ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items()))
            .collect()
        )
    except spark_errors() as error:
        raise understood(error) or _not_run(plain_text(error)) from None
    return worst_of_hosts([Reach(**row.asDict()) for row in rows])


def _not_run(text: str) -> SparkError:
    if "No module named" in text:
        return SparkError(
            "An executor lacks a package: " + text[text.index("No module named") :].partition("\n")[0],
            advice="Install tickwheel[spark,flight] there, in the Python that spark.pyspark.python names.",
        )
    return SparkError(f"A job that looks at the executors failed: {text}", advice="")


def worst_of_hosts(found: Sequence[Reach]) -> list[Reach]:
    """The finding of each host that is worst: an error, a wrong clock, the slowest stream."""
    by_host: dict[str, Reach] = {}
    for one in sorted(
        found, key=lambda one: (not one.error, one.is_well, one.rows / one.seconds if one.seconds else 0.0)
    ):
        by_host.setdefault(one.host, one)
    return sorted(by_host.values(), key=lambda one: one.host)


def versions_of_this_process() -> str:
    """What tables are read with, which driver and executors have alike."""
    return f"Python {platform.python_version()}, tickwheel {version('tickwheel')}, pyarrow {pa.__version__}"


def _clock_ms(client: sync.Client) -> int | None:
    asked_ms = time.time() * 1_000
    try:
        told_ms = client.figures(totals_only=True).now_ms
    except Forbidden:
        return None
    # The broker's answer was made about in the middle.
    return round((asked_ms + time.time() * 1_000) / 2 - told_ms)


def _query(grants: Sequence[str] | None) -> str:
    if grants is None:
        return "all topics"
    patterns = [one.partition(":")[2] for one in grants if one.startswith("query:")]
    return ", ".join(sorted(patterns)) or "no topic"


def _test_stream(flights: Flights) -> tuple[int, int, float]:
    """Rows, bytes, seconds."""
    planned = flights.plan({"table": "messages", "columns": list(_COLUMNS)})
    rows, size, begin = 0, 0, time.perf_counter()
    for ticket in planned.tickets:
        for batch in flights.read(ticket):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if time.perf_counter() - begin >= _STREAM_S:
                return rows, size, time.perf_counter() - begin
    return rows, size, time.perf_counter() - begin
