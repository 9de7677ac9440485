"""Sending a file of JSON lines: all is checked before anything is sent, then it goes out in batches."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from tickwheel_cli.messages.bulk import BadLine, Batch, BulkMessage, batches, parse_lines, send_many_arguments
from tickwheel_cli.shared.session import Session

if TYPE_CHECKING:
    from tickwheel import sync

_SPOOL_BYTES = 64 << 20
_METER_BYTES = 64 << 10


@dataclass
class BulkReport:
    """What became of a file. `problems` are bad lines, and messages that the broker refused."""

    sent: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    problems: list[BadLine] = field(default_factory=list)
    error: dict[str, Any] | None = None  # what ended it before the end of the file

    def summary(self) -> str:
        """One line for people."""
        if not self.sent and not self.duplicates and self.problems:
            return f"nothing was sent: {len(self.problems):,} bad lines"
        rate = self.sent / self.seconds if self.seconds else 0.0
        text = f"sent {self.sent:,} messages in {self.seconds:.1f} s ({rate:,.0f}/s)"
        if self.duplicates:
            text += f", {self.duplicates:,} were there already"
        if self.problems:
            text += f", {len(self.problems):,} lines were not sent"
        return text


Progress = Callable[[int], None]


def send_file(session: Session, file: BinaryIO, topic: str | None, *, skip_bad: bool) -> BulkReport:
    """Check all lines of `file`, then send them unless there is a bad one (or `skip_bad`)."""
    report = BulkReport()
    with _rereadable(file) as source, _progress_bar(_size(source)) as (check_progress, send_progress):
        report.problems += _check(source, topic, check_progress)
        if report.problems and not skip_bad:
            return report
        source.seek(0)
        with session.client(may_create=True) as client:
            _send_all(client, batches(_good_messages(source, topic, send_progress)), report)
    report.problems.sort(key=lambda problem: problem.line)
    return report


def _check(source: IO[bytes], topic: str | None, progress: Progress) -> Iterator[BadLine]:
    for line_bytes, line in parse_lines(source, topic):
        progress(line_bytes)
        if isinstance(line, BadLine):
            yield line


def _good_messages(source: IO[bytes], topic: str | None, progress: Progress) -> Iterator[BulkMessage]:
    for line_bytes, line in parse_lines(source, topic):
        progress(line_bytes)
        if isinstance(line, BulkMessage):
            yield line


def _send_all(client: sync.Client, all_batches: Iterator[Batch], report: BulkReport) -> None:
    """Batch after batch. When the broker accepts no more, the report says so and what had arrived by then."""
    from tickwheel.errors import TickwheelError, to_wire

    started = time.perf_counter()
    try:
        for batch in all_batches:
            _send(client, batch, report)
    except TickwheelError as error:
        report.error = to_wire(error)
    report.seconds = time.perf_counter() - started


def _send(client: sync.Client, batch: Batch, report: BulkReport) -> None:
    """One batch; what the broker refuses becomes a problem of its line."""
    results = client.send_many(batch.topic, **send_many_arguments(batch))
    for message, result in zip(batch.messages, results, strict=True):
        if isinstance(result, Exception):
            report.problems.append(BadLine(message.number, f"[{getattr(result, 'code', 'error')}] {result}"))
        elif result.duplicate:
            report.duplicates += 1
        else:
            report.sent += 1


@contextmanager
def _rereadable(file: BinaryIO) -> Iterator[IO[bytes]]:
    """The file itself, or a copy of what comes through a pipe: the lines are read twice."""
    if file.seekable():
        yield file
        return
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
        shutil.copyfileobj(file, spool)
        spool.seek(0)
        yield spool


def _size(source: IO[bytes]) -> int:
    end = source.seek(0, os.SEEK_END)
    source.seek(0)
    return end


class _Meter:
    """Counts bytes and moves a bar now and then: to move it for every line would be slow."""

    def __init__(self, advance: Progress) -> None:
        self._advance = advance
        self._pending_bytes = 0

    def __call__(self, line_bytes: int) -> None:
        self._pending_bytes += line_bytes
        if self._pending_bytes >= _METER_BYTES:
            self._advance(self._pending_bytes)
            self._pending_bytes = 0


@contextmanager
def _progress_bar(total_bytes: int) -> Iterator[tuple[Progress, Progress]]:
    """Two bars on standard error, for checking and for sending; only on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from tickwheel_cli.shared.output import stderr_console

    console = stderr_console()
    columns = (TextColumn("{task.description:<8}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        checking = bars.add_task("checking", total=total_bytes)
        sending = bars.add_task("sending", total=total_bytes)
        yield (
            _Meter(lambda moved_bytes: bars.advance(checking, moved_bytes)),
            _Meter(lambda moved_bytes: bars.advance(sending, moved_bytes)),
        )
