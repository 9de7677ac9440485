"""Reading and bulk scheduling on a cluster none of whose machines sees the broker's directory: each worker, and the
driver, is in a mount namespace of its own in which it is empty. What is killed neither loses nor doubles a row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import FAST, INTERPRETED
from tests.support.flight.calling import flight_url
from tests.support.flight.writing import staged
from tests.support.processes.cli_harness import PROGRAM, SPARK_PATIENCE_S, Shell
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Place
from tests.support.run.profile import PROFILE, SOAK, limit_s
from tests.support.run.warned import filters_of_a_process
from tests.support.spark.archives import work_off
from tests.support.spark.object_store import object_store
from tests.support.spark.standalone import Cluster, standalone_cluster, without
from tickwheel import sync
from tickwheel_bench.processes import free_port

# Each command starts Spark anew, on a cluster of processes.
pytestmark = [pytest.mark.ci, pytest.mark.timeout(limit_s(1_500))]

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.task.maxFailures": "8",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.maxPartitionBytes": "120000",
}
FILES, ROWS_A_FILE = 8, 10_000
FAR_MS = 1_935_000_000_000
DAY_S = 86_400.0
KILLS = 20 if PROFILE == SOAK else 1
READ = 3_000
DONE, WAITING = 200, 100
#: A driver with nothing but a URL and files that hold tokens. It reads tables, and then runs commands of `tickwheel
#: pipeline`, all on the session that it has: to start Spark takes longest.
DRIVER = """
import json, os, sys
from contextlib import contextmanager
from unittest import mock
from click.testing import CliRunner
from tickwheel.spark import session
from tickwheel_cli.main import root
from tickwheel_cli.pipeline.group import COMMANDS

master, url, token, data, conf, commands = *sys.argv[1:5], *map(json.loads, sys.argv[5:])
with_token = {"url": url, "tokenFile": token}
with session(app="apart", master=master, progress=False, conf=conf) as spark:
    def table(**options):
        return spark.read.format("tickwheel").options(**with_token, **options).load()

    def seen(part):
        yield len(os.listdir(data))

    messages = table(rowsPerPartition=20_000)
    keys = [row.key for row in messages.where("id > 0").select("key").collect()]
    sent = table(table="events", events="sent").select("id").distinct().count()
    files = spark.sparkContext.parallelize(range(8), 8).mapPartitions(seen).collect()
    print(json.dumps({
        "keys": keys,
        "topics": [row[0] for row in messages.select("topic").distinct().collect()],
        "sent": sent,
        "files": [*files, len(os.listdir(data))],
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }))

    @contextmanager
    def ours(master, conf, *, progress=None):
        yield spark

    for name in COMMANDS:
        mock.patch(f"tickwheel_cli.pipeline.{name}.open_spark", ours).start()
    for words in commands:
        done = CliRunner().invoke(root, ["pipeline", *words, "--json"])
        print(json.dumps({"code": done.exit_code, "told": done.stdout, "error": f"{done.output}{done.exception!r}"}))
