"""The process of one query, or of one history: a job on standard input, one whole frame on standard output. Behind it
stand the numbers of messages that were found damaged, 8 bytes each.

It has the broker's rights on the data directory but never writes, takes no lock, and yields to the broker: the
system's scheduler gives it what the broker leaves.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from math import ceil
from typing import Any

import msgspec
import numpy as np

from tickwheel_native import Buffer, delivery
from timerlog.readers.attempts import AttemptReader, Before, Mark, pack_attempts
from timerlog.readers.history import history_of, pack_history
from timerlog.readers.snapshot import Description, Snapshot
from timerlog.readers.tail import Place, TailReader

NICENESS = 5
"""Beside busy processes a query gets a third of what each of them gets. With 10 it got a tenth, and `select 1` took
up to 30 s; sends beside two queries that never pause are as fast with 10, 5 and 0 (p99 9.2, 9.4 and 9.6 ms)."""
_FRAME_HEAD_BYTES = 16
_SHARE_OF_TIME = 0.8
_GRACE_S = 5


class Sql(msgspec.Struct, frozen=True, tag=True):
    """One query."""

    sql: str
    limit: int
    parameters: list[Any] | dict[str, Any] | None = None
    stream: bool = False  #: the rows as a stream of Arrow


class Life(msgspec.Struct, frozen=True, tag=True):
    """What has happened to one message, by a log that ends at ``end``."""

    message_id: int
    end: int
    limit: int


class Follow(msgspec.Struct, frozen=True, tag=True):
    """What has happened since a place in a log that ends at ``end``."""

    place: Place
    end: int
    limit: int
    has_gap: bool = False  #: before the place


class Tried(msgspec.Struct, frozen=True, tag=True):
    """The last deliveries to some groups, by a log that ends at ``end``."""

    groups: list[int]
    mark: Mark | None
    before: Before | None
    end: int
    limit: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask of which store, and how the answer is to be framed."""

    description: Description
    work: Sql | Life | Follow | Tried
    max_bytes: int  #: of the answer's payload
    timeout_s: int
    correlation: int
    answer_type: int
    error_type: int


class Failure(msgspec.Struct, frozen=True):
    """The body of an ERROR frame."""

    code: str
    message: str
    advice: str
    retryable: bool = False


_GROUP = re.compile(r"""(?<!")\bgroup\b(?!"|\s+by\b)""", re.IGNORECASE)


def run_job(job: Job, is_late: Callable[[], bool] = lambda: False) -> bytes:
    """The frame that answers a job, the result or the error; and what was found damaged. What is read of the log ends
    as soon as ``is_late`` says so."""
    if isinstance(job.work, Sql):
        answer, damaged = _answer(job, job.work)
    elif isinstance(job.work, Life):
        answer, damaged = _life(job, job.work, is_late), []
    elif isinstance(job.work, Follow):
        answer, damaged = _follow(job, job.work, is_late), []
    else:
        answer, damaged = _tried(job, job.work, is_late), []
    tail = np.array(damaged, "<u8").tobytes()
    if isinstance(answer, Failure):
        return _frame(job.error_type, job.correlation, msgspec.msgpack.encode(answer)) + tail
    return _frame(job.answer_type, job.correlation, answer) + tail


def _life(job: Job, work: Life, is_late: Callable[[], bool]) -> bytes:
    """``{history: History or nil}``."""
    with closing(Snapshot(job.description)) as snapshot:
        found = history_of(snapshot, work.message_id, work.end, work.limit, is_late)
    return pack_history(found, job.max_bytes)


def _follow(job: Job, work: Follow, is_late: Callable[[], bool]) -> bytes:
    """A ``Tail``."""
    with closing(Snapshot(job.description)) as snapshot:
        reader = TailReader(snapshot, work.place, work.end, work.limit, job.max_bytes, work.has_gap)
        return msgspec.msgpack.encode(reader.run(is_late))


def _tried(job: Job, work: Tried, is_late: Callable[[], bool]) -> bytes:
    """``Attempts``."""
    with closing(Snapshot(job.description)) as snapshot:
        reader = AttemptReader(snapshot, work.groups, work.mark, work.before, work.end, work.limit)
        return pack_attempts(reader.run(is_late), job.max_bytes)


def _answer(job: Job, work: Sql) -> tuple[bytes | Failure, list[int]]:
    try:
        from timerlog.query.answer import NotRepresentable, pack_result, pack_stream
        from timerlog.query.engine import BadSql, Engine
    except ImportError as error:
        failure = Failure(
            "query_unavailable",
            f"The broker cannot query: {error}.",
            "Install what it needs where the broker runs: pip install 'tickwheel[query]'.",
        )
        return failure, []
    with closing(Snapshot(job.description)) as snapshot, closing(Engine(snapshot, work.sql)) as engine:
        try:
            columns, schema, batches = engine.run(work.sql, work.parameters)
            if work.stream:
                return pack_stream(schema, batches, work.limit, job.max_bytes), engine.damaged
            return pack_result(columns, batches, work.limit, job.max_bytes), engine.damaged
        except (BadSql, NotRepresentable) as error:
            advice = (
                "Each topic is a table, `messages` is all of them; `describe messages` lists the columns."
            )
            if _GROUP.search(work.sql):
                advice = f'`group` is an SQL word: the column is "group", in double quotes. {advice}'
            return Failure("bad_query", str(error), advice), engine.damaged


def _frame(frame_type: int, correlation: int, payload: Buffer) -> bytes:
    frame = bytearray(_FRAME_HEAD_BYTES) + payload
    if delivery.finish_frame(frame, len(payload), frame_type, correlation):
        raise ValueError("the answer does not fit into a frame")
    return bytes(frame)


class Bell:
    """Rings early enough for an answer to come in time; then the process has its last seconds as before. It is for work
    in small steps only: the last seconds do not begin while C is at work."""

    def __init__(self, job: Job) -> None:
        assert job.timeout_s > 0, "a timer of no time never rings"
        self.has_rung = False
        early_s = _SHARE_OF_TIME * job.timeout_s
        self._rest_s = ceil(job.timeout_s - early_s) + _GRACE_S
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, early_s)

    def _ring(self, *_: object) -> None:
        self.has_rung = True
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(self._rest_s)


def main() -> None:
    """Reads the job, answers it, ends."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    # The broker kills a query that takes too long; this is for one whose broker was killed itself.
    signal.alarm(job.timeout_s + _GRACE_S)
    os.nice(NICENESS)
    bell = None if isinstance(job.work, Sql) else Bell(job)
    sys.stdout.buffer.write(run_job(job, lambda: bell is not None and bell.has_rung))
    sys.stdout.buffer.flush()
    # Nothing is left to tidy up, and what DuckDB would say about its own teardown is of no use.
    os._exit(0)
