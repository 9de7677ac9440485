"""The page on tasks, and the project that it shows: its pieces, its tests, and the project in use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHOP = ROOT / "examples" / "django_shop"
PAGE = ROOT / "docs" / "how-to" / "django-tasks.md"


def manage(folder: Path, *words: str) -> str:
    """What a command of the project says, which must succeed."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "SHOP_DATABASE": str(folder / "shop.sqlite")}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-B", "manage.py", *words],
        cwd=SHOP,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_pieces_of_the_page_are_those_of_the_project() -> None:
    pieces = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in pieces} == {
        "shop/settings.py",
        "shop/tasks.py",
        "shop/orders.py",
        "shop/urls.py",
        "shop/tests.py",
    }
    for name, text in pieces:
        assert text in (SHOP / name).read_text(), name


def test_the_options_of_the_page_are_those_that_there_are() -> None:
    from dataclasses import fields

    from tickwheel.django.options import BackendOptions

    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(one.name for one in fields(BackendOptions))


def test_the_commands_of_the_page_are_those_that_there_are() -> None:
    from django.core.management import load_command_class

    commands = re.findall(r"manage\.py (tickwheel_\w+)([^\n`#]*)", PAGE.read_text())
    assert {name for name, _ in commands} == {
        "tickwheel_prune",
        "tickwheel_relay",
        "tickwheel_schedules",
        "tickwheel_worker",
    }
    for name, words in commands:
        load_command_class("tickwheel.django", name).create_parser("manage.py", name).parse_args(
            words.split()
        )


def test_the_tests_of_the_project(tmp_path: Path) -> None:
    assert "Ran 3 tests" in manage(tmp_path, "test")


def test_its_migrations_and_checks(tmp_path: Path) -> None:
    manage(tmp_path, "makemigrations", "--check", "--dry-run")
    manage(tmp_path, "check", "--fail-level", "WARNING")
