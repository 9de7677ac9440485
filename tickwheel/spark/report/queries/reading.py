"""What a report reads: the tables ``messages`` and ``events`` of each data directory or broker, with the columns that
it needs and no others, times as epoch milliseconds and topics by the names that users gave them.

Ids belong to one log, so each row has the number of its own, ``log``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tickwheel.arrow.network import OUTLINE, Flights
from tickwheel.arrow.options import read_options
from tickwheel.arrow.outline import Outline, outline_of
from tickwheel.arrow.predicates import conditions
from tickwheel.spark.report.options import ReportOptions
from tickwheel.spark.tables import describe
from timerlog.names import DEAD_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The events that say when a message was promised, delivered and done.
_EVENTS: Final = "sent,rescheduled,delivered,returned,acked,dead"
_EVENT_COLUMNS: Final = (
    "position", "place", "event", "time", "time_next", "topic", "group", "id", "epoch", "priority", "deliver_at",
)  # fmt: skip
_NACK_COLUMNS: Final = ("topic", "group", "id", "error")
_STATE_COLUMNS: Final = ("id", "topic", "group", "state", "time_next", "time_created", "deliver_at")
_TIMES: Final = ("time", "time_next", "time_created", "deliver_at")


@dataclass(frozen=True, slots=True)
class Frames:
    """``events``: one row for each thing that happened. ``nacks``: one for each delivery that was given back.
    ``messages``: one for each message and group, ``is_first`` for the first group of its topic. ``identities``: key,
    headers and ordering key, one row for each message. ``letters``: the dead letters, one row each. ``now_ms``: when
    the directories were looked at; ``log_bytes``: the size of their logs."""

    events: DataFrame
    nacks: DataFrame
    messages: DataFrame
    identities: DataFrame
    letters: DataFrame
    now_ms: int
    log_bytes: int


def read_frames(spark: SparkSession, options: ReportOptions) -> Frames:
    """Raises ``SourceError`` when a directory cannot be read, Forbidden and what connecting raises."""
    outlines = [_outline(place, is_committed=options.committed) for place in options.places]
    readers = [
        _Reader(spark=spark, options=options, number=number, place=place, outline=outline)
        for number, (place, outline) in enumerate(zip(options.places, outlines, strict=True))
    ]
    return Frames(
        events=_union(one.events() for one in readers),
        nacks=_union(one.nacks() for one in readers),
        messages=_union(one.messages() for one in readers),
        identities=_union(one.identities() for one in readers),
        letters=_union(one.letters() for one in readers),
        now_ms=max(one.now_ms for one in outlines),
        log_bytes=sum(one.log_bytes for one in outlines),
    )


def _outline(place: Mapping[str, str], *, is_committed: bool) -> Outline:
    options = read_options({**place, "committed": str(is_committed).lower()})
    if options.url is None:
        return outline_of(describe(options)[0])
    flights = Flights.of_broker(options.url, token_file=options.token_file, ca_file=options.ca_file)
    return flights.act(OUTLINE, {"committed": is_committed}, Outline)


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


class _Reader:
    """One directory or broker: the ``number``-th. ``place``: options of the data source."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        options: ReportOptions,
        number: int,
        place: Mapping[str, str],
        outline: Outline,
    ) -> None:
        self._spark, self._options, self._number, self._place = spark, options, number, place
        self._parents, self._first_groups = outline.parents, outline.first_groups
        self._dead_topics = [name for name in outline.topics if name.endswith(DEAD_SUFFIX)]

    def events(self) -> DataFrame:
        return self._finished(self._load("events", _EVENT_COLUMNS, events=_EVENTS))

    def nacks(self) -> DataFrame:
        return self._finished(self._load("events", _NACK_COLUMNS, events="nacked"))

    def messages(self) -> DataFrame:
        frame = self._load("messages", _STATE_COLUMNS)
        return self._finished(frame.withColumn("is_first", self._is_first()))

    def identities(self) -> DataFrame:
        kind = self._options.tenant.kind
        extra = {"header": ("headers",), "order-key": ("order_key",), "key-prefix": ()}[kind]
        columns = ("id", "topic", "group", "key", *extra)
        frame = self._load("messages", columns).where(self._is_first())
        return frame.drop("topic", "group").withColumn("log", F.lit(self._number))

    def letters(self) -> DataFrame:
        columns = (*_STATE_COLUMNS, "dead_reason", "headers")
        # Headers and reasons lie in the log: they are read of dead letters only.
        filters = conditions(("topic", "in", self._dead_topics or [""]))
        frame = self._load("messages", columns, filters=filters).where(self._is_first())
        return self._finished(frame)

    def _load(self, table: str, columns: Sequence[str], **options: str) -> DataFrame:
        source = self._spark.read.format("tickwheel").options(table=table, columns=",".join(columns))
        source = source.options(committed=str(self._options.committed).lower(), **options)
        return source.options(**self._place).load()

    def _is_first(self) -> Column:
        """Of the rows that a message has, one for each group, true for one."""
        if not self._first_groups:
            return F.col("group").isNull()
        return F.col("group").isNull() | (F.col("group") == _looked_up(self._first_groups, "topic"))

    def _finished(self, frame: DataFrame) -> DataFrame:
        for name in _TIMES:
            if name in frame.columns:
                renamed = "happened_ms" if name == "time" else f"{name.removeprefix('time_')}_ms"
                frame = frame.withColumn(renamed, F.unix_millis(name)).drop(name)
        if self._parents:
            frame = frame.withColumn("topic", F.coalesce(_looked_up(self._parents, "topic"), F.col("topic")))
        return frame.withColumn("log", F.lit(self._number))


def _looked_up(names: Mapping[str, str], column: str) -> Column:
    """What a name stands for; NULL where it is not among them."""
    return F.element_at(
        F.create_map(*[F.lit(part) for pair in names.items() for part in pair]), F.col(column)
    )
