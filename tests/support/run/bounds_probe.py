"""What must work with the lowest and with the newest releases of Tickwheel's dependencies, asked in an environment that
has nothing else: ``python bounds_probe.py EXTRA...``. ``bounds`` makes the environments, and runs this file in each.

Every module of the extras is imported, every command says its ``--help``, and a broker delivers a message that is due
in a second to the command line and to a program. Raises what went wrong.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

#: Packages, or modules, that an extra is for. All of their modules are imported.
ROOMS: Final[dict[str, Sequence[str]]] = {
    "": ("tickwheel.client", "tickwheel.sync", "tickwheel.testing", "timerlog", "tickwheel_broker"),
    "query": ("timerlog.query", "duckdb", "pyarrow"),
    "flight": ("tickwheel_flight.server", "tickwheel.arrow.network", "pyarrow.flight"),
    "spark": ("tickwheel.spark", "pyspark.sql", "matplotlib.pyplot"),
    "objects": ("obstore.store", "obstore.exceptions"),
    "server": ("tickwheel_broker.monitoring", "tickwheel_broker.security"),
    "push": ("tickwheel_push", "tickwheel_cli.beside"),
    "work": ("tickwheel.worker", "tickwheel_cli.working"),
    "rocketmq": ("tickwheel_gateway",),
    "celery": ("tickwheel.celery",),
    "tracing": ("tickwheel.tracing", "tickwheel.client.tracing"),
    "web": ("tickwheel_web", "tickwheel.web"),
    "django": ("tickwheel.django",),
    "cluster": ("tickwheel_broker.sharedlog",),
    "dramatiq": ("tickwheel.dramatiq",),
    "taskiq": ("tickwheel.taskiq",),
    "sql": ("tickwheel.outbox", "psycopg", "pymysql"),
}
PATIENCE_S: Final = 120.0
_NOT_MODULES: Final = ("__main__", "migrations", "management", "demo")


def import_all(name: str) -> int:
    """Imports a module and, of a package of ours, all that is in it but what needs an extra that is not there; how many
    modules these are."""
    found = importlib.import_module(name)
    count = 1
    if name.startswith(("tickwheel", "timerlog")):
        for inner in pkgutil.iter_modules(getattr(found, "__path__", [])):
            if not any(word in inner.name for word in _NOT_MODULES):
                try:
                    count += import_all(f"{name}.{inner.name}")
                except Exception as error:
                    if not wants_another_extra(error):
                        raise
    return count


def wants_another_extra(error: BaseException | None) -> bool:
    """Whether an import failed for want of a package that is not installed at all."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            package = error.name.partition(".")[0]
            return package not in sys.modules and importlib.util.find_spec(package) is None
        error = error.__cause__ or error.__context__
    return False


def set_up_django() -> None:
    """Models are imported after the settings."""
    import django
    from django.conf import settings

    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    apps = [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
    ]
    if sys.version_info < (3, 12):
        apps.append("django_tasks")
    backend = {"BACKEND": "tickwheel.django.TickwheelBackend", "OPTIONS": {"via": "direct"}}
    settings.configure(
        DATABASES=databases,
        INSTALLED_APPS=[*apps, "tickwheel.django"],
        TASKS={"default": backend},
        USE_TZ=True,
    )
    django.setup()


