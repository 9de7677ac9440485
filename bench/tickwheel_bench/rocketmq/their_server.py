"""A real RocketMQ of our own, for benchmarks and tests: its name server, and its broker with its proxy, from the jars
that `make rocketmq-server` has fetched."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from tickwheel_bench.processes import free_port
from tickwheel_bench.server import Server

HERE: Final = Path(__file__).parent
LIBS: Final = Path(
    os.environ.get("ROCKETMQ_LIBS", Path(__file__).resolve().parents[3] / "build" / "rocketmq" / "lib")
)
VERSION: Final = "5.3.3"

MessageType: TypeAlias = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION"]
Flush: TypeAlias = Literal["SYNC", "ASYNC"]

DAY_MS: Final = 86_400_000
QUEUES: Final = 8
RETRIES: Final = 16
"""Of a group there, unless it is told otherwise: a message has one attempt more."""

_CLUSTER: Final = "DefaultCluster"
_STARTED_PROXY: Final = "rocketmq-proxy startup successfully"
_STARTED_NAMES: Final = "The Name Server boot success"
_FETCH_LIMIT_S: Final = 600
_START_LIMIT_S: Final = 240
_ADMIN_LIMIT_S: Final = 240
"""Seconds if it is alone; minutes on a busy machine."""

# What its libraries reach into: its own start script does the same.
_OPENED: Final = (
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
)


class Topic(NamedTuple):
    """Which takes messages of one type."""

    name: str
    type: MessageType = "NORMAL"
    queues: int = QUEUES


class Group(NamedTuple):
    """Of consumers. Those that are not named are made when they come, with what is said here."""

    name: str
    is_orderly: bool = False
    retries: int = RETRIES


class Options(NamedTuple):
    """What may differ from one to the next."""

    flush: Flush = "ASYNC"
    """Whether it waits for the disk before it answers. RocketMQ does not, unless it is told to."""

    max_delay_ms: int = DAY_MS
    heap: str = "1500m"
    direct_memory: str = "1g"
    java_options: Sequence[str] = ()
    """More of them for the JVM of broker and proxy."""

    broker: Sequence[str] = ()
    """More lines of the broker's configuration."""


