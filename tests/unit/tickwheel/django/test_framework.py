"""What is said where Django or its tasks are missing, and that nothing else imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SAY = """
import sys
for name in {missing}:
    sys.modules[name] = None
try:
    import tickwheel.django
except ImportError as error:
    print(type(error).__name__, error)
"""


def say(program: str) -> str:
    """What a program prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (["django"], "Django is not installed"),
        (["django.tasks", "django_tasks"], "This Django has no tasks yet"),
    ],
)
def test_what_is_missing(missing: list[str], text: str) -> None:
    said = say(SAY.format(missing=missing))
    assert said.startswith(f"DjangoMissing {text}")
    assert "pip install 'tickwheel[django]'" in said


def test_the_client_imports_no_django() -> None:
    assert say("import sys, tickwheel.sync; print('django' in sys.modules)") == "False\n"


def test_names_of_the_room() -> None:
    import tickwheel.django as room

    for name in room.__all__:
        assert getattr(room, name) is not None
    with pytest.raises(AttributeError):
        room.nothing  # noqa: B018
