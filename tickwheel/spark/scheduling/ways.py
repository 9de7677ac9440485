"""How a job is handed in, from the driver's side: in place, where it sees the broker's directory, or by Arrow Flight.
Which of the two, is tried.
"""

from __future__ import annotations

import errno
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tickwheel import sync
from tickwheel.arrow.jobs import MANIFEST_SUFFIX, Run
from tickwheel.arrow.network import Flights
from tickwheel.client.admin.pipeline import AdoptResult, JobPlan
from tickwheel.protocol.errors import TickwheelError
from tickwheel.spark.errors import StagingError
from tickwheel.spark.scheduling.places import is_seen, mark
from tickwheel.spark.scheduling.result import BY_FLIGHT, IN_PLACE, Staged
from timerlog.bulk.write import MANIFEST, Manifest, write_manifest

_CLEAN_UP_TRIES: Final = 5
_CLEAN_UP_PAUSE_S: Final = 0.2
_log = logging.getLogger("tickwheel.spark")


@dataclass(frozen=True, slots=True)
class Broker:
    """Whom the driver asks. The files are on each machine that has tasks."""

    url: str | None
    token_file: str | None = None
    ca_file: str | None = None

    def client(self) -> sync.Client:
        """Raises what connecting raises."""
        return sync.Client(self.url, token_file=self.token_file, ca_file=self.ca_file)

    def flights(self, url: str) -> Flights:
        """Its Arrow Flight."""
        return Flights(url, self.token_file, self.ca_file)


class Way(Protocol):
    """One of the two."""

    @property
    def directory(self) -> Path | None:
        """What tasks look for."""

    @property
    def flights(self) -> Flights | None:
        """Where tasks put files that do not see it."""

    @property
    def text(self) -> str:
        """Where tasks write, for people."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Says what the job consists of. Raises ``StagingError``, TickwheelError."""

    def adopt(self, max_rejects: int) -> AdoptResult:
        """Raises JobRefused, NotConnected and other TickwheelErrors."""

    def discard(self) -> None:
        """Removes what the run has written. What cannot be removed now, the broker removes in a day."""


@dataclass(frozen=True, slots=True)
class InPlaceWay:
    """Into the broker's directory."""

    broker: Broker
    job: str
    run: str
    directory: Path
    flights: Flights | None

    @property
    def text(self) -> str:
        """See ``Way``."""
        return str(self.directory)

    def write_manifest(self, manifest: Manifest) -> None:
        """See ``Way``."""
        try:
            write_manifest(manifest, self.directory)
        except OSError as error:
            raise StagingError(f"{self.directory} cannot be written: {error.strerror or error}.") from error

    def adopt(self, max_rejects: int) -> AdoptResult:
        """See ``Way``."""
        with self.broker.client() as client:
            return client.adopt_job(self.job, max_rejects=max_rejects)

    def discard(self) -> None:
        """See ``Way``."""
        discard(self.directory, self.run)


@dataclass(frozen=True, slots=True)
class FlightWay:
    """Through `tickwheel flight`."""

    flights: Flights
    job: str
    run: str
    directory: Path | None

    @property
    def text(self) -> str:
        """See ``Way``."""
        return self.flights.url

    @property
    def _run(self) -> Run:
        return Run(self.flights, self.job, self.run)

    def begin(self, topics: Sequence[str]) -> JobPlan:
        """Raises what `Run.begin` raises."""
        return self._run.begin(topics)

    def write_manifest(self, manifest: Manifest) -> None:
        """See ``Way``."""
        with tempfile.TemporaryDirectory(prefix="tickwheel-job-") as folder:
            path = Path(folder) / MANIFEST
            path.write_bytes(msgspec.json.encode(manifest))
            self._run.put(path, self.run + MANIFEST_SUFFIX)

    def adopt(self, max_rejects: int) -> AdoptResult:
        """See ``Way``."""
        return self._run.adopt(max_rejects)

    def discard(self) -> None:
        """See ``Way``."""
        try:
            self._run.drop()
        except TickwheelError as error:
            _log.error(
                "what was put for the job %s stays, the broker removes it in a day: %s", self.job, error
            )


def find_way(
    broker: Broker,
    topics: Sequence[str],
    *,
    job: str,
    run: str,
    staging: str | None,
    wanted: Staged | None,
) -> tuple[JobPlan, Way]:
    """Plans a job, and how it is handed in. ``staging``: where the broker's directory of that name is; then it is
    handed in in place. ``wanted``: how it is handed in, whatever is seen; None: it is tried. Raises ``StagingError``,
    and what the broker says."""
    with broker.client() as client:
        planned = client.plan_job(topics, job=job)
        url, flight_url = client.url, client.flight_url
    told = Path(planned.directory)
    directory = told if staging is None else Path(staging) / told.name
    is_chosen = staging is not None or wanted == IN_PLACE
    flights = broker.flights(flight_url) if flight_url and not is_chosen else None
    if wanted == BY_FLIGHT and flights is None:
        raise StagingError(
            f"The broker at {url} has no Arrow Flight.",
            advice="Start it with `tickwheel serve --flight`, or set flight_advertise where it runs.",
        )
    if planned.adopted is not None:
        return planned, InPlaceWay(broker, job, run, directory, None)
    if wanted != BY_FLIGHT and is_seen(directory, has_flight=flights is not None):
        if flights is not None:
            mark(directory, run)
        return planned, InPlaceWay(broker, job, run, directory, flights)
    if flights is None:
        raise _unusable(told, directory)
    way = FlightWay(flights, job, run, None if wanted == BY_FLIGHT else directory)
    return way.begin(topics), way


def _unusable(told: Path, directory: Path) -> StagingError:
    if directory.is_dir():
        return StagingError(f"{directory} cannot be written.")
    return StagingError(
        f"The broker's directory {told} cannot be seen from here"
        + (f" as {directory}." if directory != told else ", and the broker has no Arrow Flight.")
    )


def discard(directory: Path, run: str) -> None:
    """Removes what a run of a job has written, and the directory unless others write to it. Tasks that were told to
    stop may write a little longer: they fail when it is gone."""
    error: OSError | None = None
    for _ in range(_CLEAN_UP_TRIES):
        try:
            _discard_once(directory, run)
        except FileNotFoundError:
            return
        except OSError as found:
            error = found
            time.sleep(_CLEAN_UP_PAUSE_S)
        else:
            return
    _log.error("%s cannot be cleared away, the broker does it in a day: %s", directory, error)


def _discard_once(directory: Path, run: str) -> None:
    for path in directory.iterdir():
        if _is_of(path, run):
            path.unlink(missing_ok=True)
    left = list(directory.iterdir())
    if any(_is_of(path, run) for path in left):
        raise OSError(errno.ENOTEMPTY, "a task that was told to stop has written meanwhile", str(directory))
    if not left:
        directory.rmdir()


def _is_of(path: Path, run: str) -> bool:
    return path.name.startswith(f"{run}-") or (path.name.startswith(MANIFEST) and _is_manifest_of(path, run))


def _is_manifest_of(path: Path, run: str) -> bool:
    try:
        segments = msgspec.json.decode(path.read_bytes(), type=Manifest).segments
    except (OSError, msgspec.MsgspecError):
        return False
    return all(segment.file.startswith(f"{run}-") for segment in segments)
