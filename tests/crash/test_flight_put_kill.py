"""`kill -9` of `tickwheel flight`, and of the broker under it, in each phase of a bulk job that is put: it goes on when
they are back, all of it comes in, each message once, and nothing is left.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from tests.support.flight.calling import Caller, flight_url
from tests.support.flight.writing import Writer, begun, staged
from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import PROFILE, SOAK, amount, seed
from tickwheel import sync
from tickwheel.arrow.jobs import Run
from tickwheel.arrow.network import Flights
from tickwheel.errors import NotConnected, TickwheelError
from tickwheel_bench.processes import free_port, wait_until

T = TypeVar("T")

COUNT: Final = 2_000
PHASES: Final = ("planned", "written", "half put", "put", "manifest", "adopting", "adopted")
MAX_DELAY_S: Final = 0.06


@pytest.mark.ci
@pytest.mark.parametrize("what", ["flight", "broker"])
def test_a_job_goes_on(tmp_path: Path, what: str) -> None:
    drawn = random.Random(seed(f"put kills of {what}"))
    with Daemon(
        tmp_path / "data", flight=True, listen_port=free_port(), flight_listen=f"127.0.0.1:{free_port()}"
    ) as daemon:
        for number in range(amount("put_kills")):
            for phase in phases(what):
                Job(daemon, tmp_path, f"{number}-{PHASES.index(phase)}", drawn).go_through(what, phase)


def phases(what: str) -> Sequence[str]:
    """To start a process anew takes seconds: only a soak kills each of both in each phase."""
    return PHASES if PROFILE == SOAK else PHASES[what == "broker" :: 2]


class Job:
    """A driver, and two tasks one after the other."""

    def __init__(self, daemon: Daemon, folder: Path, name: str, drawn: random.Random) -> None:
        self.daemon, self.drawn = daemon, drawn
        flights = Flights(flight_url(daemon), token="")
        number = f"{drawn.getrandbits(128):032x}"
        run = Run(flights, number, f"{drawn.getrandbits(128):032x}")
        self.writer = Writer(run, folder / "local" / name, f"jobs-{name}")

    def go_through(self, what: str, phase: str) -> None:
        writer = self.writer

        def kill_at(name: str) -> None:
            if name == phase:
                self.kill(what)

        patiently(writer.begin)
        patiently(lambda: writer.task(COUNT))
        kill_at("planned")
        (segment,) = patiently(lambda: writer.write(COUNT, attempt=1, first=COUNT))
        kill_at("written")
        if phase == "half put":
            with begun(Caller(writer.run.flights.url), ["staging", writer.run.job, segment.file]):
                wait_until(lambda: any(name.endswith(".part") for name in self.left()))
                self.kill(what)
        writer.run.put(writer.folder / segment.file, segment.file)
        writer.segments.append(segment)
        kill_at("put")
        writer.put_manifest()
        kill_at("manifest")
        if phase == "adopting":
            self.kill_while_it_is_adopted(what)
        assert patiently(writer.adopt).messages == 2 * COUNT
        kill_at("adopted")
        assert patiently(writer.adopt).messages == 2 * COUNT
        with sync.Client(self.daemon.url) as client:
            sql = f"select key from messages where topic = '{writer.topic}'"
            keys = [key for (key,) in client.query(sql, limit=10_000).rows]
        assert sorted(keys) == sorted(f"k{number}" for number in range(2 * COUNT))
        assert self.left() == []

    def left(self) -> list[str]:
        return [name for name in staged(self.daemon.directory) if self.writer.run.job in name]

    def kill(self, what: str) -> None:
        if what == "flight":
            os.kill(self.daemon.child_pids[-1], signal.SIGKILL)
            return
        self.daemon.kill()
        self.daemon.start()

    def kill_while_it_is_adopted(self, what: str) -> None:
        def adopt() -> None:
            with suppress(TickwheelError):  # it is asked again
                self.writer.adopt()

        asking = threading.Thread(target=adopt)
        asking.start()
        time.sleep(self.drawn.random() * MAX_DELAY_S)
        self.kill(what)
        asking.join()


def patiently(work: Callable[[], T]) -> T:
    """Again, as Spark does with a task, and a user with a driver."""
    found: list[Any] = []

    def is_done() -> bool:
        try:
            found.append(work())
        except NotConnected:
            return False
        return True

    wait_until(is_done)
    done: T = found[-1]
    return done
