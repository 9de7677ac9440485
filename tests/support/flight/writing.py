"""Writes bulk jobs as a task and a driver do that do not see the data directory, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.flight as fl

from tests.support.flight.calling import Caller
from tests.support.stores.bulk import columns
from tickwheel import AdoptResult
from tickwheel.arrow.jobs import MANIFEST_SUFFIX, PUT_SCHEMA, STAGING, Run, Stored, as_batch
from timerlog.bulk.write import MANIFEST, Manifest, Plan, Segment, write_segments

DUE_MS = 4_000_000_000_000


class Writer:
    """One run of a job."""

    def __init__(self, run: Run, folder: Path, topic: str = "jobs") -> None:
        self.run, self.folder, self.topic = run, folder, topic
        self.segments: list[Segment] = []
        self.plan: Plan | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def begin(self) -> Plan:
        self.plan = msgspec.convert(self.run.begin([self.topic]).plan, Plan)
        return self.plan

    def write(self, count: int, *, attempt: int = 0, first: int = 0) -> list[Segment]:
        """A task's files, on its own disk."""
        assert self.plan is not None
        keys = [b"k%d" % number for number in range(first, first + count)]
        rows = columns([DUE_MS + number for number in range(count)], keys=keys)
        name = f"{self.run.name}-{attempt}-0"
        return write_segments(self.plan, self.topic, rows, self.run.reserve_ids, self.folder, name)

    def task(self, count: int, *, attempt: int = 0, first: int = 0) -> None:
        """One that wins."""
        for segment in self.write(count, attempt=attempt, first=first):
            self.run.put(self.folder / segment.file, segment.file)
            self.segments.append(segment)

    def put_manifest(self) -> None:
        assert self.plan is not None
        path = self.folder / MANIFEST
        path.write_bytes(msgspec.json.encode(Manifest(plan=self.plan, segments=self.segments)))
        self.run.put(path, self.run.name + MANIFEST_SUFFIX)

    def adopt(self, max_rejects: int = 0) -> AdoptResult:
        return self.run.adopt(max_rejects)


def put_raw(caller: Caller, path: list[Any], chunks: list[bytes], end: Any = None, schema: Any = None) -> Any:
    """A DoPut of whatever a test makes up. ``end``: its last metadata; None: none at all. Raises what it ends with."""
    writer, answers = caller.client.do_put(
        fl.FlightDescriptor.for_path(*path), PUT_SCHEMA if schema is None else schema, caller.options
    )
    told = None
    try:
        for chunk in chunks:
            writer.write_batch(as_batch(chunk))
        if end is not None:
            writer.write_metadata(end if isinstance(end, bytes) else msgspec.json.encode(end))
        writer.done_writing()
        told = answers.read()
    finally:
        writer.close()
    return None if told is None else msgspec.json.decode(told.to_pybytes(), type=Stored)


@contextmanager
def begun(caller: Caller, path: list[str]) -> Iterator[Any]:
    """A put of which nothing has come but its beginning, and which is cut off at the end."""
    writer, _ = caller.client.do_put(fl.FlightDescriptor.for_path(*path), PUT_SCHEMA, caller.options)
    writer.write_batch(as_batch(b"x" * 1_000))
    try:
        yield writer
    finally:
        caller.close()


def staged(data: Path) -> list[str]:
    """All that is left of jobs."""
    folder = data / STAGING
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def until(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.01)


def asked(**fields: Any) -> bytes:
    """What an action takes."""
    return json.dumps(fields).encode()
