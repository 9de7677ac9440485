"""RocketMQ's own clients, as programs that print what they see: where they are, or what is missing to run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = ROOT / "bench" / "rocketmq_clients"
BUILT: Final = ROOT / "build" / "rocketmq-clients"
PYTHON: Final = Path(os.environ.get("TICKWHEEL_ROCKETMQ", ROOT / ".venv-rocketmq" / "bin" / "python"))

_FETCH_LIMIT_S: Final = 300


class Missing(Exception):
    """What this machine does not have, and what brings it."""


class Programs:
    """The clients, compiled when they are first asked for."""

    def __init__(self, home: Path) -> None:
        """`home`: where they may write their logs."""
        self._home = home
        self._java: list[str] | None = None
        self._go: list[str] | None = None

    def java(self) -> list[str]:
        """The beginning of the command of Load.java. Raises Missing."""
        if self._java is None:
            self._java = [*self._built_java(), "Load"]
        return self._java

    def python(self) -> list[str]:
        """That of load.py. Raises Missing."""
        if not PYTHON.exists():
            raise Missing(
                f"RocketMQ's client for Python is not in {PYTHON.parent.parent.name}: run `make rocketmq`"
            )
        return [str(PYTHON), str(SOURCES / "load.py")]

    def go(self) -> list[str]:
        """That of main.go. Raises Missing."""
        if self._go is None:
            go = _needs("go", "apt-get install golang-go")
            built = BUILT / "load-go"
            _prepare([go, "build", "-C", str(SOURCES / "go"), "-o", str(built)], ".")
            self._go = [str(built)]
        return self._go

    def h2load(self) -> list[str]:
        """Raises Missing."""
        return [_needs("h2load", "apt-get install nghttp2-client")]

    @property
    def environment(self) -> Mapping[str, str]:
        """These clients write logs into the user's home. That for Go is told of plain text in no other way."""
        return {**os.environ, "HOME": str(self._home), "rocketmq.client.enableSsl": "false"}

    def _built_java(self) -> list[str]:
        java = _needs("java", "apt-get install openjdk-17-jdk-headless")
        javac = _needs("javac", "apt-get install openjdk-17-jdk-headless")
        libs, classes = BUILT / "lib", BUILT / "classes"
        if not any(libs.glob("rocketmq-client-java-*.jar")):
            maven = _needs("mvn", "apt-get install maven")
            _prepare(
                [maven, "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:copy-dependencies"],
                f"-DoutputDirectory={libs}",
            )
        _prepare(
            [javac, "-encoding", "UTF-8", "-cp", f"{libs}/*"], "-d", str(classes), str(SOURCES / "Load.java")
        )
        options = ("-Xmx1g", f"-Duser.home={self._home}", "-Drocketmq.log.level=warn")
        return [java, *options, "-cp", f"{libs}/*:{classes}"]


def _needs(program: str, advice: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Missing(f"{program} is not on this machine: `{advice}` brings it")
    return found


def _prepare(command: Sequence[str], *words: str) -> None:
    try:
        done = subprocess.run(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FETCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} did not end within {_FETCH_LIMIT_S} s") from None
    if done.returncode:
        raise Missing(
            f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}"
        )
