"""Jobs of bulk scheduling by a ``tickwheel flight``, for who does not see the broker's data directory: files of a job
are put beside it by DoPut, and what the broker is asked goes the same way.

``Run`` is one attempt at a job. Its name is a secret of who made it: only with it are its files written, named to the
broker and removed.
"""

from __future__ import annotations

import mmap
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from tickwheel import sync
from tickwheel.arrow.errors import DataError
from tickwheel.arrow.network import Flights, NoAnswerInTime, explaining
from tickwheel.client.admin.pipeline import AdoptResult, JobPlan, JobRefused
from tickwheel.protocol.bodies.bulk import MAX_RESERVED_IDS
from tickwheel.protocol.errors import NotConnected, TickwheelError

PLAN_JOB: Final = "plan_job"
RESERVE_IDS: Final = "reserve_ids"
ADOPT_JOB: Final = "adopt_job"
DROP_JOB: Final = "drop_job"
"""Actions of a `tickwheel flight`."""
STAGING: Final = "staging"
"""With which the path of each put begins: STAGING, job, file."""
PUT_SCHEMA: Final = pa.schema([pa.field("bytes", pa.large_binary(), nullable=False)])
CHUNK_BYTES: Final = 1 << 20
MANIFEST_SUFFIX: Final = "-manifest.json"
"""Of the file that names a run's files, behind the run's name."""
PATIENCE_S: Final = 60.0
"""So long a put is tried again, while the process or the broker is away."""

_RETRY_S: Final = 0.3
_LEAST_S: Final = 120.0
_SLOWEST_BYTES_S: Final = 256 * 1024
_ADOPT_S: Final = 60.0
_AGAIN: Final = frozenset({"not_connected", "shutting_down", "stood_still", "too_many_puts"})

JobName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class PlanAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `PLAN_JOB` takes. ``run``: it begins with this; None: only more topics are asked for."""

    job: JobName
    topics: list[str] = []
    run: JobName | None = None


class ReserveAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `RESERVE_IDS` takes."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_RESERVED_IDS)]


class AdoptAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `ADOPT_JOB` takes. The manifest of the run was put before."""

    job: JobName
    run: JobName
    max_rejects: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


class AdoptAnswer(msgspec.Struct, frozen=True):
    """What `ADOPT_JOB` answers. ``is_refused``: more were rejected than may be, and nothing was taken in."""

    result: AdoptResult
    is_refused: bool = False

    @classmethod
    def of_broker(cls, client: sync.Client, asked: AdoptAsked) -> AdoptAnswer:
        """Asks a broker. Raises BadJob, DiskFull, Forbidden and what connecting raises."""
        try:
            return cls(client.adopt_job(asked.job, max_rejects=asked.max_rejects))
        except JobRefused as error:
            return cls(error.result, is_refused=True)


class DropAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `DROP_JOB` takes."""

    job: JobName
    run: JobName


class Stored(msgspec.Struct, frozen=True):
    """Length and checksum of a file: what the writer says at its end, as metadata, and what is answered."""

    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a job, as driver and tasks know it."""

    flights: Flights
    job: str
    name: str

    def begin(self, topics: Sequence[str]) -> JobPlan:
        """Plans the job, and lets files of this run come. Raises what connecting raises, Forbidden, BadRequest,
        TooManyTopics, DiskFull."""
        return self.flights.act(PLAN_JOB, PlanAsked(self.job, list(topics), self.name), JobPlan)

    def plan(self, topics: Sequence[str]) -> JobPlan:
        """What has to be known of more topics. Raises the same."""
        return self.flights.act(PLAN_JOB, PlanAsked(self.job, list(topics)), JobPlan)

    def reserve_ids(self, count: int) -> int:
        """The first of so many message numbers. Raises DiskFull, Forbidden and what connecting raises."""
        return self.flights.act(RESERVE_IDS, ReserveAsked(count), int)

    def put(self, path: Path, name: str) -> Stored:
        """Has a file stored under a name that begins with that of this run, and returns when it is on the broker's
        disk. It is sent again while the other side is away. Raises BadJob where the run does not count any more,
        DiskFull, Forbidden, what connecting raises, OSError."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._put_once(path, name)
            except TickwheelError as error:
                if error.code not in _AGAIN or time.monotonic() >= until_s:
                    raise
            time.sleep(_RETRY_S)

    def adopt(self, max_rejects: int) -> AdoptResult:
        """Has the broker take the job in, of which the manifest was put. Raises JobRefused (with ``result``), BadJob,
        DiskFull, Forbidden; NotConnected: what became of it is not known."""
        asked = AdoptAsked(self.job, self.name, max_rejects)
        found = None
        while found is None:
            # Large jobs take long. To ask again changes nothing.
            with suppress(NoAnswerInTime):
                found = self.flights.act(ADOPT_JOB, asked, AdoptAnswer, timeout_s=_ADOPT_S)
        if found.is_refused:
            error = JobRefused(
                f"{found.result.rejected:,} messages have a key that another one has; {max_rejects:,} may be rejected."
            )
            error.result = found.result
            raise error
        return found.result

    def drop(self) -> None:
        """Removes what this run has put; no more comes in. Raises what connecting raises, Forbidden."""
        self.flights.act(DROP_JOB, DropAsked(self.job, self.name), bool)

    def _put_once(self, path: Path, name: str) -> Stored:
        descriptor = fl.FlightDescriptor.for_path(STAGING, self.job, name)
        with self.flights.connected() as (client, headers), explaining(self.flights.url):
            timeout_s = _LEAST_S + path.stat().st_size / _SLOWEST_BYTES_S
            options = fl.FlightCallOptions(headers=headers, timeout=timeout_s)
            writer, answers = client.do_put(descriptor, PUT_SCHEMA, options)
            told = sent = None
            try:
                sent = _send(path, writer)
                told = answers.read()
            finally:
                # What the other side has against it is told here, and not while it is written.
                writer.close()
        if told is None:
            raise NotConnected(f"{self.flights.url} did not say whether it has {name}.")
        stored = msgspec.json.decode(told.to_pybytes(), type=Stored)
        if stored != sent:
            raise DataError(f"{name} was stored as {stored}, and sent as {sent}.", advice="")
        return stored


def _send(path: Path, writer: Any) -> Stored:
    count = checksum = 0
    for chunk in _chunks(path):
        writer.write_batch(as_batch(chunk))
        count += len(chunk)
        checksum = zlib.crc32(chunk, checksum)
    sent = Stored(count, checksum)
    writer.write_metadata(msgspec.json.encode(sent))
    writer.done_writing()
    return sent


def _chunks(path: Path) -> Iterator[memoryview]:
    """The file in pieces, which stay where the kernel has them. Raises OSError."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        # It is let go when the last piece is.
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for at in range(0, len(view), CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


def as_batch(chunk: Any) -> Any:
    """A record batch of one value, without copying it."""
    offsets = pa.py_buffer((0).to_bytes(8, "little") + len(chunk).to_bytes(8, "little"))
    value = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(chunk)])
    return pa.RecordBatch.from_arrays([value], schema=PUT_SCHEMA)
