"""Django in this process, with the project of `django_project`, on a database that a test names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import django
import sqlalchemy as sa

from tests.support.run.warned import filters_of_a_process

SETTINGS = "tests.support.frameworks.django_project.settings"
ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0


def set_up() -> None:
    """Once a process, before anything of the project is imported."""
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    django.setup()
    # What other tests of this process start is not to take them for its own, as Celery does.
    del os.environ["DJANGO_SETTINGS_MODULE"]


def sqlite(path: Path) -> dict[str, Any]:
    """A file, as Django names it."""
    options = {"init_command": "PRAGMA journal_mode=WAL", "transaction_mode": "IMMEDIATE", "timeout": 30}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}


def database_of(url: str) -> dict[str, Any]:
    """A database of a server, as Django names it."""
    parts = sa.make_url(url)
    is_postgres = parts.get_backend_name() == "postgresql"
    found: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{'postgresql' if is_postgres else 'mysql'}",
        "NAME": parts.database,
        "HOST": parts.host or parts.query.get("unix_socket") or parts.query.get("host") or "",
        "PORT": str(parts.port or ""),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
    }
    return found


@contextmanager
def database(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The project's tables in this database, which is the default one in the block."""
    from django.core.management import call_command
    from django.db import connections

    if config["ENGINE"].endswith("mysql"):
        os.environ["DJANGO_PYMYSQL"] = "1"
        import pymysql

        pymysql.install_as_MySQLdb()
    before = connections.settings["default"]
    connections.close_all()
    connections.settings["default"] = connections.configure_settings({"default": dict(config)})["default"]
    _forget(connections)
    try:
        call_command("migrate", verbosity=0)
        yield config
    finally:
        connections.close_all()
        connections.settings["default"] = before
        _forget(connections)


def _forget(connections: Any) -> None:
    """The next connection of this thread goes to another database."""
    with suppress(AttributeError):  # there is none
        del connections["default"]


def empty() -> None:
    """Removes all rows of the project."""
    from tests.support.frameworks.django_project.models import Letter
    from tickwheel.django.models import OutboxMessage, TaskRecord

    for model in (Letter, OutboxMessage, TaskRecord):
        model.objects.all().delete()


class Processes:
    """Commands of the project, in processes of their own, ended at the end."""

    def __init__(self, config: dict[str, Any], url: str, **options: Any) -> None:
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "PYTHONWARNINGS": filters_of_a_process(),
            "PYTHONUNBUFFERED": "1",
            "TICKWHEEL_TEST_DATABASE": json.dumps(config),
            "TICKWHEEL_TEST_OPTIONS": json.dumps(options),
            "TICKWHEEL_URL": url,
        }
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """A command that goes on."""
        return self._start("-m", "django", *words, **environment)

    def start_python(self, text: str) -> subprocess.Popen[str]:
        """A program that goes on."""
        return self._start("-c", text)

    def _start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, *words],
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.append(started)
        return started

    def run(self, *words: str, **environment: str) -> str:
        """What a command prints, which must succeed."""
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        return out

    def close(self) -> None:
        """Ends what still runs."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):  # a child of it may have them open still
                if pipe is not None:
                    pipe.close()


def until(condition: Callable[[], object]) -> None:
    """Waits for it."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def finished(result: Any) -> bool:
    """Whether a task has ended, as the table says now."""
    result.refresh()
    return bool(result.is_finished)