def say_help(has_all: bool) -> int:
    """Asks each command for its ``--help``; how many commands there are. ``has_all``: all extras are there."""
    import click
    from click.testing import CliRunner

    from tickwheel_cli.main import root

    def within(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                for name in command.list_commands(context):
                    inner = command.get_command(context, name)
                    assert inner is not None, (*words, name)
                    yield from within(inner, (*words, name))

    commands = list(within(root, ()))
    for words in commands:
        said = CliRunner().invoke(root, [*words, "--help"])
        if words == ("bench",) and not has_all and "extra_missing" in said.output:
            continue  # a tool of developers, which compares with what most extras are for
        assert said.exit_code == 0, (words, said.output, said.exception)
        assert said.output.startswith("Usage: "), (words, said.output)
    return len(commands)


@contextmanager
def broker(folder: Path, *options: str) -> Iterator[dict[str, str]]:
    """A process of ``tickwheel serve``; its addresses."""
    log = folder / "serve.log"
    with log.open("wb") as out:
        words = ["serve", "--data", str(folder / "data"), "--listen-port", "0", *options]
        process = subprocess.Popen([tickwheel(), *words], stdout=out, stderr=out)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while "listening on " not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        line = next(line for line in log.read_text().splitlines() if line.startswith("listening on "))
        words = line.removeprefix("listening on ").partition(", data in")[0].split(" and ")
        yield {word.partition("://")[0]: word for word in words}
    except BaseException as error:
        error.add_note(f"The broker had said:\n{log.read_text()[-4_000:]}")
        raise
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    assert process.returncode == 0, log.read_text()


def tickwheel() -> str:
    """The command of this environment."""
    found = shutil.which("tickwheel", path=str(Path(sys.executable).parent))
    assert found, f"no tickwheel beside {sys.executable}"
    return found


def run(url: str, *words: str) -> str:
    """What the command says."""
    done = subprocess.run(
        [tickwheel(), "--url", url, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def deliver(url: str) -> None:
    """Sends messages with the command line and with a program, and receives them with both, not early."""
    from tickwheel import sync

    run(url, "send", "shell", "from the shell", "--in", "1s")
    assert "from the shell" in run(url, "receive", "shell", "--count", "1", "--timeout", "60s")
    with sync.Client(url) as client:
        due = datetime.now(UTC) + timedelta(seconds=1)
        client.send("program", b"from a program", deliver_at=due, headers={"n": 1}, key="k")
        with client.subscribe("program") as messages:
            message = next(iter(messages))
            assert datetime.now(UTC) >= due
            assert (message.body, message.key, message.headers) == (b"from a program", "k", {"n": 1})
            message.ack()


def get(url: str) -> str:
    """The answer, which has the status 200."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                text: str = answer.read().decode()
                return text
        except ConnectionRefusedError:  # the process has only begun
            pass
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
        assert time.monotonic() < deadline_s, url
        time.sleep(0.05)


def serve(extras: Sequence[str]) -> None:
    """A broker with what the extras add to it."""
    options: list[str] = []
    if "web" in extras:
        options += ["--web", "--web-port", "0"]
    if "server" in extras:
        options += ["--http-listen", "--http-port", str(free_port())]
    with tempfile.TemporaryDirectory(prefix="bounds-") as folder, broker(Path(folder), *options) as urls:
        deliver(urls["tickwheel"])
        if "web" in extras:
            assert '"shell"' in get(f"{urls['http']}/v1/topics")
        if "server" in extras:
            port = options[options.index("--http-port") + 1]
            assert get(f"http://127.0.0.1:{port}/livez") == "ok\n"
            assert "tickwheel_" in get(f"http://127.0.0.1:{port}/metrics")
        if "query" in extras:
            assert "shell" in run(
                urls["tickwheel"], "query", "--timeout", "2m", "select topic from messages order by id"
            )
    if "sql" in extras or "django" in extras:
        try_outbox()


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def try_outbox() -> None:
    """A message in a database, and the drivers of the others as far as their servers are not needed."""
    from tickwheel import outbox

    with tempfile.TemporaryDirectory(prefix="bounds-") as folder:
        table = outbox.MessageTable(f"sqlite:///{folder}/app.db", "mails").create()
        with table.database.begin() as connection:
            table.send(connection, message="hello")
        batch = table.claim()
        assert [message["message"] for message in batch] == ["hello"]
        batch.ack()
        table.database.close()


def main(extras: Sequence[str]) -> None:
    """Tries everything; says what was tried."""
    os.environ.pop("TICKWHEEL_URL", None)
    if "django" in extras:
        set_up_django()
    modules = sum(import_all(room) for extra in ("", *extras) for room in ROOMS[extra])
    commands = say_help(has_all=set(extras) | {""} == set(ROOMS))
    serve(extras)
    print(f"modules: {modules}, commands: {commands}, messages: 2")


if __name__ == "__main__":
    main(sys.argv[1:])
