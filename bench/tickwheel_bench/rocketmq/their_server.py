"""A real RocketMQ of our own, for benchmarks and tests: its name server, and its broker with its proxy, from the jars
that `make rocketmq-server` has fetched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from tickwheel_bench.processes import PATIENCE_S, free_port, guard, wait_until

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
        self._names = self._java("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", ["-Xmx256m"], "-c")
        self._names.wait_for(_STARTED_NAMES)
        options = self._options
        memory = [f"-Xmx{options.heap}", f"-XX:MaxDirectMemorySize={options.direct_memory}"]
        self._broker = self._java(
            "broker",
            "org.apache.rocketmq.proxy.ProxyStartup",
            [*memory, *_OPENED, *options.java_options],
            *("-pm", "local", "-n", self.name_server, "-pc", str(self._folder / "rmq-proxy.json"), "-bc"),
        )
        self._broker.wait_for(_STARTED_PROXY)
        wait_until(self._takes_connections, self._broker.report)

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
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As processes die that had no time to say so."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        for process in (self._broker, self._names):
            if process is not None:
                process.end(how)
        self._broker = self._names = None

    def _java(self, name: str, main: str, options: Sequence[str], *words: str) -> _Java:
        """One that is given its configuration as the last word."""
        command = ["java", f"-Duser.home={self._folder}", *options, "-cp", f"{self._libs}/*", main, *words]
        return _Java([*command, str(self._folder / f"{name}.conf")], self._folder, f"{name}.out")

    def _takes_connections(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._grpc_port), timeout=1):
            return True
        return False

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


class _Java:
    """One process of it. It ends when ours does, however that comes."""

    def __init__(self, command: Sequence[str], folder: Path, log: str) -> None:
        self._log = folder / log
        self._began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                env={**os.environ, "ROCKETMQ_HOME": str(folder / "home")},
                start_new_session=True,
            )
        self._guard = guard(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, words: str) -> None:
        """Until it has printed them."""
        wait_until(lambda: self._has_printed(words), self.report, _START_LIMIT_S)

    def _has_printed(self, words: str) -> bool:
        found = self._log.read_bytes()[self._began :]
        assert self._process.poll() is None, self.report()
        return words.encode() in found

    def report(self) -> str:
        return f"the end of what it has printed:\n{self._log.read_text(errors='replace')[-2_000:]}"

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # in case it was stopped
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._guard.kill()  # before another process gets the number of this one
            self._guard.communicate()


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
