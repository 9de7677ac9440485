"""The conformance programs: one for each language, all with the same steps and the same observations.

program ENDPOINT RUN [STEP ...]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.run.registries import Registries, needs, run, succeed

HERE: Final = Path(__file__).parent
JAVA_VERSIONS: Final = ("5.0.3", "5.0.8", "5.1.0", "5.2.0")
"""Of the client for Java, the oldest in use first."""


class Program(NamedTuple):
    """One that can be run."""

    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = {}


def printed(program: Program, *words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """What it prints, given these words. Its clients write logs into the user's home."""
    environment = {"HOME": str(program.folder), **program.environment}
    return run(program.folder, *program.command, *words, environment=environment, limit_s=limit_s)


def interpreter() -> str:
    """Of Python, with RocketMQ's client. Its path holds in any folder."""
    path = os.environ.get("TICKWHEEL_ROCKETMQ")
    if path is None:
        pytest.skip("TICKWHEEL_ROCKETMQ names no interpreter with RocketMQ's client; make rocketmq has one")
    return str(Path(path).absolute())


def python(folder: Path, _: Registries) -> Program:
    return Program((interpreter(), str(HERE / "python_conformance.py")), folder)


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


def java(folder: Path, registries: Registries) -> Program:
    (program,) = java_with(JAVA_VERSIONS[-1:], folder, registries).values()
    return program


def java_with(versions: Sequence[str], folder: Path, registries: Registries) -> dict[str, Program]:
    """Compiled once, with the last of these versions of the client; by the version with which it runs."""
    program, compiler, maven = needs("java"), needs("javac"), needs("mvn")
    sources = copied("java", folder)
    for one in versions:
        words = ("-q", "-B", f"-Dclient.version={one}", f"-DoutputDirectory=lib-{one}")
        registries.fetch(sources, maven, *words, "dependency:copy-dependencies")
    options = ("-encoding", "UTF-8", "-sourcepath", ".", "-cp", f"lib-{versions[-1]}/*", "-d", "classes")
    succeed(sources, compiler, *options, "Conformance.java")
    flags = (f"-Duser.home={folder}", "-Drocketmq.log.level=warn", "-XX:TieredStopAtLevel=1")
    return {
        one: Program((program, *flags, "-cp", f"lib-{one}/*:classes", "Conformance"), sources)
        for one in versions
    }


def raw(_: Path, __: Registries) -> Program:
    """No client of theirs: calls that those do not make."""
    command = (sys.executable, "-m", "tests.interop.rocketmq.raw_conformance")
    roots = (".", "bench", "broker", "cli", "flight", "gateway", "native", "push", "simulation", "web")
    return Program(command, HERE.parents[2], {"PYTHONPATH": os.pathsep.join(roots)})


PROGRAMS: Final[dict[str, Callable[[Path, Registries], Program]]] = {
    "go": go,
    "java": java,
    "node": node,
    "python": python,
    "raw": raw,
}
"""By language: how each is made, in a folder of its own."""


def copied(language: str, folder: Path) -> Path:
    """The sources of a program, to build it there."""
    return Path(shutil.copytree(HERE / language, folder / language))
