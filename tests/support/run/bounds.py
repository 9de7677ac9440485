"""Whether Tickwheel works with the lowest releases that pyproject.toml allows, and with the newest.

``python -m tests.support.run.bounds lowest`` (or ``newest``) makes an environment for Tickwheel alone, an environment
for each of its extras, and an environment for all of them, and runs ``bounds_probe`` in each. Names of extras choose.
``make bounds`` runs both. A bound that cannot be had, because what needs it needs a newer release, fails as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parents[3]
PROBE: Final = Path(__file__).with_name("bounds_probe.py")
FOLDER: Final = ROOT / "build" / "bounds"
RESOLUTIONS: Final = {"lowest": "lowest-direct", "newest": "highest"}
#: What developers use, at whatever release.
LEFT_OUT: Final = frozenset({"dev"})
#: Stands for Tickwheel without extras, and for all of them.
NONE: Final = "none"
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Project:
    """What pyproject.toml says: requirements by extra; those of Tickwheel itself have the name ``none``."""

    requirements: dict[str, list[Requirement]]

    @property
    def extras(self) -> list[str]:
        """Those that users have."""
        return [name for name in self.requirements if name != NONE]

    def sets(self) -> dict[str, list[str]]:
        """The extras of each environment."""
        return {NONE: [], **{name: [name] for name in self.extras}, ALL: self.extras}

    def bounds(self, extras: Sequence[str]) -> dict[str, Version]:
        """The lowest release that is allowed of each dependency, as far as it concerns this machine."""
        found: dict[str, Version] = {}
        for requirement in (one for name in (NONE, *extras) for one in self.requirements[name]):
            if requirement.marker is None or requirement.marker.evaluate(dict(default_environment())):
                name, bound = canonicalize_name(requirement.name), lower_bound(requirement)
                found[name] = max(bound, found.get(name, bound))
        return found


def lower_bound(requirement: Requirement) -> Version:
    """The release that ``>=`` or ``==`` names. Raises ValueError."""
    for one in requirement.specifier:
        if one.operator in (">=", "=="):
            return Version(one.version.removesuffix(".*"))
    raise ValueError(f"{requirement} has no lower bound")


def read_project(text: str) -> Project:
    """Of the text of pyproject.toml."""
    project = tomllib.loads(text)["project"]
    given = {NONE: project["dependencies"], **project["optional-dependencies"]}
    return Project(
        {name: [Requirement(one) for one in ones] for name, ones in given.items() if name not in LEFT_OUT}
    )


def make_environment(uv: Path, resolution: str, name: str, extras: Sequence[str]) -> Path:
    """The interpreter of a new environment."""
    folder = FOLDER / resolution / name
    python = folder / "bin" / "python"
    wanted = f".[{','.join(extras)}]" if extras else "."
    # What is compiled in the tree fits every release of the dependencies.
    environment = os.environ | {"TICKWHEEL_COMPILED": "keep", "VIRTUAL_ENV": str(folder)} | index_of_pip()
    for words in (
        ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        ["pip", "install", "--quiet", "--python", str(python), "--resolution", RESOLUTIONS[resolution],
         "--link-mode", "hardlink", "--editable", wanted],
    ):  # fmt: skip
        subprocess.run([str(uv), *words], check=True, cwd=ROOT, env=environment)
    return python


def index_of_pip() -> dict[str, str]:
    """Where pip looks for packages, for uv, which does not read pip's settings."""
    settings = {"global.index-url": "UV_DEFAULT_INDEX", "global.extra-index-url": "UV_INDEX"}
    found = {}
    for setting, variable in settings.items():
        name = f"PIP_{setting.rpartition('.')[2].upper().replace('-', '_')}"
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", setting],
            capture_output=True,
            text=True,
            check=False,
        )
        if value := os.environ.get(name) or asked.stdout.strip():
            found[variable] = value
    return found


def installed(python: Path) -> dict[str, Version]:
    """The releases in an environment."""
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    return {
        canonicalize_name(one.metadata["Name"]): Version(one.version)
        for one in distributions(path=[str(packages)])
    }


def not_had(bounds: dict[str, Version], found: dict[str, Version]) -> Iterator[str]:
    """Which lowest releases are not the lowest after all."""
    for name, bound in bounds.items():
        if found[name] != bound:
            yield f"{name} {bound} cannot be had: the lowest release that can is {found[name]}"


def judge(project: Project, resolution: str, name: str, uv: Path) -> list[str]:
    """What is wrong with an environment, which is made."""
    extras = project.sets()[name]
    try:
        python = make_environment(uv, resolution, name, extras)
    except subprocess.CalledProcessError as error:
        return [f"cannot be installed: {error}"]
    wrong = []
    if resolution == "lowest" and name != ALL:
        # What another dependency of the same extra wants newer is the lie of a bound; an extra may want newer
        # releases of what Tickwheel itself needs.
        own = {canonicalize_name(one.name) for one in project.requirements[name]}
        bounds = {one: bound for one, bound in project.bounds(extras).items() if one in own}
        wrong += not_had(bounds, installed(python))
    done = subprocess.run(
        [python, "-P", PROBE, *extras], check=False, cwd=FOLDER, capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        wrong.append(f"does not work:\n{done.stdout[-2_000:]}{done.stderr[-6_000:]}")
    print(f"{resolution} {name}: {'; '.join(wrong) if wrong else done.stdout.strip()}", flush=True)
    return wrong


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1 when something does not work."""
    project = read_project((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("resolution", choices=RESOLUTIONS)
    parser.add_argument("sets", nargs="*", help=f"{', '.join(project.sets())}; all of these by default")
    parser.add_argument("--uv", type=Path, required=True, help="the program uv, which resolves")
    given = parser.parse_args(words)
    unknown = set(given.sets) - set(project.sets())
    if unknown:
        parser.error(f"no such extra: {', '.join(sorted(unknown))}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = given.sets or list(project.sets())
    failed = [name for name in chosen if judge(project, given.resolution, name, given.uv.absolute())]
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
