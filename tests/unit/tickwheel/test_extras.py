"""Without an optional package: an error that says what to install, and nothing else of Tickwheel is touched.

Each package of each extra is taken away once: a new dependency fails here until it is said what happens without it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.support.run.bounds import ROOT, read_project
from tests.support.run.bounds_probe import ROOMS
from tickwheel_bench.command import BENCHMARKS
from tickwheel_cli.running.bench import EXTRAS

PROJECT = read_project((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Reads cases, and forks for each, so that what they share is imported once.
PROGRAM = """
import json, os, sys, tempfile
import tickwheel.sync
from tickwheel.errors import TickwheelError
from tickwheel_cli.main import main

class Without:
    def __init__(self, finder, packages):
        self.finder, self.packages = finder, packages

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *where):
        return None if name.partition(".")[0] in self.packages else self.finder.find_spec(name, *where)

def attempt(packages, what):
    assert not set(packages) & set(sys.modules), "imported by everybody"
    sys.meta_path[:] = [Without(finder, packages) for finder in sys.meta_path]
    if isinstance(what, list):
        sys.argv = ["tickwheel", *what]
        main()
    try:
        exec(what)
    except TickwheelError as error:
        assert isinstance(error, ImportError)
        print(f"error [{error.code}]: {error.advice}", file=sys.stderr)

said = []
for case in json.load(sys.stdin):
    with tempfile.TemporaryFile() as out:
        if not (pid := os.fork()):
            os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
            attempt(*case)
            sys.exit()
        os.waitpid(pid, 0)
        out.seek(0)
        said.append(out.read().decode())
json.dump(said, sys.stdout)
"""


IMPORTS = [
    (["amqp", "celery", "kombu"], "import tickwheel.celery", "celery"),
    (["celery"], "import tickwheel.celery.beat.scheduler", "celery"),
    (["kombu"], "import tickwheel.celery.control", "celery"),
    (["dramatiq"], "import tickwheel.dramatiq", "dramatiq"),
    (["taskiq"], "import tickwheel.taskiq", "taskiq"),
    (["django"], "import tickwheel.django", "django"),
    (["sqlalchemy"], "from tickwheel.outbox import MessageTable", "sql"),
    (["sqlalchemy"], "from tickwheel import outbox; outbox.open_database('sqlite://')", "sql"),
    (["opentelemetry"], "import tickwheel.client.tracing", "tracing"),
    (["starlette"], "import tickwheel.web; tickwheel.web.app('tickwheel://127.0.0.1')", "web"),
    (["jinja2"], "import tickwheel.web; tickwheel.web.app('tickwheel://127.0.0.1')", "web"),
    (["httpcore2"], "import tickwheel.testing.http; tickwheel.testing.http.SyncPush", "push"),
    (["pyarrow"], "from tickwheel import arrow; arrow.messages('tickwheel://127.0.0.1')", "flight"),
]
COMMANDS = [
    (["google", "hpack", "hyperframe"], ["gateway"], "rocketmq"),
    (["h2"], ["gateway"], "rocketmq"),
    (["httptools"], ["web"], "web"),
    (["uvicorn"], ["web"], "web"),
    (["httpcore2"], ["push"], "push"),
    (["watchfiles"], ["work", "a:b", "--reload"], "work"),
    (["h11"], ["work", "a:b", "--metrics", "127.0.0.1:0"], "work"),
    (["prometheus_client"], ["work", "a:b", "--metrics", "127.0.0.1:0"], "work"),
    (["argon2"], ["tokens", "create", "a", "--data", "{folder}", "--grant", "consume:*"], "server"),
    (["hypercorn"], ["serve", "--data", "{folder}", "--http-listen"], "server"),
    (["confluent_kafka"], ["cluster", "status", "kafka://127.0.0.1:9/x"], "cluster"),
    (["pyspark"], ["pipeline", "report", "--data", "{folder}", "--out", "{folder}.html"], "spark"),
    (["pandas"], ["pipeline", "report", "--data", "{folder}", "--out", "{folder}.html"], "spark"),
    (["celery"], ["bench", "--help"], EXTRAS),
]
#: Without these, what needs them does it another way, or is told by a test of its own.
ELSEWHERE = {
    "uvloop": "asyncio's own loop serves",
    "django_tasks": "not on each Python",
    "psycopg": "driver_missing: tests/unit/tickwheel/outbox/test_open_database.py",
    "pymysql": "driver_missing: tests/unit/tickwheel/outbox/test_open_database.py",
    "duckdb": "in a process of the broker: tests/integration/watching/test_query.py",
    "matplotlib": "tests/unit/tickwheel/spark/report/test_spark_report_output.py",
    "obstore": "extra_missing: tests/spark/test_spark_storage.py",
}


def test_the_extra_is_named(tmp_path: Path) -> None:
    commands = [
        (packages, [word.replace("{folder}", str(tmp_path / "data")) for word in words], extra)
        for packages, words, extra in COMMANDS
    ]
    cases = [*IMPORTS, *commands]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([(packages, what) for packages, what, _ in cases]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (packages, what, extra), said in zip(cases, json.loads(done.stdout), strict=True):
        assert "extra_missing" in said, (packages, what, said)
        assert f"pip install 'tickwheel[{extra}]'" in said, (packages, what, said)
        assert "Traceback" not in said, (packages, what, said)


@cache
def modules_by_package() -> dict[str, set[str]]:
    """What is imported of each package that is installed."""
    found: dict[str, set[str]] = {}
    for module, packages in packages_distributions().items():
        for package in packages:
            found.setdefault(canonicalize_name(package), set()).add(module)
    return found


def imports_of(package: str) -> set[str]:
    """What is imported of it; of a package that is not installed here its name."""
    name = canonicalize_name(package)
    return modules_by_package().get(name, {name.replace("-", "_")})


def owners_of(module: str) -> set[str]:
    """The extras that what is imported needs: as ours, or as a package that a single extra brings."""
    ours = {
        extra
        for extra, rooms in ROOMS.items()
        if extra and any(f"{module}.".startswith(f"{one}.") for one in rooms)
    }
    package = module.partition(".")[0]
    bringing = {
        extra
        for extra in PROJECT.extras
        if any(package in imports_of(one.name) for one in PROJECT.requirements[extra])
    }
    return ours or (bringing if len(bringing) == 1 else set())


def test_each_package_of_each_extra_is_taken_away() -> None:
    taken = {one for packages, _, _ in [*IMPORTS, *COMMANDS] for one in packages} | set(ELSEWHERE)
    requirements = [one.name for extra in PROJECT.extras for one in PROJECT.requirements[extra]]
    assert [one for one in requirements if not taken & imports_of(one)] == []


def test_benchmarks_name_each_extra_that_they_need() -> None:
    """Those whose packages are imported, and those that are measured in a program of their own."""
    imported = {
        name
        for path in (ROOT / "bench" / "tickwheel_bench").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imports_in(node)
    }
    needed = set().union(*map(owners_of, imported)) | (set(BENCHMARKS) & set(PROJECT.extras))
    assert {"celery", "cluster", "query", "sql"} <= needed
    assert EXTRAS.split(",") == sorted(needed)


def imports_in(node: ast.AST) -> list[str]:
    """The modules, and what may be modules in packages, that a statement imports."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return []
