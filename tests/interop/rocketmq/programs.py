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

from tests.support.registries import Registries, needs, succeed

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


def go(folder: Path, registries: Registries) -> Program:
    compiler = needs("go")
    sources = copied("go", folder)
    registries.fetch(sources, compiler, "mod", "download")
    succeed(sources, compiler, "vet", ".")
    succeed(sources, compiler, "build", "-o", "conformance", ".")
    return Program((str(sources / "conformance"),), sources)


def node(folder: Path, registries: Registries) -> Program:
    program, npm = needs("node"), needs("npm")
    sources = copied("node", folder)
    options = ("--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund")
    registries.fetch(sources, npm, "install", *options)
    return Program((program, str(sources / "conformance.cjs")), sources)


PROGRAMS: Final[dict[str, Callable[[Path, Registries], Program]]] = {"go": go, "node": node, "python": python}
"""By language: how each is made, in a folder of its own."""


def copied(language: str, folder: Path) -> Path:
    """The sources of a program, to build it there."""
    return Path(shutil.copytree(HERE / language, folder / language))