"""
DRIVER_CONF = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


@dataclass(frozen=True)
class World:
    """A broker with tokens and Arrow Flight, a cluster that does not see its directory, and rows in Parquet."""

    folder: Path
    daemon: Daemon
    cluster: Cluster
    token: Path
    reader: Path
    operator: Path
    before: list[str]
    started: list[subprocess.Popen[bytes]]

    def start(self, topic: str, job: str) -> subprocess.Popen[bytes]:
        """The command, as a group of processes."""
        shell = Shell(self.folder, self.daemon.url)
        # PySpark leaves sockets and pipes to the interpreter's end.
        shell.environment["PYTHONWARNINGS"] = filters_of_a_process("ignore::ResourceWarning")
        shell.environment["TICKWHEEL_TOKEN_FILE"] = str(self.token)
        conf = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]
        words = ["pipeline", "schedule", "--from", str(self.folder / "rows"), "--format", "parquet", "--json"]
        words += ["--topic", topic, "--job", job, "--master", self.cluster.master, *conf]
        process = subprocess.Popen(
            [*self.before, *PROGRAM, *words],
            cwd=self.folder,
            env=shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """The driver, and its Java."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def run(self, topic: str, job: str) -> dict[str, Any]:
        return self.finish(self.start(topic, job))

    def finish(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        output, errors = process.communicate(timeout=SPARK_PATIENCE_S)
        assert process.returncode == 0, errors.decode()[-3_000:]
        found: dict[str, Any] = json.loads(output)
        return found

    def check(self, topic: str, messages: int = FILES * ROWS_A_FILE) -> None:
        """Each row is there once, or none is."""
        with sync.Client(self.daemon.url, token=self.token.read_text().strip()) as client:
            sql = f"select count(*), count(distinct key) from messages where topic = '{topic}'"
            assert client.query(sql).rows == [[messages, messages]]

    @property
    def left(self) -> list[str]:
        return staged(self.daemon.directory)

    def wait_for_files(self, process: subprocess.Popen[bytes]) -> None:
        """Until tasks put what they have written."""
        end_s = time.monotonic() + SPARK_PATIENCE_S
        while not any(".log" in name for name in self.left):
            assert process.poll() is None, process.communicate()[1].decode()[-3_000:]
            assert time.monotonic() < end_s
            time.sleep(0.005)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("anywhere")
    place = Place(folder)
    token = folder / "pipeline.token"
    token.write_text(place.create("pipeline", "publish:*", "query:*"))
    token.chmod(0o600)
    reader = folder / "reader.token"
    reader.write_text(place.create("reader", "query:orders"))
    write_rows(folder / "rows")
    operator = folder / "operator.token"
    operator.write_text(place.create("operator", "all:*"))
    operator.chmod(0o600)
    before = without(place.data)
    with (
        standalone_cluster(folder / "cluster", before) as cluster,
        place.daemon(
            flight=True, flight_listen=f"127.0.0.1:{free_port()}", listen_port=free_port(), http_listen=False
        ) as daemon,
    ):
        flight_url(daemon)
        found = World(
            folder=folder,
            daemon=daemon,
            cluster=cluster,
            token=token,
            reader=reader,
            operator=operator,
            before=before,
            started=[],
        )
        yield found
        for process in found.started:
            if process.poll() is None:
                found.kill(process)


def write_rows(folder: Path) -> None:
    folder.mkdir()
    for part in range(FILES):
        numbers = range(part, FILES * ROWS_A_FILE, FILES)
        columns = {
            "key": [f"r{number}" for number in numbers],
            "body": ["later" * 50] * len(numbers),
            "deliver_at": pa.array([FAR_MS + number for number in numbers], pa.timestamp("ms", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{part}.parquet")


def test_nobody_sees_the_directory(world: World) -> None:
    done = world.run("plain", "plain")
    assert (done["messages"], done["staged"]) == (FILES * ROWS_A_FILE, "flight")
    world.check("plain")
    assert world.left == []
    assert world.run("plain", "plain")["repeated"]
    secret = world.token.read_text().strip().encode()
    logs = [path for path in (world.folder / "cluster").rglob("*") if path.is_file()]
    assert not [path for path in logs if secret in path.read_bytes()]


@pytest.fixture(scope="module")
def elsewhere(world: World) -> list[Any]:
    """What a driver sees and says that is, as its workers are, where the broker's directory is empty. Archive and
    report go to an S3 server."""
    with object_store() as store:
        with sync.Client(world.daemon.url, token=world.operator.read_text().strip()) as client:
            for topic in ("orders", "secret"):
                keys = [f"{topic} {number}" for number in range(READ)]
                client.send_many(topic, [b"far"] * READ, keys=keys, delay_ms=10_000_000)
            client.send_many("shop", [b"done %d" % number for number in range(DONE)])
            work_off(client, "shop", DONE)
            client.send_many("shop", [b"waits"] * WAITING, delay_ms=10_000_000)
        assert os.listdir(world.daemon.directory)
        return drive(world, *commands_of(world, f"s3://{store.bucket()}", store.words()))


def commands_of(world: World, bucket: str, storage: list[str]) -> list[list[str]]:
    at = ["--url", world.daemon.url, "--token-file", str(world.operator)]
    waits, archive = "topic = 'shop' and state = 'scheduled'", f"{bucket}/archive"
    counts = "select state, count(*) from messages where topic = 'shop' group by state order by 1"
    return [
        ["doctor", *at],
        ["sql", *at, counts],
        ["report", *at, "--out", f"{bucket}/report", *storage],
        ["reschedule", *at, "--where", waits, "--at", "2031-05-01T00:00Z"],
        ["archive", *at, "--topic", "shop", "--older-than", "0s", "--to", archive, *storage],
        ["restore", *at, "--from", archive, "--until", "2031-01-01T00:00Z", *storage],
    ]


def drive(world: World, *commands: list[str]) -> list[Any]:
    """What the driver has seen, and then what each command says."""
    words = [world.cluster.master, world.daemon.url, str(world.reader), str(world.daemon.directory)]
    words += [json.dumps(FAST | INTERPRETED | SMALL | DRIVER_CONF), json.dumps(commands)]
    done = subprocess.run(
        [*world.before, sys.executable, "-c", DRIVER, *words],
        env={**os.environ, "PYTHONWARNINGS": filters_of_a_process("ignore::ResourceWarning")},
        capture_output=True,
        text=True,
        check=False,
        timeout=SPARK_PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    seen, *answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [answer["error"] for answer in answers if answer["code"]] == []
    return [seen, *(json.loads(answer["told"]) for answer in answers)]


def test_tables_are_read(elsewhere: list[Any]) -> None:
    seen = elsewhere[0]
    assert seen["files"] == [0] * 9
    assert seen["executors"] == 2
    assert seen["topics"] == ["orders"]
    assert sorted(seen["keys"]) == sorted(f"orders {number}" for number in range(READ))
    assert seen["sent"] == READ


def test_each_other_command(world: World, elsewhere: list[Any]) -> None:
    """`doctor`, `sql`, `report`, `reschedule`, `archive` and `restore`."""
    doctor, sql, report, rescheduled, archived, restored = elsewhere[1:]
    assert [check["name"] for check in doctor if not check["ok"]] == []
    assert [[*row.values()] for row in sql] == [["acked", DONE], ["scheduled", WAITING]]
    assert report["directories"] == [world.daemon.url]
    assert report["totals"]["messages"] >= DONE + WAITING
    assert rescheduled["done"] == rescheduled["selected"] == WAITING
    counts = archived["read"], archived["messages"], archived["dropped"], archived["vanished"]
    assert counts == ("flight", DONE, DONE, 0)
    assert restored["messages"] == restored["stored"] + restored["duplicates"] == DONE
    with sync.Client(world.daemon.url, token=world.operator.read_text().strip()) as client:
        sql = "select topic, state, count(*) from messages where topic like 'shop%' group by 1, 2"
        assert sorted(client.query(sql).rows) == [
            ["shop", "scheduled", WAITING],
            ["shop.restored", "ready", DONE],
        ]
        times = client.query("select distinct deliver_at from messages where topic = 'shop'").rows
        assert times == [[datetime(2031, 5, 1, tzinfo=UTC)]]


def test_a_driver_that_is_killed(world: World) -> None:
    """Nothing of it comes in. What it left goes with the next run of the job, or after a day."""
    for number in range(KILLS):
        topic = f"driver-{number}"
        process = world.start(topic, topic)
        world.wait_for_files(process)
        world.kill(process)
        world.check(topic, 0)
        assert world.left, "nobody has cleared it away"
        if number % 2 == 0:
            assert world.run(topic, topic)["messages"] == FILES * ROWS_A_FILE
            world.check(topic)
        else:
            wait_for_quiet(world)
            make_old(world.daemon.directory / "staging")
            world.daemon.stop()
            world.daemon.start()
            flight_url(world.daemon)
        wait_for_quiet(world, nothing=True)


def make_old(folder: Path) -> None:
    day_ago_s = time.time() - DAY_S - 60
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (day_ago_s, day_ago_s))


def wait_for_quiet(world: World, *, nothing: bool = False) -> None:
    """Until executors that have lost their driver have ended, too; ``nothing``: and nothing is left."""
    end_s, before = time.monotonic() + SPARK_PATIENCE_S, [""]
    while before != world.left or (nothing and world.left):
        assert time.monotonic() < end_s, world.left
        before = world.left
        time.sleep(1.0)


def test_an_executor_that_is_killed(world: World) -> None:
    for number in range(KILLS):
        topic = f"executor-{number}"
        process = world.start(topic, topic)
        world.wait_for_files(process)
        killed = executors(world.cluster.worker_pids[number % 2])
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert killed
        assert world.finish(process)["messages"] == FILES * ROWS_A_FILE
        world.check(topic)
        assert world.left == []


def executors(worker_pid: int) -> list[int]:
    """The processes that a worker has started: Java, and below it Python."""
    found, todo = [], [worker_pid]
    while todo:
        pid = todo.pop()
        try:
            tasks = Path(f"/proc/{pid}/task").iterdir()
            children = [int(one) for task in tasks for one in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue
        todo += children
        found += children
    return [pid for pid in found if "CoarseGrainedExecutorBackend" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except FileNotFoundError:
        return ""


@pytest.mark.soak  # in `ci`: tests/crash/test_flight_put_kill.py
@pytest.mark.parametrize("what", ["flight", "broker"])
def test_the_other_side_is_killed(world: World, what: str) -> None:
    for number in range(KILLS):
        topic = f"{what}-{number}"
        process = world.start(topic, topic)
        world.wait_for_files(process)
        if what == "flight":
            os.kill(world.daemon.child_pids[-1], signal.SIGKILL)
        else:
            world.daemon.kill()
            world.daemon.start()
        output, errors = process.communicate(timeout=SPARK_PATIENCE_S)
        if process.returncode:
            # The broker was away when it was to take the job in: all or none, and to ask again is safe.
            assert b"schedule_uncertain" in errors or b"not_connected" in errors, errors.decode()[-3_000:]
            assert world.run(topic, topic)["messages"] == FILES * ROWS_A_FILE
        else:
            assert json.loads(output)["messages"] == FILES * ROWS_A_FILE
        world.check(topic)
        wait_for_quiet(world, nothing=True)
