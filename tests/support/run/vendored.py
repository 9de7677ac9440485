"""Files of others that are kept in the tree: which they are, and where they come from.

``python -m tests.support.run.vendored`` fetches them with npm, compares what it got with what is written down, and puts
them in their place; with ``--check`` it only says of which there is a newer version. Nothing else here needs npm.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDERS: Final = (
    ROOT / "web" / "tickwheel_web" / "dashboard" / "static" / "vendor",
    ROOT / "tests" / "browser" / "vendor",
)
LIST: Final = "vendor.toml"


class File(msgspec.Struct, frozen=True):
    """One file: where it is in its package, and what it is called here."""

    path: str
    name: str
    sha256: str


class Package(msgspec.Struct, frozen=True):
    """What is taken of one package."""

    name: str
    version: str
    source: str
    integrity: str
    licence: str
    file: list[File]


class _List(msgspec.Struct, frozen=True):
    package: list[Package]


def packages(folder: Path) -> list[Package]:
    """What a folder's list says."""
    return msgspec.toml.decode((folder / LIST).read_bytes(), type=_List).package


def fetch(folder: Path, package: Package) -> None:
    """Raises SystemExit when something is not as it was."""
    with tempfile.TemporaryDirectory() as scratch:
        of = f"{package.source}@{package.version}"
        subprocess.run(["npm", "pack", "--silent", of], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(scratch).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != package.integrity:
            raise SystemExit(f"{of} is another package than {LIST} says: sha512-{digest}")
        with tarfile.open(archive) as packed:
            for file in package.file:
                found = packed.extractfile(f"package/{file.path}")
                assert found is not None, file.path
                content = found.read()
                if hashlib.sha256(content).hexdigest() != file.sha256:
                    raise SystemExit(f"{file.path} of {of} is another file than {LIST} says")
                (folder / file.name).write_bytes(content)


def newest(package: Package) -> str:
    """The version that its registry has."""
    words = ["npm", "view", package.source, "version"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main(*words: str) -> None:
    """For ``make vendor`` and ``make vendor-check``."""
    for folder in FOLDERS:
        for package in packages(folder):
            if "--check" in words:
                found = newest(package)
                state = "is the newest" if found == package.version else f"there is {found}"
                print(f"{package.name} {package.version}: {state}")
            else:
                fetch(folder, package)
                print(f"{package.name} {package.version}: {', '.join(file.name for file in package.file)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