def missing(libs: Path = LIBS) -> str | None:
    """Why no RocketMQ can be started here, and what to do; None if it can."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"no RocketMQ: {program} is not on this machine; it needs a JDK, 17 or newer"
    if not _is_there(libs):
        return f"no RocketMQ: its jars are not in {libs}; `make rocketmq-server` fetches them with Maven"
    return None


def fetch(libs: Path = LIBS) -> str | None:
    """Has Maven get the jars, unless they are there. Why that was not possible; None if they are there."""
    if _is_there(libs):
        return None
    maven = shutil.which("mvn")
    if maven is None:
        return "no RocketMQ: mvn is not on this machine, which fetches it"
    libs.parent.mkdir(parents=True, exist_ok=True)
    # Aside first: a fetch that was cut short leaves nothing that looks whole.
    with tempfile.TemporaryDirectory(dir=libs.parent) as aside:
        command = [maven, "--quiet", "--batch-mode", "--file", str(HERE / "pom.xml")]
        command += [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={aside}/lib",
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_FETCH_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no RocketMQ: Maven did not fetch it within {_FETCH_LIMIT_S} s"
        if done.returncode:
            return f"no RocketMQ: Maven could not fetch it: {(done.stdout + done.stderr).strip()[-1_000:]}"
        shutil.rmtree(libs, ignore_errors=True)
        Path(aside, "lib").rename(libs)
    return None


def _is_there(libs: Path) -> bool:
    return (libs / f"rocketmq-proxy-{VERSION}.jar").is_file()


class RocketMQ:
    """A name server, and a broker with its proxy in one process. What they have is below `folder`, and stays there when
    they are killed."""

    def __init__(self, folder: Path, options: Options = Options(), libs: Path = LIBS) -> None:  # noqa: B008
        self._folder, self._options, self._libs = folder, options, libs
        self._names_port, self._grpc_port, self._broker_port = free_port(), free_port(), _broker_port()
        self._names: _Java | None = None
        self._broker: _Java | None = None
        (folder / "home" / "conf").mkdir(parents=True, exist_ok=True)
        self._write("namesrv.conf", f"listenPort={self._names_port}")
        self._write("broker.conf", *self._broker_lines())
        self._write("rmq-proxy.json", json.dumps(self._proxy_values()))

    @property
    def address(self) -> str:
        """Of the proxy, for clients: both TLS and plain text."""
        return f"127.0.0.1:{self._grpc_port}"

    @property
    def name_server(self) -> str:
        """For tools and clients of old."""
        return f"127.0.0.1:{self._names_port}"

    @property
    def cluster(self) -> str:
        """What tools call it."""
        return _CLUSTER

    @property
    def pids(self) -> tuple[int, int]:
        """Of the name server, and of broker and proxy."""
        assert self._names is not None
        assert self._broker is not None
        return self._names.pid, self._broker.pid

    @property
    def log(self) -> Path:
        """What the broker and the proxy have printed; their other logs are below `folder`."""
        return self._folder / "broker.out"

    def start(self) -> None:
        """Returns when clients are served."""
        options, place = self._options, self._folder
        java = ["java", f"-Duser.home={place}", "-cp", f"{self._libs}/*"]
        self._names = _Java(
            folder=place,
            name="namesrv",
            port=self._names_port,
            started=_STARTED_NAMES,
            command=[*java, "-Xmx256m", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c"],
        )
        self._names.start()
        memory = [f"-Xmx{options.heap}", f"-XX:MaxDirectMemorySize={options.direct_memory}"]
        java += [*memory, *_OPENED, *options.java_options, "org.apache.rocketmq.proxy.ProxyStartup"]
        words = ["-pm", "local", "-n", self.name_server, "-pc", str(place / "rmq-proxy.json"), "-bc"]
        self._broker = _Java(
            folder=place, name="broker", port=self._grpc_port, started=_STARTED_PROXY, command=[*java, *words]
        )
        self._broker.start()

    def create(self, topics: Iterable[Topic] = (), groups: Iterable[Group] = ()) -> None:
        """Makes them, in one process for all; returns when clients find them. gRPC clients cannot make topics."""
        lines = [f"topic {one.name} {one.type} {one.queues}" for one in topics]
        lines += [f"group {one.name} {str(one.is_orderly).lower()} {one.retries}" for one in groups]
        command = ["java", f"-Duser.home={self._folder}", "-Xmx128m", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", f"{self._libs}/*", str(HERE / "Admin.java")]
        done = subprocess.run(
            [*command, self.name_server, f"127.0.0.1:{self._broker_port}"],
            cwd=self._folder,
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=_ADMIN_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]

    def stop(self) -> None:
        """In order."""
        self._end(_Java.stop)

    def kill(self) -> None:
        """As processes die that had no time to say so."""
        self._end(_Java.kill)

    def _end(self, how: Callable[[_Java], None]) -> None:
        for process in (self._broker, self._names):
            if process is not None:
                how(process)
        self._broker = self._names = None

    def _write(self, name: str, *lines: str) -> None:
        (self._folder / name).write_text("".join(f"{line}\n" for line in lines))

    def _broker_lines(self) -> list[str]:
        values: dict[str, object] = {
            "brokerClusterName": _CLUSTER,
            "brokerName": "broker-g",
            "brokerIP1": "127.0.0.1",
            "listenPort": self._broker_port,
            "haListenPort": free_port(),
            "storePathRootDir": self._folder / "store",
            "storePathCommitLog": self._folder / "store" / "commitlog",
            "mappedFileSizeCommitLog": 64 << 20,
            "flushDiskType": f"{self._options.flush}_FLUSH",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "timerWheelEnable": "true",
            "recallMessageEnable": "true",
            "enablePropertyFilter": "true",
            "transactionTimeOut": 6_000,
            "transactionCheckInterval": 5_000,
        }
        return [*(f"{name}={value}" for name, value in values.items()), *self._options.broker]

    def _proxy_values(self) -> dict[str, object]:
        return {
            "rocketMQClusterName": _CLUSTER,
            "proxyMode": "LOCAL",
            "namesrvAddr": self.name_server,
            "grpcServerPort": self._grpc_port,
            "remotingListenPort": free_port(),
            "maxDelayTimeMills": self._options.max_delay_ms,
        }


class _Java(Server):
    """One process of it, which is up when it has printed so and takes connections."""

    up_within_s = _START_LIMIT_S

    def __init__(self, *, folder: Path, name: str, port: int, started: str, command: Sequence[str]) -> None:
        """`started`: what it prints then. `command`: is given its configuration as the last word."""
        super().__init__(folder, f"{name}.out", port)
        self._started = started.encode()
        self._command = [*command, str(folder / f"{name}.conf")]
        self._began = self.log.stat().st_size if self.log.exists() else 0

    def command(self) -> Sequence[str]:
        """See Background."""
        return self._command

    def environment(self) -> dict[str, str]:
        """See Background."""
        return {"ROCKETMQ_HOME": str(self.directory / "home")}

    def is_up(self) -> bool:
        """See Server."""
        return self._started in self.log.read_bytes()[self._began :] and super().is_up()


def _broker_port() -> int:
    """The broker listens on one more, which is two lower; that is not to be set."""
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port - 2)):
            return port


@contextmanager
def rocketmq(folder: Path, options: Options = Options(), libs: Path = LIBS) -> Iterator[RocketMQ]:  # noqa: B008
    """One that runs."""
    server = RocketMQ(folder, options, libs)
    try:
        server.start()
        yield server
    finally:
        server.kill()


if __name__ == "__main__":
    raise SystemExit(fetch())
