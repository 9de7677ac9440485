"""A standalone cluster of Spark: a master and two workers, each a process, from the pyspark that is installed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from tickwheel.spark.java import find_java
from tickwheel.spark.sessions import quiet_options

#: Two addresses of this machine: Spark tries a slow task a second time only on another host.
WORKER_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_OTHER_USER: Final = "unshare --user --map-user=65534 --map-group=65534"
_START_LIMIT_S: Final = 240
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class Cluster:
    """``master``: its URL. ``worker_pids``: the processes that start the executors."""

    master: str
    worker_pids: list[int]
    _state_url: str

    def state(self) -> dict[str, Any]:
        """What the master says of itself: ``workers``, ``activeapps``, ``completedapps``."""
        with urllib.request.urlopen(self._state_url, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def without(directory: Path) -> list[str]:
    """Words before those of a command, which then sees an empty file system instead of a directory, and is another
    user, who may do nothing as root. Skips the test where that cannot be."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    words += [f'mount -t tmpfs tmpfs "$0" && exec {_OTHER_USER} "$@"', str(directory)]
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare program")
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")
    return words


@contextmanager
def standalone_cluster(folder: Path, before: Sequence[str] = ()) -> Iterator[Cluster]:
    """Starts the cluster, and returns when both workers have found their master. ``folder``: for logs and work.
    ``before``: words before the command of each worker."""
    folder.mkdir(parents=True, exist_ok=True)
    port, page_port = _free_ports(2)
    environment = _environment(folder)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(
            _start(
                folder / "master.log",
                environment,
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page_port)),
            )
        )
        master = f"spark://127.0.0.1:{port}"
        processes += [_start_worker(folder, environment, master, host, before) for host in WORKER_HOSTS]
        workers = [process.pid for process in processes[1:]]
        cluster = Cluster(master, workers, f"http://127.0.0.1:{page_port}/json/")
        _wait_for_workers(cluster, processes, folder)
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            _wait_for_end(process)


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Starts a server of Spark Connect on two cores of this machine; gives its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = _free_ports(1)
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    server = _start(
        folder / "connect.log",
        _environment(folder, memory="1g"),
        "org.apache.spark.deploy.SparkSubmit",
        *(
            "--master",
            "local[2]",
            "--driver-memory",
            "1g",
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
        ),
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    )
    try:
        _wait_for_port(server, port, folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        _wait_for_end(server)


def _wait_for_port(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while server.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-2_000:]}")


def _environment(folder: Path, memory: str = "256m") -> dict[str, str]:
    java = find_java()
    options = f"{quiet_options(java.version)} {_OPTIONS}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return kept | {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }


def _start_worker(
    folder: Path, environment: dict[str, str], master: str, host: str, before: Sequence[str]
) -> subprocess.Popen[bytes]:
    work = folder / f"work-{host}"
    return _start(
        folder / f"worker-{host}.log",
        environment,
        "org.apache.spark.deploy.worker.Worker",
        *("--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"),
        *("--work-dir", str(work), master),
        before=before,
    )


def _start(
    log: Path, environment: dict[str, str], main: str, *arguments: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    program = Path(environment["SPARK_HOME"], "bin", "spark-class")
    with log.open("wb") as output:
        return subprocess.Popen(
            [*before, str(program), main, *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _wait_for_workers(cluster: Cluster, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < end:
        if any(process.poll() is not None for process in processes):
            break
        try:
            alive = [one for one in cluster.state()["workers"] if one["state"] == "ALIVE"]
        except (OSError, ValueError):  # while it starts, the master answers with a page
            alive = []
        if len(alive) == len(WORKER_HOSTS):
            return
        time.sleep(0.1)
    logs = "\n".join(log.read_text(errors="replace")[-2_000:] for log in sorted(folder.glob("*.log")))
    raise AssertionError(f"the cluster did not start:\n{logs}")


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now. All are taken before the first is given back, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
