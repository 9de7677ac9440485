"""``make django-suite``: Django's ``tests/tasks``, unmodified, with Tickwheel's backend in the place of Django's own.

Django 6 needs Python 3.12, so this makes virtual environments of its own, one for each version of Django; where
there is no such Python it says so. Django's sources come from its source distribution, whose sum is known. Our own
unit tests run there, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
HERE: Final = Path(__file__).resolve().parent
PLACE: Final = ROOT / ".venv-django"
SUMS: Final = {
    "6.0.10": "6005d030df924f85088454c18bd35dcf082b058aa355ad3df520d8de9aef9f41",
    "6.1.3": "b5d2d9e35295065d13b1927b3f19a59bd119f737aa6299def14ccca1ae3c8c0d",
}
LEAST: Final = (3, 12)
ROOTS: Final = (".", "bench", "broker", "cli", "flight", "gateway", "native", "push", "simulation", "web")
TOOLS: Final = (
    "pytest>=8.2",
    "pytest-timeout>=2.3",
    "pytest-trio>=0.8",
    "pytest-xdist>=3.7",
    "hypothesis>=6.100",
)


def main() -> int:
    """Returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--version", choices=sorted(SUMS), action="append", help="which Django (default: all)"
    )
    versions = parser.parse_args().version or sorted(SUMS)
    python = find_python()
    if python is None:
        print("Django 6 needs Python 3.12 or newer, and there is none here: its tests were not run.")
        return 0
    return max(run(python, version) for version in versions)


def find_python() -> str | None:
    """One that is new enough; None: there is none."""
    for candidate in candidates():
        asked = subprocess.run(
            [candidate, "-c", "import json, sys, ensurepip; print(json.dumps(sys.version_info[:2]))"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0 and tuple(json.loads(asked.stdout)) >= LEAST:
            return candidate
    return None


def candidates() -> Iterator[str]:
    """Where there may be one: this one, those of the path, and pyenv's."""
    yield sys.executable
    names = [f"python3.{minor}" for minor in (12, 13, 14)]
    yield from filter(None, map(shutil.which, names))
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in (12, 13, 14):
        yield from sorted(str(one) for one in home.glob(f"3.{minor}.*/bin/python"))


def run(python: str, version: str) -> int:
    """The tests of one version. Returns an exit code."""
    home = PLACE / version
    ready = home / ".ready"
    if not ready.exists():
        prepare(python, version, home)
        ready.touch()
    program = str(home / "bin" / "python")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*(str(ROOT / one) for one in ROOTS), str(home / "tests")]),
        "DJANGO_SETTINGS_MODULE": "tests.interop.django.settings",
        "TICKWHEEL_SUITE": str(home),
    }
    print(f"Django {version}: its own tests of tasks, with Tickwheel's backend")
    told = home / "told.json"
    told.unlink(missing_ok=True)
    subprocess.run(
        [program, "-m", "django", "test", "tasks", "--noinput", "--verbosity", "0"],
        env=environment,
        cwd=home,
        stderr=(home / "suite.log").open("w"),
        check=False,
    )
    if not told.exists():
        print((home / "suite.log").read_text())
        return 1
    code = compare(json.loads(told.read_text()), known(version), home / "suite.log")
    print(f"Django {version}: our own tests of tickwheel.django")
    own = [program, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/tickwheel/django"]
    environment.pop("DJANGO_SETTINGS_MODULE")
    return max(code, subprocess.run(own, env=environment, cwd=ROOT, check=False).returncode)


def prepare(python: str, version: str, home: Path) -> None:
    """The virtual environment, and Django's tests in it."""
    print(f"Making a virtual environment for Django {version} in {home.relative_to(ROOT)}.")
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # The package itself is found by its path: its extension is the same for all versions of Python.
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [one for one in needs["optional-dependencies"]["django"] if not one.startswith("django")]
    subprocess.run(
        [*pip, "install", f"django=={version}", *needs["dependencies"], *extra, *TOOLS], check=True
    )
    subprocess.run(
        [*pip, "download", "--no-deps", "--no-binary", "django", "-d", str(home), f"django=={version}"],
        check=True,
    )
    (archive,) = home.glob("*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SUMS[version]:
        raise SystemExit(f"{archive.name} has the sum {found}, and not {SUMS[version]}.")
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            path = member.name.partition("/")[2]
            if path.startswith("tests/tasks"):
                member.name = path
                opened.extract(member, home, filter="data")


def known(version: str) -> dict[str, str]:
    """Tests that fail as they must, each with its reason."""
    tables = tomllib.loads((HERE / "known_differences.toml").read_text())
    return {**tables["all"], **tables.get(version.rpartition(".")[0], {})}


def compare(told: dict[str, Sequence[str]], differences: dict[str, str], log: Path) -> int:
    """Prints what is not as it should be; returns an exit code."""
    failed, passed = set(told["failed"]), set(told["passed"])
    code = 0
    for name in sorted(failed - differences.keys()):
        print(f"  FAILED, and is no known difference: {name}")
        code = 1
    for name in sorted(differences.keys() & passed):
        print(f"  passed, although it is a known difference: {name}")
        code = 1
    for name in sorted(differences.keys() - failed - passed):
        print(f"  did not run, although it is a known difference: {name}")
        code = 1
    if code:
        print(log.read_text())
    print(f"  {len(passed)} passed, {len(failed & differences.keys())} known differences")
    return code


if __name__ == "__main__":
    sys.exit(main())
