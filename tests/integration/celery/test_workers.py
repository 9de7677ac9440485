"""Workers as programs: the pools, the end of a worker by SIGKILL, and a broker that is started again under load."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery

import tickwheel.celery
import tickwheel.sync
from tests.integration.celery.conftest import Worker
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel_bench.processes import wait_until

assert tickwheel.celery.TRANSPORT

# It does not import tickwheel: the program `celery` knows the URL by its entry point.
PROGRAM = """
import os, time
from celery import Celery

app = Celery("app", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {
    "keepalive": float(os.environ.get("KEEPALIVE", 30)), "timeout": float(os.environ.get("TIMEOUT", 30)),
    "reconnect_timeout": float(os.environ.get("RECONNECT", 10)),
}
if "VISIBILITY" in os.environ:
    app.conf.broker_transport_options["visibility_timeout"] = float(os.environ["VISIBILITY"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"], task_ignore_result=True, broker_connection_retry_on_startup=True
)

def note(text):
    descriptor = os.open(os.environ["OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\\n".encode())
    os.close(descriptor)

@app.task(name="note")
def say(text):
    note(text)

@app.task(name="eta", bind=True)
def say_eta(self):
    note(self.request.eta)

@app.task(name="parent")
def parent(text):
    say.delay(text)
    say.apply_async((text,), countdown=0.5)

@app.task(name="slow", acks_late=True)
def slow(text, for_s):
    note("begun " + text)
    time.sleep(for_s)
    note("done " + text)

@app.task(name="held", acks_late=True)
def held(text):
    note("begun " + text)
    while not os.path.exists(os.environ["OUT"] + ".go"):
        time.sleep(0.05)
    note("done " + text)

@app.task(name="dies", acks_late=True, reject_on_worker_lost=True, bind=True)
def dies(self, text):
    note("begun " + text)
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), 9)
    note("done " + text)
"""


class Place:
    """A queue with its app and what tasks wrote."""

    def __init__(self, url: str, queue: str, directory: Path) -> None:
        self.url, self.queue, self.directory = url, queue, directory
        self.out = directory / "out.txt"
        self.app = Celery("client", broker=url, set_as_current=False)

    def send(self, name: str, *arguments: object, **options: object) -> None:
        self.app.send_task(name, arguments, queue=self.queue, **options)

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines() if self.out.exists() else []

    def assert_all_is_acked(self) -> None:
        """Nothing comes again. Else says what the workers wrote."""
        with tickwheel.sync.Client(self.url) as client:
            group = client.group(self.queue, "celery")
        assert group.backlog == 0, [group, *self.logs()]

    def wait_for_acks(self) -> None:
        """Until all is acked. A pool of processes that is stopped drops each task of which it has not read that a
        process has accepted it, also a task that is done by then: the task comes again."""
        with tickwheel.sync.Client(self.url) as client:
            wait_until(lambda: client.group(self.queue, "celery").backlog == 0, self.logs)

    def logs(self) -> list[str]:
        """What the workers wrote."""
        return [path.read_text() for path in self.directory.glob("worker-*.log")]

    def wait_until_at_work(self, worker: Worker) -> None:
        """Until a worker knows of a task that a process or thread of its pool has accepted the task."""
        inspect = self.app.control.inspect(destination=[worker.name], timeout=20, limit=1)
        wait_until(lambda: any((inspect.active() or {}).values()))

    @contextmanager
    def worker(self, *arguments: str, **environment: str) -> Iterator[Worker]:
        with Worker(
            PROGRAM,
            self.directory,
            "--without-heartbeat",
            *arguments,
            BROKER=self.url,
            QUEUE=self.queue,
            OUT=str(self.out),
            **environment,
        ) as one:
            yield one


@pytest.fixture
def place(daemon: Daemon, queue: str, tmp_path: Path) -> Iterator[Place]:
    one = Place(daemon.url, queue, tmp_path)
    with one.app:
        yield one


def test_a_worker_of_processes(place: Place) -> None:
    """Children of a fork send tasks of their own; a task knows its ETA; the worker answers; it ends in order."""
    eta = datetime.now(UTC) + timedelta(seconds=1)
    with place.worker("--pool", "prefork", "-c", "2") as worker:
        place.send("note", "first")
        place.send("eta", eta=eta)
        place.send("parent", "child")
        wait_until(lambda: len(place.lines()) == 4, place.lines)
        assert sorted(place.lines()) == sorted(["first", eta.isoformat(), "child", "child"])
        (reply,) = place.app.control.ping(timeout=20, limit=1)
        assert list(reply.values()) == [{"ok": "pong"}]
        place.wait_for_acks()
        assert worker.stop() == 0
    place.assert_all_is_acked()


POOLS = [
    "threads",
    "solo",
    *(
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed"),
            ],
        )
        for name in ("gevent", "eventlet")
    ),
]


@pytest.mark.parametrize("pool", POOLS)
def test_other_pools(place: Place, pool: str) -> None:
    """A task that takes longer than a lease, 3 s, runs once: leases are renewed, or long where the loop is blocked."""
    with place.worker("--pool", pool, "-c", "2") as worker:
        place.send("slow", "long", 5)
        for number in range(20):
            place.send("note", f"n{number}", countdown=number / 10)
        wait_until(lambda: len(place.lines()) >= 22, place.lines)
        assert Counter(place.lines()) == Counter(["begun long", "done long", *(f"n{n}" for n in range(20))])
        assert worker.stop() == 0
    place.assert_all_is_acked()


@pytest.mark.parametrize("pool", [*POOLS, "prefork"])
def test_a_task_that_runs_on_while_its_worker_stops(place: Place, pool: str) -> None:
    """A warm shutdown waits for it, and its lease, 3 s, is renewed meanwhile: another worker does not begin it, too."""
    with place.worker("--pool", pool, "-c", "2") as worker, place.worker("--pool", "solo") as other:
        place.app.control.cancel_consumer(
            place.queue, destination=[other.name], reply=True, timeout=20, limit=1
        )
        place.send("slow", "long", 9)
        wait_until(lambda: place.lines(), place.lines)
        if pool == "prefork":
            place.wait_until_at_work(worker)
        place.app.control.add_consumer(place.queue, destination=[other.name], reply=True, timeout=20, limit=1)
        assert worker.stop() == 0
        assert place.lines() == ["begun long", "done long"]
    place.assert_all_is_acked()


def test_a_worker_that_is_killed_loses_nothing(place: Place) -> None:
    """Late acks: what it was at comes again when the lease has ended, and what it had not begun, too."""
    with place.worker("--pool", "prefork", "-c", "1") as worker:
        for number in range(5):
            place.send("slow", str(number), 600)
        wait_until(lambda: "begun 0" in place.lines(), place.lines)
        worker.kill()
    program = PROGRAM.replace("time.sleep(for_s)", "pass")
    with Worker(program, place.directory, "-c", "1", BROKER=place.url, QUEUE=place.queue, OUT=str(place.out)):
        wait_until(lambda: sum(line.startswith("done") for line in place.lines()) >= 5, place.lines)
    assert {line for line in place.lines() if line.startswith("done")} == {f"done {n}" for n in range(5)}


def test_a_process_of_the_pool_that_is_killed(place: Place) -> None:
    """With `reject_on_worker_lost` its task comes again at once, also to the same worker."""
    with place.worker("--pool", "prefork", "-c", "1") as worker:
        place.send("dies", "it")
        wait_until(lambda: "done it" in place.lines(), place.lines)
        assert place.lines() == ["begun it", "begun it", "done it"]
        place.wait_for_acks()
        assert worker.stop() == 0
    place.assert_all_is_acked()


def test_commands_while_the_broker_is_started_again(tmp_path: Path, queue: str) -> None:
    """Workers that have not yet found that it is back get a revoke, and answer."""
    daemon = Daemon(tmp_path / "data", ack_wait="30s")
    with daemon:
        daemon._settings["listen_port"] = int(daemon.url.rpartition(":")[2])
        place = Place(daemon.url, queue, tmp_path)
        with place.app, place.worker("--pool", "prefork", "-c", "1") as worker:
            place.send("held", "first")
            revoked = place.app.send_task("slow", ("second", 0), queue=queue).id
            worker.wait_for(" received", times=2)  # else its lease ends first, and it is delivered again
            wait_until(lambda: "begun first" in place.lines(), place.lines)
            daemon.kill()
            daemon.start()
            place.app.control.revoke(revoked)
            (active,) = place.app.control.inspect(timeout=20, limit=1).active().values()
            assert [task["args"][0] for task in active] == ["first"]
            place.out.with_suffix(".txt.go").touch()
            place.send("note", "last")
            wait_until(lambda: "last" in place.lines(), place.lines)
            assert place.lines() == ["begun first", "done first", "last"]
            place.wait_for_acks()
            assert worker.stop() == 0
        place.assert_all_is_acked()


@pytest.mark.parametrize("stops", [True, False], ids=["that is told to stop", "that goes on"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_outlives_its_connection(tmp_path: Path, queue: str, pool: str, stops: bool) -> None:
    """The broker is away for longer than a connection lasts, so Celery opens another one while a task runs on. The task
    is acked over that one, and does not run again."""
    daemon = Daemon(tmp_path / "data", ack_wait="10m")
    with daemon:
        daemon._settings["listen_port"] = int(daemon.url.rpartition(":")[2])
        place = Place(daemon.url, queue, tmp_path)
        with place.app, place.worker("--pool", pool, "-c", "1", RECONNECT="0.2") as worker:
            place.send("held", "first")
            wait_until(lambda: "begun first" in place.lines(), place.lines)
            daemon.kill()
            worker.wait_for("Connection to broker lost")
            daemon.start()
            worker.wait_for("Connected to", times=2)
            assert worker.process is not None
            if stops:
                worker.process.terminate()
                worker.wait_for("Warm shutdown")
            place.out.with_suffix(".txt.go").touch()
            worker.wait_for(" succeeded in ")
            with tickwheel.sync.Client(daemon.url) as client:
                wait_until(lambda: client.group(queue, "celery").backlog == 0, worker.log.read_text)
            assert (worker.process.wait(PATIENCE_S) if stops else worker.stop()) == 0
        assert "CRITICAL" not in worker.log.read_text()
        assert place.lines() == ["begun first", "done first"]


@pytest.mark.parametrize(("pool", "is_alone"), [("prefork", False), ("solo", False), ("threads", True)])
def test_a_worker_that_stood_still(place: Place, pool: str, is_alone: bool) -> None:
    """For longer than its leases, 3 s. What another worker was given meanwhile it does not begin any more, and what it
    is given again itself it does not begin again."""
    names = [str(number) for number in range(5)]
    all_done = {f"done {name}" for name in names}
    arguments = "--pool", pool, "-c", "1"
    environment = {"VISIBILITY": "6"} if pool == "solo" else {}
    with place.worker(*arguments, **environment) as worker:
        for name in names:
            place.send("slow", name, 0.5 if int(name) else 3)
        wait_until(lambda: place.lines() == ["begun 0"], place.lines)
        worker.suspend()
        with tickwheel.sync.Client(place.url) as client:
            wait_until(lambda: client.group(place.queue, "celery").leased == 0)
        if is_alone:
            worker.resume()
            wait_until(lambda: all_done <= set(place.lines()), place.lines)
        else:
            with place.worker(*arguments, **environment) as other:
                wait_until(lambda: sum(line.startswith("done") for line in place.lines()) >= 2, place.lines)
                worker.resume()
                wait_until(lambda: all_done <= set(place.lines()), place.lines)
                place.wait_for_acks()
                assert other.stop() == 0
            place.send("note", "last")
            wait_until(lambda: "last" in place.lines(), place.lines)
        place.wait_for_acks()
        assert worker.stop() == 0
    begun = Counter(line for line in place.lines() if line.startswith("begun"))
    if not is_alone:
        begun["begun 0"] = 1  # at work on it the worker stood still: the other began it, too
    assert begun == Counter(f"begun {name}" for name in names), worker.log.read_text()
    place.assert_all_is_acked()


@pytest.mark.parametrize("signal", ["stop", "kill"])
def test_a_broker_that_is_started_again_under_load(tmp_path: Path, queue: str, signal: str) -> None:
    """Nothing is lost, and what was running, or was done meanwhile, is not run again: by neither of two workers."""
    daemon = Daemon(tmp_path / "data", ack_wait="30s")
    with daemon:
        port = int(daemon.url.rpartition(":")[2])
        place = Place(daemon.url, queue, tmp_path)
        pool = "--pool", "prefork", "-c", "2"
        with place.app, place.worker(*pool) as worker, place.worker(*pool) as other:
            place.send("slow", "across", 6)
            place.send("slow", "meanwhile", 1)
            wait_until(lambda: {"begun across", "begun meanwhile"} <= set(place.lines()), place.lines)
            for number in range(100):
                place.send("note", f"a{number}")
            getattr(daemon, signal)()
            wait_until(lambda: "done meanwhile" in place.lines(), place.lines)
            daemon._settings["listen_port"] = port
            daemon.start()
            for number in range(100):
                place.send("note", f"b{number}")
            expected = {"begun across", "done across", "begun meanwhile", "done meanwhile"}
            expected |= {f"{letter}{number}" for letter in "ab" for number in range(100)}
            wait_until(lambda: expected <= set(place.lines()), place.lines)
            for text in ("begun across", "begun meanwhile"):
                assert place.lines().count(text) == 1, worker.log.read_text() + other.log.read_text()
            with tickwheel.sync.Client(daemon.url) as client:  # what is wished for again runs again
                wait_until(lambda: client.group(queue, "celery").backlog == 0)
                client.seek_group(queue, "celery", to="earliest")
            wait_until(lambda: place.lines().count("done meanwhile") == 2, place.lines)
            wait_until(lambda: place.lines().count("done across") == 2, place.lines)
            assert worker.stop() == other.stop() == 0
        place.assert_all_is_acked()
