"""The conformance programs: one for each language, all with the same steps and the same observations.

program ENDPOINT RUN [STEP ...]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.registries import Registries

HERE: Final = Path(__file__).parent


class Program(NamedTuple):
    """One that can be run."""

    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = {}


def python(folder: Path, _: Registries) -> Program:
    interpreter = os.environ.get("TICKWHEEL_ROCKETMQ")
    if interpreter is None:
        pytest.skip("TICKWHEEL_ROCKETMQ names no interpreter with RocketMQ's client; make rocketmq has one")
    return Program((str(Path(interpreter).absolute()), str(HERE / "python_conformance.py")), folder)


PROGRAMS: Final[dict[str, Callable[[Path, Registries], Program]]] = {"python": python}
"""By language: how each is made, in a folder of its own."""


def copied(language: str, folder: Path) -> Path:
    """The sources of a program, to build it there."""
    return Path(shutil.copytree(HERE / language, folder / language))
