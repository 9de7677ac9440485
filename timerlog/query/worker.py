"""The process of one query: a job on standard input, one whole frame on standard output.

It has the broker's rights on the data directory but never writes, takes no lock, and yields to the broker: the
system's scheduler gives it what the broker leaves.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import closing
from typing import Any

import msgspec

from tickwheel_native import Buffer, delivery
from timerlog.readers.snapshot import Description, Snapshot

NICENESS = 10
_FRAME_HEAD_BYTES = 16


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask of which store, and how the answer is to be framed."""

    description: Description
    sql: str
    parameters: list[Any] | dict[str, Any] | None = None
    limit: int
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


def run_job(job: Job) -> bytes:
    """The frame that answers a job: the result, or the error."""
    answer = _answer(job)
    if isinstance(answer, Failure):
        return _frame(job.error_type, job.correlation, msgspec.msgpack.encode(answer))
    return _frame(job.answer_type, job.correlation, answer)


def _answer(job: Job) -> bytes | Failure:
    try:
        from timerlog.query.answer import NotRepresentable, pack_result
        from timerlog.query.engine import BadSql, Engine
    except ImportError as error:
        return Failure(
            "query_unavailable",
            f"The broker cannot query: {error}.",
            "Install what it needs where the broker runs: pip install 'tickwheel[query]'.",
        )
    with closing(Snapshot(job.description)) as snapshot, closing(Engine(snapshot, job.sql)) as engine:
        try:
            columns, batches = engine.run(job.sql, job.parameters)
            return pack_result(columns, batches, job.limit, job.max_bytes)
        except (BadSql, NotRepresentable) as error:
            advice = (
                "Each topic is a table, `messages` is all of them; `describe messages` lists the columns."
            )
            if _GROUP.search(job.sql):
                advice = f'`group` is an SQL word: the column is "group", in double quotes. {advice}'
            return Failure("bad_query", str(error), advice)


def _frame(frame_type: int, correlation: int, payload: Buffer) -> bytes:
    frame = bytearray(_FRAME_HEAD_BYTES) + payload
    if delivery.finish_frame(frame, len(payload), frame_type, correlation):
        raise ValueError("the answer does not fit into a frame")
    return bytes(frame)


def main() -> None:
    """Reads the job, answers it, ends."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    # The broker kills a query that takes too long; this is for one whose broker was killed itself.
    signal.alarm(job.timeout_s + 5)
    os.nice(NICENESS)
    sys.stdout.buffer.write(run_job(job))
    sys.stdout.buffer.flush()
    # Nothing is left to tidy up, and what DuckDB would say about its own teardown is of no use.
    os._exit(0)
