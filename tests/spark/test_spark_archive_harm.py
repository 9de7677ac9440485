"""The end of `tickwheel flight`, of the broker, or of Spark's workers, in a phase of an archive that reads by Arrow
Flight. What the run says is true, and the next run brings each message to one place.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tickwheel
from tests.support.flight.calling import flight_url
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.run.profile import PROFILE, SOAK, limit_s, seed
from tests.support.spark.archives import archived, work_off
from tests.support.spark.workers import python_workers
from tickwheel.errors import TickwheelError
from tickwheel.spark import archive_messages
from tickwheel.spark.archive import archiving
from tickwheel.spark.archive.directory import DirectoryArchive
from tickwheel.spark.archive.manifest import OURS
from tickwheel.spark.storage import DirectoryFiles
from tickwheel_bench.processes import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.ci, pytest.mark.timeout(limit_s(400))]

DONE, LEFT = 3_000, 20
ROWS_A_TASK = 500
IDS_A_DROP = 400
MAX_DELAY_S = 0.4
PHASES = {
    "begins": (DirectoryArchive, "begin"),
    "plans": (archiving, "run_tasks"),
    "checks": (archiving, "check_files"),
    "commits": (DirectoryArchive, "commit"),
    "gives files their places": (DirectoryArchive, "publish"),
    "drops": (tickwheel.sync.Client, "drop"),
    "has dropped": (DirectoryArchive, "finish"),
}
#: In `ci` one kill a kind, when this phase begins; a soak kills 20 times in each phase.
IN_CI = {"flight": "plans", "broker": "drops", "workers": "checks"}
KILLS = 20 if PROFILE == SOAK else 1


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(
        tmp_path_factory.mktemp("harm") / "data",
        purge_after="365d",
        flight=True,
        listen_port=free_port(),
        flight_listen=f"127.0.0.1:{free_port()}",
    ) as running:
        flight_url(running)
        yield running


def kill(what: str, daemon: Daemon) -> int:
    """How many processes were killed."""
    if what == "broker":
        daemon.kill()
        daemon.start()
        return 1
    killed = 0
    for pid in daemon.child_pids[-1:] if what == "flight" else python_workers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


class Harm:
    """One kill: before the work of a phase begins, or `delay_s` later, and of drops before the `nth`."""

    def __init__(self, work: Callable[[], int], phase: str, drawn: random.Random) -> None:
        self._work = work
        self.place, self.name = PHASES[phase]
        self.nth = drawn.randint(1, 3) if phase == "drops" else 1
        self.delay_s = drawn.random() * MAX_DELAY_S if PROFILE == SOAK and drawn.random() < 0.7 else 0.0
        self._calls = self._killed = 0
        self._thread: threading.Thread | None = None

    def watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does the harm in one of its calls."""

        def called(*arguments: Any, **options: Any) -> Any:
            self._calls += 1
            if self._calls == self.nth:
                self._thread = threading.Timer(self.delay_s, self._kill)
                self._thread.start()
                if not self.delay_s:
                    self._thread.join(PATIENCE_S)
            return real(*arguments, **options)

        return called

    def _kill(self) -> None:
        self._killed = self._work()

    def check(self) -> None:
        """It was done, while the archive went on if it was not delayed."""
        assert self._thread is not None, "the phase was reached"
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self._killed or self.delay_s


@pytest.mark.promise("what-is-archived")
@pytest.mark.parametrize("what", IN_CI)
def test_what_is_killed_loses_nothing(
    what: str, spark: SparkSession, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_DROP_IDS", IDS_A_DROP)
    drawn = random.Random(seed(f"archives beside kills of {what}"))
    for number in range(KILLS):
        for phase in PHASES if PROFILE == SOAK else [IN_CI[what]]:
            if what == "flight" and PROFILE == SOAK:
                daemon.stop()  # else the broker waits ever longer before it starts the process again
                daemon.start()
            go_through(
                spark,
                daemon,
                tmp_path / f"{number}-{phase}",
                what,
                Harm(lambda: kill(what, daemon), phase, drawn),
            )


def go_through(spark: SparkSession, daemon: Daemon, root: Path, what: str, harm: Harm) -> None:
    topic = f"{what}-{root.name.replace(' ', '-')}"

    def archive() -> archiving.ArchiveReport:
        return archive_messages(
            spark,
            root,
            older_than=timedelta(),
            url=daemon.url,
            topics=[topic],
            rows_per_task=ROWS_A_TASK,
            read="flight",
        )

    with tickwheel.sync.Client(daemon.url) as client:
        client.send_many(topic, [b"x" * 100] * (DONE + LEFT))
        work_off(client, topic, DONE)
        sent = ids_of(client, topic)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(harm.place, harm.name, harm.watched(getattr(harm.place, harm.name)))
            try:
                first = archive().messages
            except TickwheelError:
                first = None  # how far it came, the next run finds
            harm.check()
        flight_url(daemon)
        committed = len(DirectoryArchive(DirectoryFiles(root)).manifests()) if (root / OURS).exists() else 0
        assert first in (DONE, None), "a run that says that it has ended has archived everything"
        assert {row["id"] for row in archived(root)} | set(ids_of(client, topic)) == set(sent), (
            "nothing is lost"
        )
        again = archive()
        assert again.messages == (0 if committed else DONE), "what is archived is not archived again"
        rows = archived(root)
        assert len(rows) == DONE
        assert Counter([row["id"] for row in rows] + ids_of(client, topic)) == Counter(sent)
        client.delete_topic(topic)


def ids_of(client: tickwheel.sync.Client, topic: str) -> list[int]:
    """The ids of all messages of a topic that the broker still has."""
    sql = f"select distinct id from messages where topic = '{topic}'"
    return [number for (number,) in client.query(sql, limit=1_000_000).rows]
